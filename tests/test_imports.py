"""Imports with the garbage collector at rest."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from dsnb.imports import gc_paused


def test_nothing_is_collected_inside_and_the_collector_goes_on_behind() -> None:
    seen: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    try:
        with gc_paused():
            seen.clear()
            kept = [[] for _ in range(20_000)]
            assert not seen
        assert gc.isenabled()
        kept += [[] for _ in range(20_000)]
        assert seen
    finally:
        gc.callbacks.remove(note)


def test_what_was_made_inside_counts_as_old_and_nothing_is_kept_from_the_collector() -> None:
    sys.modules.pop("this", None)
    gc.unfreeze()  # what tests/conftest.py froze
    with gc_paused():
        kept = [[] for _ in range(20_000)]
        sys.modules["this"] = ModuleType("this")
    del sys.modules["this"]
    assert gc.get_freeze_count() == 0
    assert gc.get_count()[0] < 20_000
    assert any(one is kept for one in gc.get_objects(generation=2))


def test_a_collector_that_is_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), gc_paused():
        import dsnb.nothing_of_that_name  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.cache.key import KeyMaker, Named


def train(data: Any, rate: float = 0.1, *more: Any, verbose: bool = False, **options: Any) -> None:
    pass


def key(*args: Any, named: Named | None = None, **kwargs: Any) -> Any:
    return KeyMaker(train, named or Named()).key(args, kwargs)


def test_how_arguments_are_passed_does_not_count() -> None:
    first = key(1, 0.1, a=1, b=2)
    assert first.digest == key(1, b=2, a=1).digest == key(data=1, rate=0.1, verbose=False, b=2, a=1).digest
    assert len(first.digest) == 32


def test_each_argument_counts_by_its_name() -> None:
    keys = [
        key(1),
        key(2),
        key(1, 1),
        key(1, 0.1, 1),
        key(1, verbose=True),
        key(1, a=1),
        key(1, b=1),
        key([1]),
        key((1,)),
    ]
    assert len({found.digest for found in keys}) == len(keys)


def test_the_call_is_told_as_it_was_written() -> None:
    assert key(np.zeros((2, 3)), rate=0.5, a="x").call == "train(data=<float64 (2, 3)>, rate=0.5, options={'a': 'x'})"
    assert len(key("x" * 1000).call) < 100
    assert key(dsnb.Dataset.range(3)).call == "train(data=<Dataset>)"


def test_ignored_arguments_do_not_count_but_that_they_are_ignored_does() -> None:
    named = Named(ignore=("verbose",))
    assert key(1, verbose=True, named=named).digest == key(1, verbose=False, named=named).digest
    assert key(1, named=named).digest != key(1).digest


def test_files_count_by_their_contents_and_not_by_their_times(tmp_path: Path) -> None:
    path = tmp_path / "data"
    named = Named(files=(str(path),))
    missing = key(1, named=named).digest
    path.write_text("a")
    first = key(1, named=named).digest
    path.write_text("b")
    second = key(1, named=named).digest
    path.unlink()
    path.write_text("a")
    assert key(1, named=named).digest == first
    assert len({missing, first, second}) == 3
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("a")
    folder = key(1, named=named).digest
    (path / "inside").write_text("b")
    assert key(1, named=named).digest not in {folder, first, missing}


def test_wrong_arguments_are_python_s_own_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'data'"):
        key()

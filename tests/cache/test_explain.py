"""Explanations, as a person reads them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.cache.results.explain import CallNote, explain_miss, make_note
from dsnb.cache.results.key import DeclaredInputs, KeyMaker
from dsnb.cache.results.remembered_function import remembered
from dsnb.cache.results.training import LocalTrainingCache
from tests.cache.cells import Cells
from tests.support.fingerprints import local_modules

Open = Callable[..., LocalTrainingCache]
SOURCE = """
SCALE = 3.0

def helper(x):
    y = x + 1
    return y * SCALE

def train(lr, data=None):
    \"\"\"Trains.\"\"\"
    return helper(lr)
"""


def maker(source: str, *, hidden: bool = False) -> KeyMaker:
    cells = Cells(np=np, dsnb=dsnb)
    cells.run(source, hidden=hidden)
    return KeyMaker(cells.train, DeclaredInputs())


def note(made: KeyMaker, *args: Any) -> CallNote:
    """What is kept of a call; through bytes, as the database has it."""
    return CallNote.from_bytes(make_note(made.key(args, {}), made.codes(args, {})).to_bytes())


def told(before: KeyMaker, after: KeyMaker, *, first: tuple[Any, ...] = (1,), second: tuple[Any, ...] = (1,)) -> str:
    return str(explain_miss(after.key(second, {}), [note(before, *first)], after.codes(second, {})))


def changed(old: str, new: str) -> str:
    assert old in SOURCE
    return told(maker(SOURCE), maker(SOURCE.replace(old, new)))


def test_a_changed_line_of_a_helper() -> None:
    assert changed("return y * SCALE", "return y / SCALE") == (
        "train(lr=1): computed\n  train > global helper, line 3: `return y * SCALE` is now `return y / SCALE`"
    )


def test_a_changed_line_of_the_function_itself() -> None:
    assert changed("return helper(lr)", "return helper(lr) + 1") == (
        "train(lr=1): computed\n  train, line 3: `return helper(lr)` is now `return helper(lr) + 1`"
    )


def test_a_changed_global() -> None:
    assert changed("SCALE = 3.0", "SCALE = 4.0") == (
        "train(lr=1): computed\n  train > global helper > global SCALE: 3.0 is now 4.0"
    )


PIPELINE = (
    "def double(x):\n    return 2 * x\ndef train(ds):\n    return list(ds)\nds = dsnb.Dataset.range(6).map(double)\n"
)


def pipeline(edit: str = "", source: str = PIPELINE) -> tuple[KeyMaker, Any]:
    cells = Cells(np=np, dsnb=dsnb)
    cells.run(source)
    cells.run(edit)
    return KeyMaker(cells.train, DeclaredInputs()), cells.ds


@pytest.mark.parametrize(
    "edit, reasons",
    [
        ("ds = dsnb.Dataset.range(6).skip(1).map(double)", ["argument ds: skip(1) is new"]),
        ("ds = dsnb.Dataset.range(6)", ["argument ds: map(double) is gone"]),
        ("ds = ds.batch(2)", ["argument ds: batch(2) is new"]),
        ("ds = dsnb.Dataset.range(7).map(double)", ["argument ds[1] > stop: 6 is now 7"]),
        (
            "def double(x):\n    return 3 * x\nds = dsnb.Dataset.range(6).skip(1).map(double)",
            ["argument ds: skip(1) is new", "argument ds[3] > function, line 2: `return 2 * x` is now `return 3 * x`"],
        ),
    ],
)
def test_an_edited_pipeline(edit: str, reasons: list[str]) -> None:
    (before, first), (after, second) = pipeline(), pipeline(edit)
    lines = told(before, after, first=(first,), second=(second,)).splitlines()
    assert lines == ["train(ds=<Dataset>): computed", *(f"  {reason}" for reason in reasons)]


def test_a_function_of_a_module_that_was_edited_and_reloaded(tmp_path: Path, open_cache: Open) -> None:
    with local_modules(tmp_path):
        file = tmp_path / "fingerprint_explained.py"
        file.write_text("def scale(x):\n    return x * 2\n")
        cells = Cells(remembered=remembered, cache=open_cache())
        cells.run(
            "import fingerprint_explained\n"
            "@remembered(cache=cache)\ndef train(x):\n    return fingerprint_explained.scale(x)\n"
        )
        assert cells.train(1) == 2
        file.write_text("def scale(x):\n    return x * 3.5\n")
        importlib.invalidate_caches()
        importlib.reload(sys.modules["fingerprint_explained"])
        assert cells.train(1) == 3.5
    assert cells.train.explain().reasons == (
        "train > global fingerprint_explained.scale, line 2: `return x * 2` is now `return x * 3.5`",
    )


def test_new_lines_and_lines_that_are_gone() -> None:
    assert changed("    y = x + 1\n", "    y = x + 1\n    # more\n    y = y + 2\n").endswith(
        "train > global helper, line 3: `y = y + 2` is new"
    )
    assert changed("    y = x + 1\n    return y * SCALE", "    return x * SCALE").splitlines()[1:] == [
        "  train > global helper, line 2: `y = x + 1 ...` is now `return x * SCALE`"
    ]


def test_a_new_helper_is_told_where_it_is_called_and_by_itself() -> None:
    lines = changed("def helper(x):", "def more(x):\n    return x\n\ndef helper(x):\n    x = more(x)").splitlines()
    assert lines[1:] == [
        "  train > global helper, line 2: `x = more(x)` is new",
        "  train > global helper > global more: new (function more)",
    ]


def test_a_change_inside_of_a_nested_function_is_told_by_the_lines_around_it() -> None:
    source = SOURCE.replace("y = x + 1", "y = sum(v + 1 for v in [x])")
    after = source.replace("v + 1", "v + 2")
    assert changed("y = x + 1", "y = sum(v + 1 for v in [x])").count("\n") == 1
    assert told(maker(source), maker(after)).endswith(
        "line 2: `y = sum(v + 1 for v in [x])` is now `y = sum(v + 2 for v in [x])`"
    )


def test_arguments() -> None:
    made = maker(SOURCE)
    assert told(made, made, first=(1,), second=(2,)) == (
        "train(lr=2): computed, against train(lr=1)\n  argument lr: 1 is now 2"
    )
    first, second = np.zeros((2, 3)), np.ones((2, 3))
    assert told(made, made, first=(1, first), second=(1, second)).endswith(
        "argument data: other contents (float64 (2, 3))"
    )
    assert told(made, made, first=(1, first), second=(1, first.astype("f4"))).endswith(
        "argument data: float64 (2, 3) is now float32 (2, 3)"
    )
    assert told(made, made, first=(1, [1, {"a": 2}]), second=(1, [1, {"a": 3}])).endswith(
        "argument data: [1, {'a': 2}] is now [1, {'a': 3}]"
    )


def test_datasets_by_the_operation_that_differs() -> None:
    made = maker(SOURCE)
    first = dsnb.Dataset.range(9).map(lambda x: x + 1).batch(2)
    second = dsnb.Dataset.range(9).map(lambda x: x + 1).batch(3)
    text = told(made, made, first=(1, first), second=(1, second))
    assert text.splitlines()[1].startswith("  argument data[3] > ")
    assert text.endswith(": 2 is now 3")


def test_versions_of_packages_and_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("y = x + 1", "y = np.sin(x)")
    made = maker(source)
    before = note(made, 1)
    parts = tuple(
        type(part)(part.path, part.kind, "0" * 32, {"numpy": "1.0", "Python": "2.7"}[part.path])
        if part.path in {"numpy", "Python"}
        else part
        for part in before.parts
    )
    old = CallNote(digest="other", call=before.call, parts=parts, sources=before.sources)
    assert explain_miss(made.key((1,), {}), [old], {}).reasons == (
        f"Python: 2.7 is now {sys.version_info.major}.{sys.version_info.minor}",
        f"numpy: 1.0 is now {np.__version__}",
    )


def test_without_the_source_it_says_so() -> None:
    text = told(maker(SOURCE, hidden=True), maker(SOURCE.replace("* SCALE", "/ SCALE"), hidden=True))
    assert text.endswith("train > global helper: its code changed (its source is not at hand)")


def test_the_same_arguments_are_nearer_than_the_same_code() -> None:
    old, new = maker(SOURCE), maker(SOURCE.replace("* SCALE", "/ SCALE"))
    notes = [note(new, 1), note(old, 2), note(old, 3)]
    found = explain_miss(new.key((2,), {}), notes, new.codes((2,), {}))
    assert found.against == "train(lr=2)"
    assert found.reasons == ("train > global helper, line 3: `return y * SCALE` is now `return y / SCALE`",)
    found = explain_miss(new.key((4,), {}), notes, new.codes((4,), {}))
    assert (found.against, found.reasons) == ("train(lr=1)", ("argument lr: 1 is now 4",))


def test_the_first_call_of_all() -> None:
    made = maker(SOURCE)
    assert str(explain_miss(made.key((1,), {}), [], {})) == "train(lr=1): computed, for no call of it is remembered"


def test_a_search_that_is_run_again_after_an_edit_is_explained_against_the_search_before(open_cache: Open) -> None:
    cells = Cells(cache=open_cache(), remembered=dsnb.cache.remembered)
    source = "@remembered(cache=cache)\ndef train(lr):\n    return lr * 2\n"
    cells.run(source)
    for lr in (1, 2, 3):
        cells.train(lr)
    cells.run(source.replace("* 2", "* 3"))
    for lr in (1, 2, 3):
        cells.train(lr)
        assert str(cells.train.explain()) == (
            f"train(lr={lr}): computed\n  train, line 3: `return lr * 2` is now `return lr * 3`"
        )
    assert str(cells.train.explain(3)) == "train(lr=3): from the cache"

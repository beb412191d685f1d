from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.serializers import NotSerializableError, read_result, split_into_parts, write_parts
from dsnb.errors import DataLossError
from tests.cache.steps import Output


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    loss: float
    weights: Any


@dataclass
class Loose:
    a: int


def there_and_back(value: Any, folder: Path, *, pickles: bool = False) -> Any:
    folder.mkdir(exist_ok=True)
    storage = ModelStorage(folder / "model")
    write_parts(split_into_parts(value, pickles=pickles), folder, storage)
    return read_result(folder, storage, name="step", pickles=pickles)


def assert_same(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, np.ndarray):
        assert (first.dtype, first.shape) == (second.dtype, second.shape)
        assert first.tobytes() == second.tobytes()
    elif isinstance(first, dict):
        assert_same(list(first.items()), list(second.items()))
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif isinstance(first, float) and math.isnan(first):
        assert math.isnan(second)
    else:
        assert first == second


VALUES: dict[str, Any] = {
    "plain": [None, True, False, 0, -1, 1 << 80, 1.5, -0.0, float("inf"), float("nan"), "", "ä\ud800", b"\x00", 1 + 2j],
    "containers": ((), [], {}, set(), frozenset({1, (2, 3)}), {1: "a", (2, "b"): [3], None: {4}}),
    "arrays": [
        np.arange(6).reshape(2, 3),
        np.zeros((0, 3), "f4"),
        np.array(5),
        np.array(["a", "bc"]),
        np.bool_([1, 0]),
    ],
    "order": [np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(10)[::2]],
    "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "records": np.array([(1, 2.5)], [("a", "i4"), ("b", "f8", 1)]),
    "big endian": np.arange(3, dtype=">i4"),
    "scalars": [np.float32(1.5), np.int8(-3), np.str_("a"), np.datetime64("2020-01-01"), np.bool_(True)],
    "classes": [Point(1, np.arange(2)), Frozen(0.5, Point([], "x")), Loose(3)],
}


@pytest.mark.parametrize("name", VALUES)
def test_what_has_a_form_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    found = there_and_back(VALUES[name], tmp_path / "r")
    if name == "classes":
        assert found[0].y.tolist() == [0, 1]
        assert found[1:] == VALUES[name][1:]
        assert [type(item) for item in found] == [Point, Frozen, Loose]
    else:
        assert_same(VALUES[name], found)


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers())
KEYS = st.one_of(st.booleans(), st.integers(), st.text(), st.tuples(st.integers(), st.text()))
NESTED: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner)),
    max_leaves=12,
)


@given(NESTED)
def test_any_nesting_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    # Compared as text: NaN is not equal to itself, and -0.0 is to 0.0.
    assert repr(there_and_back(value, tmp_path_factory.mktemp("r"))) == repr(value)


def test_arrays_are_the_reader_s_own(tmp_path: Path) -> None:
    found = there_and_back(np.arange(3), tmp_path / "r")
    found[0] = 7
    assert found.tolist() == [7, 1, 2]


def test_what_writes_itself_does(tmp_path: Path) -> None:
    found = there_and_back({"a": [Output("one"), Output("two", 100)]}, tmp_path / "r")
    assert found == {"a": [Output("one"), Output("two", 100)]}


class Special(np.ndarray[Any, Any]):
    pass


def with_more() -> Loose:
    value = Loose(1)
    value.b = 2
    return value


class Local:
    class Inner(NamedTuple):
        x: int


def local_tuple() -> Any:
    class Hidden(NamedTuple):
        x: int

    return Hidden(1)


deep: list[Any] = []
for _ in range(300):
    deep = [deep]
around: list[Any] = []
around.append(around)

WITHOUT = {
    "a function": (lambda: 0, "the result is a function"),
    "an object array": ([np.array([None])], r"the result at \[0\] is a numpy.ndarray"),
    "a subclass": ({"w": np.arange(2).view(Special)}, r"the result at \['w'\] is a .*Special"),
    "a dict of another class": ((OrderedDict(),), r"the result at \[0\] is a collections.OrderedDict"),
    "a dataclass with more": (with_more(), "Loose"),
    "a class that no name leads to": (local_tuple(), "Hidden"),
    "an integer's subclass": ([IntEnum("E", "a").a], "is a .*E"),
    "too deep": (deep, "the result at .* is a list"),
    "a cycle": (around, "the result at .* is a list"),
    "text with a dtype of its own": (np.array(["a"], np.dtypes.StringDType()), "numpy.ndarray"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_form_is_named_with_the_way_to_it(name: str) -> None:
    value, words = WITHOUT[name]
    with pytest.raises(NotSerializableError, match=words) as error:
        split_into_parts(value, pickles=False)
    assert "pickles=True" in error.value.hint


def test_a_class_inside_of_another_has_a_name(tmp_path: Path) -> None:
    found = there_and_back(Local.Inner(5), tmp_path / "r")
    assert type(found) is Local.Inner


def test_pickles_hold_only_what_has_no_form(tmp_path: Path) -> None:
    value = {"w": np.arange(3), "f": lambda x: x + 1}
    parts = split_into_parts(value, pickles=True)
    assert (len(parts.arrays), len(parts.pickles)) == (1, 1)
    found = there_and_back(value, tmp_path / "r", pickles=True)
    assert found["f"](1) == 2
    with pytest.raises(DataLossError, match="pickles are not allowed"):
        read_result(tmp_path / "r", ModelStorage(tmp_path), name="step", pickles=False)


def test_a_class_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there_and_back(Point(1, 2), tmp_path / "r")
    monkeypatch.delitem(globals(), "Point")
    with pytest.raises(DataLossError, match=r"needs the class .*:Point with the fields \['x', 'y'\]"):
        read_result(tmp_path / "r", ModelStorage(tmp_path), name="step", pickles=False)

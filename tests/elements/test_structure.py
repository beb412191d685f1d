"""Runs of nested elements are taken apart into columns and put together again, exactly."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.structure import (
    LEAF,
    StructureMismatch,
    columns_of,
    elements_of,
    flatten,
    rebuild,
    structure_from_json,
    structure_of,
    structure_to_json,
)
from dsnb.errors import DataLossError, InvalidArgumentError

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users have
Other = namedtuple("Other", ["x", "z"])  # noqa: PYI024


@dataclass
class Sample:
    image: Any
    label: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    label: Any


NESTED = (1, {"b": [2, Point(3, 4)], "a": ()}, [5])


def _nodes(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), children, max_size=3)
        | st.tuples(children, children).map(Point._make)
        | st.tuples(children, children).map(lambda parts: Sample(*parts))
        | st.tuples(children, children).map(lambda parts: Frozen(*parts))
        | st.tuples(children, st.none())
    )


elements = st.recursive(st.integers(), _nodes, max_leaves=8)


def test_a_structure_reads_like_the_element() -> None:
    assert str(structure_of(NESTED)) == "(·, {'b': [·, Point(x=·, y=·)], 'a': ()}, [·])"
    assert str(structure_of((1,))) == "(·,)"


def test_keys_of_a_dict_must_be_strings() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\[1\]"):
        structure_of((0, {1: 2}))


@pytest.mark.slow
@given(elements, st.integers(1, 4))
def test_a_run_that_is_taken_apart_and_put_together_is_the_same(element: Any, count: int) -> None:
    run = [element] * count
    structure = structure_of(element)
    columns = columns_of(structure, run)
    assert len(columns) == structure.leaves
    again = list(elements_of(structure, iter(columns), count))
    assert again == run
    assert [structure_of(each) for each in again] == [structure] * count


@given(elements)
def test_leaves_are_in_one_order_everywhere(element: Any) -> None:
    structure = structure_of(element)
    leaves = flatten(element)
    assert [column[0] for column in columns_of(structure, [element])] == leaves
    assert rebuild(structure, iter(leaves)) == element


@given(elements)
def test_a_structure_survives_being_written_down(element: Any) -> None:
    structure = structure_of(element)
    assert structure_from_json(structure_to_json(structure)) == structure


def test_elements_without_leaves_need_their_number() -> None:
    assert list(elements_of(structure_of((1, {})), iter([[5, 6]]), 2)) == [(5, {}), (6, {})]
    assert list(elements_of(structure_of(()), iter([]), 3)) == [(), (), ()]
    with pytest.raises(InvalidArgumentError, match="no length"):
        elements_of(structure_of({}), iter([]))


def test_each_element_gets_containers_of_its_own() -> None:
    """What a reader writes into one element must not show in the next."""
    structure = structure_of([{}, [1]])
    first, second = elements_of(structure, iter([[1, 2]]), 2)
    first[0]["new"] = 1
    first[1].append(9)
    assert second == [{}, [2]]


@pytest.mark.parametrize(
    "run, odd",
    [
        ([1, 2, (3,)], 2),
        ([(1, 2), (1, 2, 3), (1, 2)], 1),
        ([(1, 2), [1, 2]], 1),
        ([[1], [1], (1,)], 2),
        ([{"a": 1}, {"a": 1, "b": 2}], 1),
        ([{"a": 1}, {"b": 1}], 1),
        ([{"a": 1}, 1], 1),
        ([Point(1, 2), Point(1, 2), (1, 2)], 2),
        ([Point(1, 2), Other(1, 2)], 1),
        ([(1, 2), Point(1, 2)], 1),
        ([(1, [2]), (1, [2]), (1, [2, 3])], 2),
        ([(1, {"a": 2}), (1, {"a": (2,)})], 1),
        ([Sample(1, 2), Sample(1, 2), Point(1, 2)], 2),
        ([1, Sample(1, 2)], 1),
        ([Sample(1, 2), {"image": 1, "label": 2}], 1),
        ([(1, None), (1, None), (1, 2)], 2),
    ],
    ids=str,
)
def test_the_first_element_that_is_built_differently_is_named(run: list[Any], odd: int) -> None:
    with pytest.raises(StructureMismatch) as caught:
        columns_of(structure_of(run[0]), run)
    assert caught.value.index == odd


def test_the_order_of_a_dicts_keys_and_its_class_do_not_matter() -> None:
    run = [{"a": 1, "b": 2}, {"b": 4, "a": 3}, OrderedDict(b=6, a=5)]
    assert columns_of(structure_of(run[0]), run) == [[1, 3, 5], [2, 4, 6]]


def test_a_none_inside_an_element_is_a_part_without_leaves() -> None:
    structure = structure_of((1, None))
    assert str(structure) == "(·, None)"
    assert list(elements_of(structure, iter([[5, 6]]))) == [(5, None), (6, None)]
    assert rebuild(structure, iter([1])) == (1, None)


def test_none_by_itself_is_a_leaf_and_so_none_that_an_element_can_hold() -> None:
    """What a function gives that forgot to return must not pass for an element."""
    assert structure_of(None) is LEAF
    assert flatten(None) == [None]


@pytest.mark.parametrize(
    "text",
    [
        '["heap",[],["",""],[0]]',
        '["dict",["a"],["",""],[0,0]]',
        '["dict",["a","a"],["",""],[0,0]]',
        '["namedtuple",["a","b"],["",""],[0]]',
        '["tuple",["a"],["",""],[0]]',
        '["dataclass",["a"],["",""],[0,0]]',
        '["none",[],["",""],[0]]',
    ],
)
def test_what_is_no_structure_is_data_loss(text: str) -> None:
    with pytest.raises(DataLossError):
        structure_from_json(text)

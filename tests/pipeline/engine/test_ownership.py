"""What user code hands in is copied if anything else refers to its memory, and only then."""

from __future__ import annotations

import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsnb.pipeline.engine.ownership import all_immutable, ensure_owned, is_immutable

Pair = namedtuple("Pair", ["image", "label"])  # noqa: PYI024 - the test needs an untyped one


@dataclass(frozen=True)
class Sample:
    image: Any


def address(array: np.ndarray[Any, Any]) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def made(function: Callable[[int], Any], count: int = 3) -> list[Any]:
    return list(ensure_owned(map(function, range(count))))


def test_one_buffer_returned_again_and_again_gives_distinct_elements() -> None:
    buffer = np.zeros(2)

    def reuse(x: int) -> Any:
        buffer[:] = x
        return buffer

    assert [array.tolist() for array in made(reuse)] == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda array: (array, 1),
        lambda array: {"x": array},
        lambda array: [array],
        lambda array: Pair(array, "a"),
        Sample,
        lambda array: {"x": (array, {"y": array})},
    ],
    ids=["tuple", "dict", "list", "named tuple", "dataclass", "nested"],
)
def test_a_reused_buffer_inside_a_structure_is_copied(wrap: Callable[[Any], Any]) -> None:
    buffer = np.zeros(1)

    def reuse(x: int) -> Any:
        buffer[0] = x
        return wrap(buffer)

    elements = made(reuse)
    assert type(elements[0]) is type(wrap(buffer))
    assert [str(element) for element in elements] == [str(wrap(np.array([float(x)]))) for x in range(3)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(2),
        lambda: np.zeros((2, 3)).T,
        lambda: np.zeros(6)[1:].reshape(5, 1),
        lambda: np.frombuffer(bytes(bytearray(range(8))), np.uint8),
        lambda: np.frombuffer(b"".join([b"abc", b"defgh"]), np.uint8).reshape(2, 4)[:, ::2],
    ],
    ids=["array", "transposed", "view of a fresh array", "array over fresh bytes", "view of an array over fresh bytes"],
)
def test_a_fresh_array_is_not_copied(make: Callable[[], Any]) -> None:
    addresses = []

    def fresh(_: int) -> Any:
        array = make()
        addresses.append(address(array))
        return array

    assert [address(array) for array in made(fresh)] == addresses


@pytest.mark.parametrize("wrap", [lambda a: (a, 1), lambda a: {"x": a}, lambda a: [a]], ids=["tuple", "dict", "list"])
def test_a_fresh_array_in_a_fresh_structure_is_not_copied(wrap: Callable[[Any], Any]) -> None:
    addresses = []

    def fresh(_: int) -> Any:
        array = np.zeros(2)
        addresses.append(address(array))
        return wrap(array)

    found = [element["x"] if isinstance(element, dict) else element[0] for element in made(fresh)]
    assert [address(array) for array in found] == addresses


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}, lambda x: (x, 1)], ids=["array", "dict", "tuple"])
def test_a_small_part_of_a_large_array_does_not_keep_all_of_it(wrap: Callable[[Any], Any]) -> None:
    whole: list[weakref.ref[Any]] = []

    def crop(number: int) -> Any:
        image = np.full((300, 300), number, np.uint8)
        whole.append(weakref.ref(image))
        return wrap(image[:50, 10:60])

    kept = list(ensure_owned(map(crop, range(3))))
    assert [image() for image in whole] == [None] * 3
    assert len(kept) == 3


@pytest.mark.parametrize(
    "make",
    [lambda: np.zeros(10_000)[:, None], lambda: np.zeros((100, 100))[:60, ::-1], lambda: np.zeros(100)[1:2]],
    ids=["all of it", "more than half", "a part of little memory"],
)
def test_a_part_that_wastes_little_memory_is_not_copied(make: Callable[[], Any]) -> None:
    (kept,) = ensure_owned(call() for call in (make,))
    assert kept.base is not None


def test_a_view_of_a_buffer_that_the_user_keeps_is_copied() -> None:
    buffer = np.zeros(4)

    def reuse(x: int) -> Any:
        buffer[:] = x
        return buffer[:2]

    assert [array.tolist() for array in made(reuse)] == [[0, 0], [1, 1], [2, 2]]


def test_a_read_only_view_of_a_writable_buffer_is_copied() -> None:
    buffer = np.zeros(1)

    def reuse(x: int) -> Any:
        buffer[0] = x
        view = buffer[:]
        view.flags.writeable = False
        return view

    assert [float(array[0]) for array in made(reuse)] == [0, 1, 2]


def test_an_array_over_a_bytearray_that_the_user_keeps_is_copied() -> None:
    memory = bytearray(1)

    def reuse(x: int) -> Any:
        memory[0] = x
        return np.frombuffer(memory, np.uint8)

    assert [int(array[0]) for array in made(reuse)] == [0, 1, 2]


KEPT = np.arange(8.0)
KEPT.flags.writeable = False
KEPT_BYTES = bytes(range(1, 9))


@pytest.mark.parametrize(
    "give",
    [
        lambda: KEPT,
        lambda: KEPT[2:4],
        lambda: KEPT.reshape(2, 4)[1],
        lambda: np.frombuffer(KEPT_BYTES, np.uint8),
        lambda: np.frombuffer(KEPT_BYTES, np.uint8).reshape(2, 4)[:, ::-1],
        lambda: np.asarray(memoryview(KEPT)),
        lambda: np.lib.stride_tricks.sliding_window_view(KEPT, 3),
    ],
    ids=["itself", "slice", "row", "array over bytes", "view of that", "memoryview", "windows"],
)
def test_what_the_user_keeps_is_copied_although_numpy_lets_nobody_write_to_it(give: Callable[[], Any]) -> None:
    """torch does, and so would change what the next element, or the next epoch, is made of."""
    for make in (lambda _: give(), lambda _: (give(), 1), lambda _: {"x": give()}):
        for element in made(make):
            array = element["x"] if isinstance(element, dict) else element[0] if isinstance(element, tuple) else element
            np.testing.assert_array_equal(array, give())
            assert not np.shares_memory(array, give())


def test_what_a_function_is_given_and_returns_is_copied() -> None:
    """It may have kept it, as for the next element."""
    given = [np.arange(4), np.arange(4, 8)]
    for function in (lambda x: x, lambda x: x[1:], lambda x: (x, x)):
        for element, array in zip(ensure_owned(map(function, given)), given, strict=True):
            mine = element if isinstance(element, tuple) else (element,)
            assert not any(np.shares_memory(leaf, array) for leaf in mine)
            assert len(mine) == 1 or not np.shares_memory(*mine)


def test_a_record_is_a_view_and_is_copied() -> None:
    table = np.zeros(3, [("a", np.int64), ("b", np.float32)])
    elements = made(lambda number: (table[number], number))
    table["a"] = 7
    assert [int(record["a"]) for record, _ in elements] == [0, 0, 0]


def test_a_dict_that_the_user_keeps_and_changes_is_copied() -> None:
    kept: dict[str, int] = {}

    def reuse(x: int) -> Any:
        kept["x"] = x
        return kept

    assert made(reuse) == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_an_array_that_only_a_shared_tuple_refers_to_is_copied() -> None:
    shared = (np.zeros(1),)

    def reuse(x: int) -> Any:
        shared[0][0] = x
        return shared

    assert [float(array[0]) for (array,) in made(reuse)] == [0, 1, 2]


def test_what_a_generator_yields_is_copied_before_it_goes_on() -> None:
    def generate() -> Iterator[Any]:
        buffer = np.zeros(1)
        for x in range(3):
            buffer[0] = x
            yield {"x": buffer}

    assert [float(element["x"][0]) for element in ensure_owned(generate())] == [0, 1, 2]


def test_something_that_is_no_element_goes_through_as_it_is() -> None:
    image = object()
    assert next(ensure_owned(iter([image]))) is image


@pytest.mark.parametrize("value", [1, 2.0, True, "a", b"a", None, np.float32(1), (1, ("a", np.int64(2)))], ids=repr)
def test_scalars_and_tuples_of_them_are_immutable(value: Any) -> None:
    assert is_immutable(value)
    assert all_immutable([value, value])


@pytest.mark.parametrize("value", [np.zeros(1), [1], {"a": 1}, (1, np.zeros(1)), Ellipsis], ids=repr)
def test_nothing_else_is_immutable(value: Any) -> None:
    assert not is_immutable(value)
    assert not all_immutable([1, value])


def test_one_mutable_dataclass_handed_in_again_and_again_gives_distinct_elements() -> None:
    @dataclass
    class Reading:
        value: int = 0

    reading = Reading()

    def reuse(x: int) -> Reading:
        reading.value = x
        return reading

    elements = made(reuse)
    assert [element.value for element in elements] == [0, 1, 2]
    assert type(elements[0]) is Reading

"""Ranges against plain sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsnb.wire.ranges import Ranges, split_ranges

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def numbers(some: list[tuple[int, int]]) -> set[int]:
    return {number for first, end in some for number in range(first, end)}


@given(pairs)
def test_ranges_hold_what_was_added_in_as_few_ranges_as_possible(some: list[tuple[int, int]]) -> None:
    ranges, expected = Ranges(some), numbers(some)
    assert {number for first, end in ranges for number in range(first, end)} == expected
    assert len(ranges) == len(expected)
    assert ranges.end == max(expected, default=-1) + 1
    assert all(end < following for (_, end), (following, _) in zip(ranges.pairs(), ranges.pairs()[1:], strict=False))
    assert [number for number in range(80) if number in ranges] == sorted(expected)


@given(pairs, st.integers(0, 80))
def test_a_gap_is_the_first_stretch_that_is_missing(some: list[tuple[int, int]], at: int) -> None:
    expected = numbers(some)
    first, end = Ranges(some).gap(at)
    assert first == next(number for number in range(at, 200) if number not in expected)
    assert end == next((number for number in range(first, 200) if number in expected), None)


@given(pairs, st.integers(0, 80), st.integers(0, 80))
def test_parts_between_two_numbers(some: list[tuple[int, int]], first: int, end: int) -> None:
    ranges = Ranges(some)
    assert numbers(list(ranges.within(first, end))) == numbers(some) & set(range(first, end))


@given(pairs, st.integers(0, 80), st.integers(0, 80))
def test_what_is_removed_is_gone_and_nothing_else(some: list[tuple[int, int]], first: int, end: int) -> None:
    ranges = Ranges(some)
    ranges.remove(first, end)
    assert numbers(list(ranges)) == numbers(some) - set(range(first, end))
    assert all(first < end for first, end in ranges)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12))), st.integers(0, 100))
def test_a_prefix_follows_the_order_of_the_list(some: list[tuple[int, int]], count: int) -> None:
    listed = [(first, first + length) for first, length in some]
    flat = [number for first, end in listed for number in range(first, end)]
    before, after = split_ranges(listed, count)
    assert [number for first, end in before for number in range(first, end)] == flat[:count]
    assert [number for first, end in after for number in range(first, end)] == flat[count:]

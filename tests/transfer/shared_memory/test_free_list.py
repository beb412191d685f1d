"""Pieces of a memory never overlap, and come together again."""

from __future__ import annotations

from mmap import PAGESIZE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.transfer.shared_memory.free_list import FreeList, round_up_to_pages

PAGES = 16


@given(st.lists(st.integers(0, 5 * PAGESIZE) | st.integers(0, 30).map(lambda n: -n), max_size=60))
def test_pieces_are_whole_pages_that_nobody_else_has(steps: list[int]) -> None:
    """A step above 0 takes so many bytes; one below gives the piece of that number back."""
    free, taken = FreeList(PAGES * PAGESIZE), {}
    for step in steps:
        if step > 0:
            at = free.allocate(step)
            longest = max(map(len, "".join("x" if page in pages(taken) else " " for page in range(PAGES)).split("x")))
            assert (at is None) == (round_up_to_pages(step) > longest * PAGESIZE), "there was room, or there was none"
            if at is not None:
                assert at % PAGESIZE == 0
                assert not pages(taken) & pages({at: step})
                taken[at] = step
        elif taken:
            at = sorted(taken)[-step % len(taken)]
            free.free(at, taken.pop(at))
        assert free.nbytes == PAGES * PAGESIZE - sum(map(round_up_to_pages, taken.values()))
    for at, nbytes in taken.items():
        free.free(at, nbytes)
    assert free.allocate(PAGES * PAGESIZE) == 0, "the pieces did not come together"


def pages(taken: dict[int, int]) -> set[int]:
    """The pages of pieces."""
    return {page for at, nbytes in taken.items() for page in range(at // PAGESIZE, -(-(at + nbytes) // PAGESIZE))}


def test_the_lowest_place_is_taken_first() -> None:
    free = FreeList(4 * PAGESIZE)
    assert [free.allocate(PAGESIZE) for _ in range(3)] == [0, PAGESIZE, 2 * PAGESIZE]
    free.free(PAGESIZE, PAGESIZE)
    free.free(0, 1)
    assert free.allocate(1) == 0


@pytest.mark.parametrize("limit, left", [(0, None), (2, 1), (4, 1)])
def test_a_memory_that_came_out_smaller_ends_earlier(limit: int, left: int | None) -> None:
    free = FreeList(4 * PAGESIZE)
    free.allocate(PAGESIZE)
    free.truncate(limit * PAGESIZE)
    assert free.allocate(PAGESIZE) == (None if left is None else left * PAGESIZE)
    assert free.allocate(4 * PAGESIZE) is None

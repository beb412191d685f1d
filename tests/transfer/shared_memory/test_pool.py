"""A frame is written once, and its slab is used again when nobody looks at it and nobody may ask for it."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.elements.columns import lay_out
from dsnb.elements.frame import Frame, frames_of
from dsnb.transfer.frame_codec import decode_slice
from dsnb.transfer.protocol import FrameSlice
from dsnb.transfer.shared_memory.memory import PrivateMapping
from dsnb.transfer.shared_memory.pool import Pool, Slab
from tests.transfer.shared_memory.test_memory import PAGE, room_for

SIZE = 16 * PAGE


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(SIZE)
    yield made
    made.close()


def piece_of(pages: int, value: int = 0) -> FrameSlice:
    (frame,) = frames_of([np.full(pages * PAGE, value, np.uint8)], None)
    assert isinstance(frame, Frame)
    return FrameSlice(frame, 100, 0, 1, 1)


def held(pool: Pool, piece: FrameSlice) -> Slab:
    slab = pool.acquire("t", piece)
    assert slab is not None
    return slab


def elements(pool: Pool, slab: Slab) -> list[Any]:
    body = PrivateMapping(pool.memory.descriptor, pool.memory.size).base_array(slab.at, slab.nbytes)
    return list(decode_slice(slab.header, 0, body).elements())


def test_a_frame_is_written_once_for_all_its_readers(pool: Pool) -> None:
    piece = piece_of(2, 7)
    slab = held(pool, piece)
    assert held(pool, piece) is slab
    assert pool.used_bytes == 2 * PAGE
    assert np.array_equal(elements(pool, slab), [piece.elements()[0]])


def test_a_slab_goes_when_its_frame_and_its_last_reader_have_gone(pool: Pool) -> None:
    piece = piece_of(2)
    slab = held(pool, piece)
    held(pool, piece)
    pool.release(slab)
    del piece
    gc.collect()
    assert pool.used_bytes == 2 * PAGE, "a reader looks at it"
    pool.release(slab)
    assert pool.used_bytes == 0


@pytest.mark.slow
def test_a_slab_that_nobody_holds_stays_while_its_frame_may_be_asked_for(pool: Pool) -> None:
    piece = piece_of(2)
    slab = held(pool, piece)
    pool.release(slab)
    assert pool.used_bytes == 2 * PAGE
    assert held(pool, piece) is slab
    pool.release(slab)
    del piece
    gc.collect()
    assert pool.used_bytes == 0


def test_room_is_made_by_what_was_released_longest_ago(pool: Pool) -> None:
    pieces = [piece_of(5, value) for value in range(3)]
    slabs = [held(pool, piece) for piece in pieces]
    for place in (1, 0):
        pool.release(slabs[place])
    newcomer = held(pool, piece_of(4, 9))
    assert (pieces[0].frame.slab, pieces[1].frame.slab) == (slabs[0], None)
    assert newcomer.at == slabs[1].at
    assert np.array_equal(elements(pool, slabs[2]), [pieces[2].elements()[0]]), "one that is held is left alone"
    again = held(pool, pieces[1])  # for which the other idle one has to go
    assert np.array_equal(elements(pool, again), [pieces[1].elements()[0]])


def test_where_all_is_held_there_is_no_room(pool: Pool) -> None:
    pieces = [piece_of(8), piece_of(8)]
    slabs = [held(pool, piece) for piece in pieces]
    assert pool.acquire("t", piece_of(1)) is None
    assert pool.shortage == ""
    pool.release(slabs[0])
    assert pool.acquire("t", piece_of(1)) is not None


def test_what_the_host_refuses_is_told_and_the_rest_is_used(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with room_for(6 * PAGE, monkeypatch):
        slab = held(pool, piece_of(4))
        assert pool.acquire("t", piece_of(4)) is None
        assert (pool.shortage, pool.size) == ("No space left on device", 4 * PAGE)
        pool.release(slab)
        assert held(pool, piece_of(3)).at == 0


def test_a_worker_that_nobody_reads_takes_no_memory(pool: Pool) -> None:
    slab = held(pool, piece := piece_of(3))
    pool.release_when_unused()
    assert pool.memory.reserved == 3 * PAGE, "somebody looks at it"
    pool.release(slab)
    pool.release_when_unused()
    assert pool.memory.reserved == 0
    assert np.array_equal(elements(pool, held(pool, piece)), [piece.elements()[0]])


def test_a_slab_holds_its_whole_frame_whatever_part_is_asked_for_first(pool: Pool) -> None:
    rows = np.arange(PAGE, dtype=np.int64).reshape(8, -1)
    (frame,) = frames_of(rows, None)
    assert isinstance(frame, Frame)
    slab = held(pool, FrameSlice(frame, 105, 5, 2, 1))
    whole = decode_slice(
        slab.header, 100, PrivateMapping(pool.memory.descriptor, SIZE).base_array(slab.at, slab.nbytes)
    )
    assert (whole.index, whole.count) == (100, 8)
    assert np.array_equal(np.stack(list(whole.elements())), rows)


# ---- frames that move in


def movable(pages: int, value: int = 0) -> FrameSlice:
    (frame,) = frames_of([np.full(pages * PAGE, value, np.uint8)], None, packed=True)
    assert isinstance(frame, Frame)
    return FrameSlice(frame, 100, 0, 1, 1)


def test_a_frame_that_moves_in_is_in_memory_once_and_takes_its_room_as_long_as_it_lives(pool: Pool) -> None:
    source = np.full(2 * PAGE, 7, np.uint8)
    (frame,) = frames_of([source], None, packed=True)
    assert isinstance(frame, Frame)
    gone = weakref.ref(source)
    del source
    piece = FrameSlice(frame, 100, 0, 1, 1)
    pool.prepare("t", piece)
    assert gone() is None, "what was laid out is nowhere else"
    assert (next(iter(piece.elements())) == 7).all()
    slab = held(pool, piece)
    assert np.array_equal(elements(pool, slab), list(piece.elements()))
    pool.release(slab)
    pool.release_when_unused()
    assert pool.used_bytes == 2 * PAGE
    del piece, frame
    assert pool.used_bytes == 0


def test_a_reader_keeps_the_slab_of_a_frame_that_moved_in_and_is_gone(pool: Pool) -> None:
    piece = movable(2, 7)
    slab = held(pool, piece)
    del piece
    assert pool.used_bytes == 2 * PAGE
    assert np.array_equal(elements(pool, slab), [np.full(2 * PAGE, 7, np.uint8)])
    pool.release(slab)
    assert pool.used_bytes == 0


def test_a_frame_that_moves_on_leaves_its_slab_and_may_come_again(pool: Pool) -> None:
    """As where a reader over gRPC has it encoded."""
    piece = movable(2, 7)
    pool.prepare("t", piece)
    layouts, buffers, _ = lay_out(piece.frame.columns, 0, 1)
    piece.frame.move_into(layouts, np.frombuffer(b"".join(buffers), np.uint8))
    del buffers
    assert pool.used_bytes == 0
    assert np.array_equal(elements(pool, held(pool, piece)), [np.full(2 * PAGE, 7, np.uint8)])


def test_no_frame_that_lives_here_alone_makes_room_for_another_and_a_quarter_is_left_for_those_beside(
    pool: Pool,
) -> None:
    alone = [movable(6, 1), movable(6, 2)]
    beside = movable(4, 3)
    for piece in (*alone, beside):
        pool.release(held(pool, piece))
    pool.prepare("t", movable(1, 4))
    last = held(pool, movable(4, 5))  # for which only what lies elsewhere too goes
    assert [piece.frame.slab is None for piece in (*alone, beside)] == [False, False, True]
    assert [int(next(iter(piece.elements()))[-1]) for piece in (*alone, beside)] == [1, 2, 3]
    assert pool.acquire("t", movable(1, 6)) is None
    pool.release(last)


def test_what_lies_beside_its_frame_is_counted_with_it_and_what_moved_in_is_not_counted_twice(pool: Pool) -> None:
    charged: list[int] = []

    def charge(nbytes: int) -> bool:
        charged.append(nbytes)
        return len(charged) == 1

    for piece in (there := [piece_of(2), movable(2), piece_of(2)]):
        piece.frame.reserve_encoded_bytes = charge
        pool.release(held(pool, piece))
    assert charged == [2 * PAGE, 2 * PAGE]
    assert pool.used_bytes == 4 * PAGE, "the last one may not be kept beside its frame"
    assert there[2].frame.slab is None


def test_memory_is_given_back_when_the_last_frame_goes_after_the_last_reader() -> None:
    told: list[int] = []
    pool = Pool(SIZE, lambda: told.append(1))
    piece = movable(2)
    pool.release(held(pool, piece))
    pool.release_when_unused()
    assert (pool.memory.reserved, told) == (2 * PAGE, [])
    del piece
    assert told == [1]
    pool.release_when_unused()
    assert pool.memory.reserved == 0
    pool.close()


def laid_out(pool: Pool, pages: int, value: int = 0) -> Any:
    """An array that was laid out in a piece of the pool."""
    place = pool.allocate(pages * PAGE)
    assert place is not None
    place[:] = value
    return place.view()


def frame_of(*elements: Any) -> Frame:
    (frame,) = frames_of(list(elements), None, packed=True)
    assert isinstance(frame, Frame)
    return frame


def test_an_element_that_was_laid_out_there_is_not_written_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    array = laid_out(pool, 2, 7)
    label = np.array([5, 6], np.int64)
    both = pool.allocate(2 * PAGE + 16)
    assert both is not None
    both[:] = 8
    monkeypatch.setattr(pool.memory, "write", lambda *_: pytest.fail("it was written"))
    one, two = frame_of(array), frame_of((both[: 2 * PAGE], label))
    for frame, nbytes, value in ((one, 2 * PAGE, 7), (two, 2 * PAGE + 16, 8)):
        pool.prepare("t", FrameSlice(frame, 1, 0, 1, 1))
        slab = held(pool, FrameSlice(frame, 1, 0, 1, 1))
        assert slab.nbytes == nbytes
        (element,) = elements(pool, slab)
        large = element[0] if isinstance(element, tuple) else element
        assert set(large.tolist()) == {value}
        pool.release(slab)


@pytest.mark.slow
def test_a_piece_is_free_again_when_nobody_refers_to_it(pool: Pool) -> None:
    array = laid_out(pool, 2)
    part = array[5:9]
    del array
    gc.collect()
    assert pool.used_bytes == 2 * PAGE
    del part
    gc.collect()
    assert pool.used_bytes == 0
    assert pool.allocate(SIZE // 2) is not None, "nor does it count any more"


def test_an_element_that_was_laid_out_there_lives_as_one_that_moved_in(pool: Pool) -> None:
    frame = frame_of(laid_out(pool, 2, 3))
    slab = held(pool, FrameSlice(frame, 1, 0, 1, 1))
    assert pool.used_bytes == 2 * PAGE
    del frame
    gc.collect()
    assert pool.used_bytes == 2 * PAGE, "a reader looks at it"
    pool.release(slab)
    assert pool.used_bytes == 0


def test_no_more_is_laid_out_there_than_may_move_in(pool: Pool) -> None:
    kept = [laid_out(pool, 4) for _ in range(3)]
    assert pool.allocate(PAGE) is None, "a quarter is for what readers hold and nobody else needs"
    del kept[0]
    gc.collect()
    assert pool.allocate(PAGE) is not None


def test_what_its_frame_wants_otherwise_is_written_as_any_other(pool: Pool) -> None:
    larger = laid_out(pool, 2, 1)
    frame = frame_of(larger[:PAGE])
    slab = held(pool, FrameSlice(frame, 1, 0, 1, 1))
    assert slab.nbytes == PAGE
    np.testing.assert_array_equal(elements(pool, slab)[0], np.ones(PAGE))
    both = frame_of(laid_out(pool, 1, 2), laid_out(pool, 1, 3))
    slab = held(pool, FrameSlice(both, 1, 0, 2, 1))
    assert [element[0] for element in elements(pool, slab)] == [2, 3]


def in_bytes() -> Any:
    return np.frombuffer(bytes([7]) * PAGE, np.uint8)


def in_anonymous_memory() -> Any:
    memory = mmap.mmap(-1, PAGE)
    memory[:] = bytes([7]) * PAGE
    return np.frombuffer(memory, np.uint8)


def in_an_array() -> Any:
    return np.full(3 * PAGE, 7, np.uint8)[PAGE : 2 * PAGE]


def in_a_memoryview() -> Any:
    return np.asarray(memoryview(bytearray([7]) * PAGE))


@pytest.mark.parametrize("make", [in_bytes, in_anonymous_memory, in_an_array, in_a_memoryview])
def test_what_lies_in_memory_of_any_other_kind_is_written_as_ever(pool: Pool, make: Callable[[], Any]) -> None:
    kept = laid_out(pool, 1)
    for frame in (frame_of(make()), frame_of((make(), np.int64(3)))):
        pool.prepare("t", FrameSlice(frame, 1, 0, 1, 1))
        (element,) = elements(pool, held(pool, FrameSlice(frame, 1, 0, 1, 1)))
        assert set((element[0] if isinstance(element, tuple) else element).tolist()) == {7}
    assert not kept.any()


def test_there_is_no_room_where_nobody_reads_or_the_pool_is_closed(pool: Pool) -> None:
    pool.release_when_unused()
    assert pool.allocate(PAGE) is None
    assert pool.memory.reserved == 0
    other = Pool(SIZE)
    place = other.allocate(PAGE)
    assert place is not None
    other.close()
    place[:] = 1
    assert other.allocate(PAGE) is None

"""A frame is written once, and its slab is used again when nobody looks at it and nobody may ask for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.elements.frame import Frame, frames_of
from dsnb.wire.transfer.encoding import restore
from dsnb.wire.transfer.handover import Piece
from dsnb.wire.transfer.shared_memory.memory import Mapping
from dsnb.wire.transfer.shared_memory.pool import Pool, Slab
from tests.wire.transfer.shared_memory.test_memory import PAGE, room_for

SIZE = 16 * PAGE


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(SIZE)
    yield made
    made.close()


def piece_of(pages: int, value: int = 0) -> Piece:
    (frame,) = frames_of([np.full(pages * PAGE, value, np.uint8)], None)
    assert isinstance(frame, Frame)
    return Piece(frame, 100, 0, 1, 1)


def held(pool: Pool, piece: Piece) -> Slab:
    slab = pool.hold("t", piece)
    assert slab is not None
    return slab


def elements(pool: Pool, slab: Slab) -> list[Any]:
    body = Mapping(pool.memory.descriptor, pool.memory.size).root(slab.at, slab.nbytes)
    return list(restore(slab.head, body).elements())


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
    assert (pieces[0].frame.shared, pieces[1].frame.shared) == (slabs[0], None)
    assert newcomer.at == slabs[1].at
    assert np.array_equal(elements(pool, slabs[2]), [pieces[2].elements()[0]]), "one that is held is left alone"
    again = held(pool, pieces[1])  # for which the other idle one has to go
    assert np.array_equal(elements(pool, again), [pieces[1].elements()[0]])


def test_where_all_is_held_there_is_no_room(pool: Pool) -> None:
    pieces = [piece_of(8), piece_of(8)]
    slabs = [held(pool, piece) for piece in pieces]
    assert pool.hold("t", piece_of(1)) is None
    assert pool.short == ""
    pool.release(slabs[0])
    assert pool.hold("t", piece_of(1)) is not None


def test_what_the_host_refuses_is_told_and_the_rest_is_used(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with room_for(6 * PAGE, monkeypatch):
        slab = held(pool, piece_of(4))
        assert pool.hold("t", piece_of(4)) is None
        assert (pool.short, pool.size) == ("No space left on device", 4 * PAGE)
        pool.release(slab)
        assert held(pool, piece_of(3)).at == 0


def test_a_worker_that_nobody_reads_takes_no_memory(pool: Pool) -> None:
    slab = held(pool, piece := piece_of(3))
    pool.rest()
    assert pool.memory.reserved == 3 * PAGE, "somebody looks at it"
    pool.release(slab)
    pool.rest()
    assert pool.memory.reserved == 0
    assert np.array_equal(elements(pool, held(pool, piece)), [piece.elements()[0]])


def test_a_slab_holds_its_whole_frame_whatever_part_is_asked_for_first(pool: Pool) -> None:
    rows = np.arange(PAGE, dtype=np.int64).reshape(8, -1)
    (frame,) = frames_of(rows, None)
    assert isinstance(frame, Frame)
    slab = held(pool, Piece(frame, 105, 5, 2, 1))
    whole = restore(slab.head, Mapping(pool.memory.descriptor, SIZE).root(slab.at, slab.nbytes))
    assert (whole.index, whole.count) == (100, 8)
    assert np.array_equal(np.stack(list(whole.elements())), rows)

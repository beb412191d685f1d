from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.cache.recordings.recording import (
    FrameRef,
    LeaseTaken,
    Record,
    RecordingAbandoned,
    RecordingEnded,
    RecordingHeader,
    SplitChunk,
    decode_record,
    encode_record,
)
from dsnb.cache.recordings.split_log import SplitLog, elements_before, run_length_encode
from dsnb.errors import DataLossError

BEGIN = RecordingHeader(entropy=7, repeatable=True, pipeline="range(10)")


def piece(first: int, *counts: int) -> SplitChunk:
    total = sum(counts)
    places = (FrameRef(name=f"{first}", offset=0, nbytes=8, count=total, digest=""),) if total else ()
    return SplitChunk(first=first, counts=run_length_encode(counts), frames=places)


def log_of(*records: Record) -> SplitLog:
    log = SplitLog()
    for record in (BEGIN, *records):
        log.apply(record)
    return log


def test_a_piece_is_read_as_it_was_written() -> None:
    assert decode_record(encode_record(piece(3, 1, 1, 0, 5))) == piece(3, 1, 1, 0, 5)


def test_a_run_of_splits_is_cut_into_what_is_recorded_and_what_is_not() -> None:
    log = log_of(piece(10, 1, 1), piece(4, 2, 0, 3))
    cut = [(first, end, found.first if found else None) for first, end, found in log.partition(3, 14)]
    assert cut == [(3, 4, None), (4, 7, 4), (7, 10, None), (10, 12, 10), (12, 14, None)]
    assert list(log.partition(5, 6)) == [(5, 6, piece(4, 2, 0, 3))]
    assert (log.recorded_splits, log.elements) == (5, 7)


def test_of_two_that_recorded_the_same_split_the_first_counts() -> None:
    log = log_of(piece(4, 1, 1), piece(5, 1, 1), piece(3, 1, 1), piece(6, 1))
    assert [(first, end) for first, end, found in log.partition(0, 9) if found] == [(4, 6), (6, 7)]
    assert log.recorded_splits == 3


@pytest.mark.parametrize(
    "record",
    [
        BEGIN,
        LeaseTaken(epoch=1, holder="h", name="n"),
        SplitChunk(first=0, counts=(), frames=()),
        SplitChunk(first=0, counts=((2, 1),), frames=()),
    ],
    ids=["begin", "take", "empty", "short"],
)
def test_what_cannot_stand_there_is_damage(record: Record) -> None:
    with pytest.raises(DataLossError):
        log_of(record)


def test_nothing_follows_what_was_abandoned() -> None:
    with pytest.raises(DataLossError):
        log_of(RecordingAbandoned(why=""), RecordingEnded(epoch=0, elements=0))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_elements_are_counted_up_to_any_split(counts: list[int], data: st.DataObject) -> None:
    found = piece(5, *counts)
    split = data.draw(st.integers(0, len(counts)))
    assert elements_before(found, 5 + split) == sum(counts[:split])


@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 2), min_size=1, max_size=6)), max_size=12))
def test_every_split_is_in_one_piece_at_most_and_a_cut_covers_all(pieces: list[tuple[int, list[int]]]) -> None:
    log = log_of(*(piece(first, *counts) for first, counts in pieces))
    cut = list(log.partition(0, 50))
    assert [first for first, _, _ in cut] == [0, *(end for _, end, _ in cut[:-1])]
    assert sum(end - first for first, end, found in cut if found) == log.recorded_splits
    for first, end, found in cut:
        if found is not None:
            assert found.first <= first < end <= found.first + sum(times for _, times in found.counts)

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsnb.cache.recordings.recording import (
    Chunk,
    FrameRef,
    LeaseReleased,
    LeaseTaken,
    LeaseWatch,
    ReaderAction,
    Record,
    RecordingAbandoned,
    RecordingEnded,
    RecordingHeader,
    RecordingLog,
    decode_record,
    encode_record,
    next_action,
)
from dsnb.errors import DataLossError, FailedPreconditionError

BEGIN = RecordingHeader(entropy=7, repeatable=True, pipeline="range(10)")
ONCE = RecordingHeader(entropy=7, repeatable=False, pipeline="range(10)")


def place(count: int, name: str = "a") -> FrameRef:
    return FrameRef(name=name, offset=0, nbytes=8 * count, count=count, digest="d")


def chunk(epoch: int, first: int, *counts: int) -> Chunk:
    return Chunk(epoch=epoch, first=first, count=sum(counts), frames=tuple(map(place, counts)))


def take(epoch: int) -> LeaseTaken:
    return LeaseTaken(epoch=epoch, holder=f"h{epoch}", name=f"process {epoch}")


def log_of(*records: Record) -> RecordingLog:
    log = RecordingLog()
    for record in records:
        log.apply(record)
    return log


@pytest.mark.parametrize(
    "record",
    [
        BEGIN,
        take(3),
        chunk(2, 5, 1, 2),
        LeaseReleased(epoch=1),
        RecordingEnded(epoch=1, elements=3),
        RecordingAbandoned(why="ü"),
    ],
)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_record_with_a_changed_byte_is_damaged(index: int, change: int) -> None:
    data = bytearray(encode_record(chunk(2, 5, 1, 2)))
    data[index % len(data)] ^= change
    with pytest.raises(DataLossError):
        decode_record(bytes(data))


@given(st.binary(max_size=200))
def test_anything_else_is_damaged(data: bytes) -> None:
    with pytest.raises(DataLossError):
        decode_record(data)


def test_a_record_of_a_newer_version_is_refused_and_not_called_damaged() -> None:
    with pytest.raises(FailedPreconditionError, match="newer version"):
        decode_record(encode_record(RecordingHeader(entropy=1, repeatable=True, pipeline="", version=2)))


@pytest.mark.parametrize(
    "before,record",
    [
        ([], take(1)),
        ([BEGIN], BEGIN),
        ([BEGIN], chunk(0, 0, 1)),
        ([BEGIN], take(2)),
        ([BEGIN, take(1)], take(1)),
        ([BEGIN, take(1)], chunk(1, 1, 1)),
        ([BEGIN, take(1)], Chunk(epoch=1, first=0, count=3, frames=(place(2),))),
        ([BEGIN, take(1)], Chunk(epoch=1, first=0, count=0, frames=())),
        ([BEGIN, take(1), take(2)], chunk(1, 0, 1)),
        ([BEGIN, take(1), take(2)], LeaseReleased(epoch=1)),
        ([BEGIN, take(1), take(2)], RecordingEnded(epoch=1, elements=0)),
        ([BEGIN, take(1)], RecordingEnded(epoch=1, elements=1)),
        ([BEGIN, take(1), LeaseReleased(epoch=1)], chunk(1, 0, 1)),
        ([BEGIN, take(1), RecordingEnded(epoch=1, elements=0)], take(2)),
        ([BEGIN, take(1), RecordingEnded(epoch=1, elements=0)], chunk(1, 0, 1)),
        ([BEGIN, RecordingAbandoned(why="")], RecordingAbandoned(why="")),
        ([BEGIN, RecordingAbandoned(why="")], take(1)),
    ],
)
def test_a_record_that_cannot_stand_there_is_damage(before: list[Record], record: Record) -> None:
    log = log_of(*before)
    with pytest.raises(DataLossError, match=f"slot {len(before)}"):
        log.apply(record)
    assert log.next_slot == len(before)


def test_a_finished_recording_can_still_be_abandoned() -> None:
    assert (
        log_of(BEGIN, take(1), RecordingEnded(epoch=1, elements=0), RecordingAbandoned(why="damaged")).abandoned
        == "damaged"
    )


def test_each_element_is_found_in_its_frame() -> None:
    log = log_of(BEGIN, take(1), chunk(1, 0, 2, 3), chunk(1, 5, 1))
    assert [log.frame_at(position)[0] for position in range(6)] == [0, 0, 2, 2, 2, 5]
    assert log.elements == 6
    assert [found.count for found in log.frame_refs] == [2, 3, 1]


HALF = [take(1), chunk(1, 0, 2)]


@pytest.mark.parametrize(
    "records,position,lost,wanted",
    [
        ([BEGIN], 0, False, ReaderAction.TAKE_LEASE),
        ([BEGIN, *HALF], 1, False, ReaderAction.READ),
        ([BEGIN, *HALF], 2, False, ReaderAction.WAIT),
        ([BEGIN, *HALF], 2, True, ReaderAction.TAKE_LEASE),
        ([BEGIN, *HALF, LeaseReleased(epoch=1)], 2, False, ReaderAction.TAKE_LEASE),
        ([BEGIN, *HALF, RecordingEnded(epoch=1, elements=2)], 2, True, ReaderAction.FINISH),
        ([BEGIN, *HALF, RecordingEnded(epoch=1, elements=2)], 0, True, ReaderAction.READ),
        ([BEGIN, *HALF, RecordingAbandoned(why="")], 0, False, ReaderAction.OPEN_NEXT),
        ([BEGIN, *HALF, RecordingAbandoned(why="")], 1, False, ReaderAction.OPEN_NEXT),
        ([ONCE, *HALF, RecordingAbandoned(why="")], 0, False, ReaderAction.OPEN_NEXT),
        ([ONCE, *HALF, RecordingAbandoned(why="")], 1, False, ReaderAction.STRANDED),
        ([ONCE, take(1)], 0, True, ReaderAction.TAKE_LEASE),
        ([ONCE, *HALF], 0, False, ReaderAction.READ),
        ([ONCE, *HALF], 2, False, ReaderAction.WAIT),
        ([ONCE, *HALF], 0, True, ReaderAction.ABANDON),
        ([ONCE, *HALF, LeaseReleased(epoch=1)], 0, False, ReaderAction.ABANDON),
        ([ONCE, *HALF], 1, True, ReaderAction.READ),
        ([ONCE, *HALF], 2, True, ReaderAction.STRANDED),
        ([ONCE, *HALF, RecordingEnded(epoch=1, elements=2)], 0, True, ReaderAction.READ),
    ],
)
def test_what_a_reader_does_next(records: list[Record], position: int, lost: bool, wanted: ReaderAction) -> None:
    assert next_action(log_of(*records), position, seen=position > 0, holder_lost=lost) is wanted


# ------------------------------------------------------------------------------------------------------------ the lease


def test_a_holder_without_a_pulse_is_lost_after_the_lease() -> None:
    watch = LeaseWatch(4.0)
    assert [watch.has_expired(1, 0, now) for now in (10.0, 11.0, 12.0, 13.0, 14.0)] == [
        False,
        False,
        False,
        False,
        True,
    ]


def test_a_pulse_begins_the_lease_anew() -> None:
    watch = LeaseWatch(2.0)
    looks = [
        watch.has_expired(1, pulse, now) for pulse, now in [(0, 0.0), (0, 0.5), (0, 1.0), (1, 1.5), (1, 2.0), (1, 2.5)]
    ]
    assert not any(looks)


def test_another_holder_is_another_lease() -> None:
    watch = LeaseWatch(1.0)
    for now in (0.0, 0.25, 0.5, 0.75):
        assert not watch.has_expired(1, 0, now)
    assert not watch.has_expired(2, 0, 1.0)


def test_an_observer_that_slept_does_not_take_its_own_sleep_for_the_holder_s() -> None:
    watch = LeaseWatch(4.0)
    assert not watch.has_expired(1, 0, 0.0)
    assert not watch.has_expired(1, 0, 1000.0)


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=50), st.floats(min_value=0.1, max_value=20))
def test_a_lease_is_never_over_too_early(steps: list[float], lease: float) -> None:
    watch = LeaseWatch(lease)
    now = 0.0
    watch.has_expired(1, 0, now)
    for step in steps:
        now += step
        if watch.has_expired(1, 0, now):
            assert now >= lease * 0.999


# --------------------------------------------------------------------------------------- many participants, one log


LENGTH = 12


class Participant:
    """A run as the shell drives one: it knows a part of the log, reads, and writes when it is its turn."""

    def __init__(self, slots: list[Record]) -> None:
        self.slots = slots
        self.log = RecordingLog()
        self.seen: list[int] = []
        self.epoch = 0
        self.made: list[int] = []
        self.done = self.alone = False

    def refresh(self) -> None:
        while self.log.next_slot < len(self.slots):
            self.log.apply(self.slots[self.log.next_slot])

    def claim(self, record: Record) -> bool:
        assert self.log.admits(record)
        if len(self.slots) > self.log.next_slot:
            self.refresh()
            return False
        self.slots.append(record)
        self.refresh()
        return True


class ManyRuns(RuleBasedStateMachine):
    """Participants step in any order, stop at any moment, and wake up with what they knew then.

    A chunk's places carry the numbers of its elements, so that what is read can be compared with what is right.
    """

    runs = Bundle("runs")

    @initialize()
    def begin(self) -> None:
        self.slots: list[Record] = [BEGIN]
        self.maps = 0
        self.losses = 0
        self.all: list[Participant] = []

    @rule(target=runs)
    def start(self) -> Participant:
        run = Participant(self.slots)
        self.all.append(run)
        return run

    @rule(run=runs)
    def refresh(self, run: Participant) -> None:
        run.refresh()

    @rule(run=runs, lost=st.booleans())
    def step(self, run: Participant, lost: bool) -> None:
        """Act on what is known: perhaps old, perhaps with a wrong opinion of the holder."""
        writing = run.epoch and run.epoch == run.log.epoch and run.log.holder is not None
        if run.done or writing:
            return
        action = next_action(run.log, len(run.seen), seen=bool(run.seen), holder_lost=lost) if run.log.header else None
        if action is ReaderAction.READ:
            first, place = run.log.frame_at(len(run.seen))
            assert place.name == f"{first}"
            run.seen += range(first, first + place.count)
        elif action is ReaderAction.FINISH:
            run.done = True
        elif action is ReaderAction.TAKE_LEASE and run.claim(take(run.log.epoch + 1)):
            run.epoch = run.log.epoch
            self.losses += len(run.made)  # of an epoch whose end it had only now learnt of
            run.made = []

    @rule(run=runs)
    def produce(self, run: Participant) -> None:
        position = run.log.elements + len(run.made)
        if run.epoch and run.epoch == run.log.epoch and run.log.holder and position < LENGTH:
            run.made.append(position)
            self.maps += 1

    @rule(run=runs)
    def commit(self, run: Participant) -> None:
        if not (run.epoch and run.epoch == run.log.epoch and run.log.holder):
            return
        record: Record
        if run.made:
            first = run.log.elements
            places = (place(len(run.made), f"{first}"),)
            record = Chunk(epoch=run.epoch, first=first, count=len(run.made), frames=places)
        elif run.log.elements == LENGTH:
            record = RecordingEnded(epoch=run.epoch, elements=LENGTH)
        else:
            record = LeaseReleased(epoch=run.epoch)
        if not run.claim(record):
            assert run.log.epoch > run.epoch, "a writer is refused only where another one took over"
            self.losses += len(run.made)
        run.made = []

    @precondition(lambda self: self.all)
    @rule()
    def all_finish(self) -> None:
        """Whatever happened, fair turns bring everybody to the end."""
        for _ in range(20 * LENGTH):
            for run in self.all:
                run.refresh()
                self.step(run, lost=run.log.holder is not None and len(run.seen) >= run.log.elements)
                self.produce(run)
                self.commit(run)
        assert all(run.done or run.log.ended for run in self.all)

    @invariant()
    def elements_come_in_order_and_once(self) -> None:
        assert all(run.seen == list(range(len(run.seen))) for run in getattr(self, "all", []))

    @invariant()
    def everybody_who_finished_saw_everything(self) -> None:
        assert all(len(run.seen) == LENGTH for run in getattr(self, "all", []) if run.done)

    @invariant()
    def the_log_is_what_everybody_may_apply_and_no_call_is_unaccounted_for(self) -> None:
        log = log_of(*getattr(self, "slots", []))
        uncommitted = sum(len(run.made) for run in getattr(self, "all", []))
        assert getattr(self, "maps", 0) == log.elements + getattr(self, "losses", 0) + uncommitted


ManyRuns.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestManyRuns = ManyRuns.TestCase

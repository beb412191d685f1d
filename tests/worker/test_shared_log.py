"""The window under every schedule that hypothesis thinks of, against books that are kept element by element."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dsnb.wire.messages import CachePolicy
from dsnb.worker.shared_log import SharedLog
from tests.worker.books import BookedReader, Books

T = TypeVar("T")
CAPACITY = 800
AHEAD = 300
pick = st.integers(0, 63)


def one(things: Sequence[T], number: int) -> T:
    """The thing that a drawn number stands for."""
    return things[number % len(things)]


class WindowMachine(RuleBasedStateMachine):
    """Producing, reading, consuming, leaving and coming back, in any order."""

    keep = True
    largest = CAPACITY // 8
    most = CAPACITY
    trainers: tuple[str, ...] = ("a", "b", "c")
    manners: Mapping[str, CachePolicy] = {}
    disk = 0
    whole = False

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(
            capacity=CAPACITY, ahead=AHEAD, keep=self.keep, disk=self.disk, whole=self.whole, stepwise=True
        )
        self.books.manners.update(self.manners)
        self.made = 0

    @initialize(granted=st.integers(1, 30))
    def a_first_reader(self, granted: int) -> None:
        """The first read starts the pipeline, so nothing is produced before somebody is there."""
        self.reader_comes(0, 0, granted)

    def readers(self) -> list[BookedReader]:
        return list(self.books.readers.values())

    # ---- the producer

    @precondition(lambda self: self.books.window.wants_more())
    @rule(sizes=st.binary(min_size=4, max_size=32), odd=st.booleans())
    def elements_are_produced(self, sizes: bytes, odd: bool) -> None:
        """In frames of 1 to 12 elements of 0 to 16 bytes each; one stands for an error."""
        for count, size in zip((1 + n % 12 for n in sizes[::2]), (n % 17 for n in sizes[1::2]), strict=False):
            if not self.books.window.wants_more():
                break
            if odd and size == 0:
                self.books.append(1, 0, failed=True)
            else:
                self.books.append(count, min(count * size, self.largest))

    @precondition(lambda self: self.books.window.head > 30 and not self.books.window.finished)
    @rule()
    def the_pipeline_ends(self) -> None:
        self.books.finish()

    # ---- readers

    @precondition(lambda self: len(self.books.readers) < 4)
    @rule(number=pick, received=st.integers(0, 5), granted=st.integers(0, 30))
    def reader_comes(self, number: int, received: int, granted: int) -> None:
        """A new one, or one that another incarnation of the task knew, with counters of its own."""
        self.made += 1
        known = received if number % 3 == 2 else 0
        reader = self.books.attach(f"client{self.made}", one(self.trainers, number), known)
        self.books.credit(reader, known + granted, 0)
        self.books.take(reader)

    @precondition(readers)
    @rule(number=pick, granted=st.integers(0, 40), max_bytes=st.integers(1, 200))
    def reader_gives_credit_or_takes_it_back(self, number: int, granted: int, max_bytes: int) -> None:
        reader = one(self.readers(), number)
        if granted % 4:
            self.books.credit(reader, reader.sent + granted, reader.consumed, max_bytes)
            return
        assert self.books.recall(reader) == reader.sent
        assert self.books.take(reader) is None

    @precondition(readers)
    @rule(number=pick, times=st.integers(1, 8))
    def reader_takes(self, number: int, times: int) -> None:
        for _ in range(times):
            if self.books.take(one(self.readers(), number)) is None:
                return

    @precondition(readers)
    @rule(number=pick)
    def reader_takes_all(self, number: int) -> None:
        """It gets at once what it gets one by one."""
        reader = one(self.readers(), number)
        at_once = deepcopy(self.books.window).take_all(reader.client)
        assert at_once == list(iter(lambda: self.books.take(reader), None))

    @precondition(readers)
    @rule(number=pick, most=st.integers(1, 300))
    def reader_reads_on(self, number: int, most: int) -> None:
        """As a loop over a dataset does: everything that was sent is consumed, and as much is granted anew."""
        reader = one(self.readers(), number)
        self.books.credit(reader, reader.sent + most, reader.sent)
        while self.books.take(reader) is not None:
            self.books.credit(reader, reader.granted, reader.sent)

    @precondition(readers)
    @rule(numbers=st.binary(min_size=5, max_size=20), count=st.integers(0, 11), size=st.integers(1, 16))
    def some_read_on_for_a_while(self, numbers: bytes, count: int, size: int) -> None:
        """The pipeline keeps up with some of the readers; the others fall behind."""
        for number in numbers:
            if not self.books.window.finished:
                self.elements_are_produced(bytes([count, size, 0, size, count, size]), odd=False)
            self.reader_reads_on(number % 3, 40)

    @precondition(readers)
    @rule(number=pick, part=st.integers(0, 8))
    def reader_consumes(self, number: int, part: int) -> None:
        """Some of what it was sent; counters that come late or doubled change nothing."""
        reader = one(self.readers(), number)
        consumed = reader.consumed + len(reader.outstanding) * part // 8
        self.books.credit(reader, reader.granted, consumed)
        self.books.credit(reader, 0, reader.base)

    @precondition(readers)
    @rule(number=pick, received=st.integers(0, 8), consumed=st.integers(0, 8))
    def reader_reconnects(self, number: int, received: int, consumed: int) -> None:
        """What was on its way when the connection broke is sent again."""
        reader = one(self.readers(), number)
        arrived = len(reader.outstanding) * received // 8
        used = arrived * consumed // 8
        self.books.reattach(reader, reader.consumed + arrived, reader.consumed + used)

    @precondition(readers)
    @rule(number=pick, consumed=st.integers(-1, 8))
    def reader_leaves(self, number: int, consumed: int) -> None:
        """With a last word about what it consumed, or without one."""
        reader = one(self.readers(), number)
        used = None if consumed < 0 else reader.consumed + len(reader.outstanding) * consumed // 8
        self.books.leave(reader, used)

    @invariant()
    def all_that_must_hold_does(self) -> None:
        self.books.check()

    @invariant()
    def memory_is_bounded(self) -> None:
        """By the capacity, where frames are as small as a producer makes them: an eighth of it."""
        assert self.books.window.nbytes <= self.most

    # ---- the end

    def teardown(self) -> None:
        if not self.books.sound:
            return
        if not self.books.window.finished:
            self.books.finish()
        for reader in self.readers():
            self.books.leave(reader, None)
        for trainer in list(self.books.trainers):
            self.books.read_to_the_end("last " + trainer, trainer)
        self.books.check()
        self.books.check_everything_is_accounted_for()


class FirstComeMachine(WindowMachine):
    """Without the cache: one place for all, each element once, and nothing is let go that was not consumed."""

    keep = False
    most = 1 << 60  # the producer waits; see the scenarios below
    trainers = ("",)


class LargeElementsMachine(WindowMachine):
    """Single elements of up to the whole capacity, which a producer may come with.

    One of them may come on top of what nobody was sent yet, and of what the furthest trainer gave back.
    """

    most = CAPACITY * 2

    @precondition(lambda self: self.books.window.wants_more())
    @rule(size=st.integers(CAPACITY // 8, CAPACITY))
    def a_large_element_is_produced(self, size: int) -> None:
        self.books.append(1, size)


class SpillMachine(WindowMachine):
    """Trainers that skip beside some that are served from disk; some leave for good, some give no sign of life."""

    trainers = ("a", "b", "c")
    manners: Mapping[str, CachePolicy] = {
        "b": CachePolicy(on_lag="spill", timeout_s=60.0),
        "c": CachePolicy(on_lag="spill", start="newest", timeout_s=30.0),
    }
    disk = 3 * CAPACITY
    most = CAPACITY * 9 // 8  # the frame that found no room comes on top

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.books.tidy(self.now)

    @precondition(lambda self: self.books.trainers)
    @rule(number=pick)
    def a_trainer_is_sent_away(self, number: int) -> None:
        if number % 4 == 0:
            self.books.dismiss(one(list(self.books.trainers), number))

    @invariant()
    def the_disk_is_bounded(self) -> None:
        assert self.books.disk.nbytes < self.disk + self.largest

    def teardown(self) -> None:
        super().teardown()
        for trainer in self.books.trainers:
            self.books.window.remove_trainer(trainer)
        assert not self.books.disk.frames


class MixedMachine(SpillMachine):
    """Some make the others wait as well."""

    trainers = ("a", "b", "c", "d")
    manners: Mapping[str, CachePolicy] = {
        "b": CachePolicy(on_lag="wait", timeout_s=20.0),
        "c": CachePolicy(on_lag="spill", timeout_s=30.0),
        "d": CachePolicy(on_lag="wait", start="newest", timeout_s=10.0),
    }


class WholeMachine(SpillMachine):
    """Finite data: everything stays for newcomers, until no more of them are let in."""

    whole = True
    trainers = ("a", "b", "c", "d")
    manners: Mapping[str, CachePolicy] = {**SpillMachine.manners, "d": CachePolicy(on_lag="wait", timeout_s=10.0)}

    def __init__(self) -> None:
        super().__init__()
        self.awaited: list[tuple[str, str]] = []

    @precondition(lambda self: self.books.window.closing)
    @rule(numbers=st.lists(pick, max_size=3))
    def nobody_else_is_let_in(self, numbers: list[int]) -> None:
        """Some that want everything were, and come later or never."""
        for number in numbers:
            self.made += 1
            self.awaited.append((f"client{self.made}", one(self.trainers[1:], number)))
        self.books.close_to_new_trainers(self.awaited)

    @precondition(lambda self: self.awaited and len(self.books.readers) < 4)
    @rule(number=pick, granted=st.integers(0, 30))
    def one_that_was_let_in_comes(self, number: int, granted: int) -> None:
        client, trainer = self.awaited.pop(number % len(self.awaited))
        reader = self.books.attach(client, trainer)
        self.books.credit(reader, granted, 0)

    @precondition(lambda self: self.awaited)
    @rule(number=pick)
    def one_that_was_let_in_does_not_come(self, number: int) -> None:
        client, _ = self.awaited.pop(number % len(self.awaited))
        self.books.window.leave(client)

    def teardown(self) -> None:
        if self.books.sound:
            self.books.close_to_new_trainers([])
        super().teardown()


MACHINES = (WindowMachine, FirstComeMachine, LargeElementsMachine, SpillMachine, MixedMachine, WholeMachine)


def run_schedules(machine: type[WindowMachine], count: int, steps: int) -> None:
    """The same schedules each time, so that a red build is a change's own fault."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        ),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_window_keeps_its_promises_under_any_schedule(machine: type[WindowMachine]) -> None:
    run_schedules(machine, 60, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_window_keeps_its_promises_under_thousands_of_schedules(
    machine: type[WindowMachine], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    run_schedules(machine, 5000, 50)
    with capsys.disabled():
        print(f"\n{machine.__name__}: {5000 * 60 / (time.monotonic() - began):,.0f} schedules a minute")  # noqa: T201


# ---- the promises one by one


def filled(*frames: int, keep: bool = True, capacity: int = CAPACITY, ahead: int = AHEAD) -> Books:
    """A window with frames of so many elements of ten bytes each, produced while a reader "first" was there."""
    books = Books(capacity=capacity, ahead=ahead, keep=keep)
    books.attach("first", "a" if keep else "")
    for count in frames:
        books.append(count, 10 * count)
    return books


def read(books: Books, client: str, most: int = 1 << 20) -> list[int]:
    """Let a reader have and consume up to so many elements."""
    reader, indices = books.readers[client], []
    books.credit(reader, reader.sent + most, reader.sent)
    while (taken := books.take(reader)) is not None:
        indices += range(taken.index, taken.index + taken.count)
        books.credit(reader, reader.granted, reader.sent)
    return indices


def test_each_trainer_sees_the_whole_sequence() -> None:
    books = filled(5, 5)
    books.attach("second", "b")
    assert read(books, "first") == read(books, "second") == list(range(10))
    assert (books.window.trainers["a"].misses, books.window.trainers["b"].hits) == (10, 10)


def test_readers_of_one_trainer_share_its_place() -> None:
    books = filled(5, 5)
    books.attach("other", "a")
    assert read(books, "first", 3) == [0, 1, 2]
    assert read(books, "other") == list(range(3, 10))


def test_a_trainer_that_comes_later_begins_at_the_oldest_element_in_memory() -> None:
    books = filled(40, 40, capacity=1000)
    read(books, "first")
    books.append(30, 300)
    books.attach("late", "b")
    assert read(books, "late")[0] == 40
    assert books.window.trainers["b"].skipped == 0, "what went before it came is no loss of its"


def test_a_trainer_that_falls_behind_is_moved_on_and_what_it_missed_is_counted() -> None:
    books = filled(40, 40, capacity=1000)
    books.attach("slow", "b")
    read(books, "slow", 10)
    read(books, "first")
    books.append(40, 400)
    books.append(40, 400)
    assert read(books, "slow", 1) == [80]
    assert books.window.trainers["b"].skipped == 70
    assert books.window.evicted == 80


def test_what_nobody_was_sent_is_never_evicted() -> None:
    books = filled(29, capacity=300)
    books.append(1, 290)
    assert books.window.tail == 0
    assert read(books, "first") == list(range(30))


def test_what_the_furthest_trainer_gave_back_is_not_evicted() -> None:
    books = filled(10, 10, 10)
    reader = books.readers["first"]
    books.credit(reader, 30, 0)
    while books.take(reader) is not None:
        pass
    books.leave(reader, 5)
    books.window.capacity = books.window.nbytes  # as a worker does for a task that nobody reads
    assert not books.window.wants_more()
    books.append(10, 100)  # was being produced
    assert books.window.tail == 0
    books.attach("next", "a")
    assert read(books, "next") == list(range(5, 40))


def test_a_trainer_whose_returned_elements_are_all_evicted_reaches_the_end() -> None:
    books = filled(10)
    slow = books.attach("slow", "b")
    books.credit(slow, 10, 0)
    while books.take(slow) is not None:
        pass
    read(books, "first")
    books.leave(slow, 5)
    books.window.capacity = 0
    books.window.make_room()
    assert books.window.nbytes == 0
    books.finish()
    books.attach("again", "b")
    assert read(books, "again") == []
    assert books.window.at_end("again")
    assert books.window.trainers["b"].skipped == 5


def test_errors_from_before_a_trainer_came_are_not_lost_to_it_when_they_are_evicted() -> None:
    books = Books(capacity=100, ahead=90, keep=True, disk=1000)
    books.manners["b"] = CachePolicy(on_lag="spill", timeout_s=60.0)
    books.attach("first", "a")
    for failed in (True, False, True):
        books.append(1, 10, failed=failed)
    read(books, "first")
    books.attach("late", "b")
    assert read(books, "late", 1) == [1]
    for _ in range(12):
        books.append(1, 10)
        read(books, "first")
    assert books.window.base == 3, "the errors and what it has read are gone"
    assert read(books, "late") == list(range(3, 15))
    assert books.window.trainers["b"].skipped == 0


def test_the_producer_stops_at_the_bound_and_goes_on_when_the_furthest_trainer_does() -> None:
    books = filled(20, 20)
    assert not books.window.wants_more()
    read(books, "first", 5)
    assert not books.window.wants_more()
    read(books, "first", 10)
    assert books.window.wants_more()


def test_reading_ahead_begins_low_and_grows_when_a_reader_finds_nothing() -> None:
    books = filled(keep=False, capacity=1 << 30, ahead=1 << 20)
    bounds = []
    for _ in range(6):
        produced = 0
        while books.window.wants_more():
            books.append(1, 16 << 10)
            produced += 16
        bounds.append(produced)
        read(books, "first")
    assert bounds == [128, 256, 512, 1024, 1024, 1024]


def test_reading_ahead_does_not_grow_for_a_reader_that_never_waits() -> None:
    books = filled(keep=False, capacity=1 << 30, ahead=1 << 20)
    for _ in range(20):
        while books.window.wants_more():
            books.append(1, 16 << 10)
        read(books, "first", 4)
    assert books.window.nbytes <= 128 << 10


def test_what_a_reader_left_unread_is_for_the_next_one_and_comes_first() -> None:
    books = filled(5, 5, 5, keep=False)
    books.attach("other", "")
    books.credit(books.readers["first"], 7, 0)
    while books.take(books.readers["first"]) is not None:
        pass
    books.leave(books.readers["first"], 2)
    assert read(books, "other") == list(range(2, 15))
    assert books.window.nbytes == 0


def test_the_end_of_data_for_one_reader_does_not_wait_for_anothers_consumption() -> None:
    books = filled(5, keep=False)
    books.attach("other", "")
    books.credit(books.readers["first"], 5, 0)
    books.take(books.readers["first"])
    books.finish()
    assert books.window.at_end("other")
    assert not books.window.done


def test_what_was_on_its_way_when_a_connection_broke_is_sent_again() -> None:
    books = filled(10, keep=False)
    reader = books.readers["first"]
    books.credit(reader, 10, 0)
    books.take(reader)
    books.reattach(reader, received=6, consumed=4)
    assert read(books, "first") == [6, 7, 8, 9]


@pytest.mark.parametrize("leaves", [False, True])
def test_what_did_not_arrive_is_for_its_reader_alone_until_that_leaves(leaves: bool) -> None:
    """Another one may have been told that it has reached the end, and take nothing any more."""
    books = Books(capacity=CAPACITY, ahead=AHEAD, keep=False)
    broken, other = books.attach("r1", ""), books.attach("r2", "")
    books.append(2, 2)
    books.credit(broken, 2, 0)
    assert books.take(broken) is not None
    books.finish()
    books.credit(other, 9, 0)
    assert books.take(other) is None
    assert books.window.at_end("r2")
    books.reattach(broken, 0, 0)
    assert books.take(other) is None
    assert books.window.at_end("r2")
    assert books.window.exhausted, "nothing is left for others"
    assert not books.window.at_end("r1")
    if leaves:
        books.leave(broken, 0)
    else:
        books.credit(broken, 2, 0)
    reader = other if leaves else broken
    while (taken := books.take(reader)) is not None:
        books.credit(reader, 9, reader.consumed + taken.count)
    books.check_everything_is_accounted_for()


def test_a_reader_that_another_incarnation_knew_begins_with_its_own_counters() -> None:
    books = filled(10)
    reader = books.attach("known", "b", received=100)
    books.credit(reader, 100, 90)
    assert books.take(reader) is None
    assert read(books, "known", 4) == [0, 1, 2, 3]
    assert books.window.trainers["b"].consumed == 4


def test_an_error_goes_to_those_who_were_there_and_later_trainers_pass_over_it() -> None:
    books = filled(2)
    books.append(1, 0, failed=True)
    books.append(2, 20)
    books.attach("late", "b")
    assert read(books, "first") == [0, 1, 2, 3, 4]
    assert read(books, "late") == [0, 1, 3, 4]
    books.append(1, 0, failed=True)
    assert read(books, "late") == [5], "it was there when this one happened"


def test_an_offset_is_the_first_element_that_is_not_consumed_whoever_has_it() -> None:
    books = filled(5, 5, 5, keep=False)
    first, other = books.readers["first"], books.attach("other", "")
    for reader in (first, other):
        books.credit(reader, 5, 0)
        books.take(reader)
    books.leave(first, None)
    books.credit(other, 20, 0)
    while books.take(other) is not None:
        pass
    assert books.window.offset("") == 0, "what came back was sent last and is consumed last"


def test_elements_without_bytes_still_take_room() -> None:
    books = filled(capacity=100, ahead=100)
    for _ in range(10):
        books.append(20, 0)
        read(books, "first")
    assert books.window.nbytes <= 100


@pytest.mark.parametrize(
    "disorder,told",
    [
        (lambda window: setattr(window.frames, "nbytes", 7), "bytes are miscounted"),
        (lambda window: setattr(window.frames, "head", 99), "the last frame does not end at the head"),
        (lambda window: setattr(window, "frontier", 2), "unsent bytes are miscounted"),
        (lambda window: setattr(window.trainers["a"], "consumed", 1), "hits and misses do not make up the consumed"),
        (lambda window: setattr(window.trainers["a"], "next", 50), "a trainer is beyond the frontier"),
        (lambda window: setattr(window.readers["first"], "consumed", 1), "sent elements are missing"),
        (lambda window: setattr(window.readers["first"], "buffered_bytes", 1), "a reader's bytes are miscounted"),
        (lambda window: setattr(window.readers["first"], "trainer_id", "b"), "a reader is misplaced"),
    ],
    ids=["bytes", "head", "frontier", "consumed", "next", "reader consumed", "reader bytes", "reader's trainer"],
)
def test_disorder_is_seen(disorder: Callable[[SharedLog], None], told: str) -> None:
    books = filled(5)
    books.attach("other", "b")
    books.window.validate()
    disorder(books.window)
    with pytest.raises(AssertionError, match=told):
        books.window.validate()


# ---- what a trainer may ask for


def lagging(on_lag: str, **manner: Any) -> Books:
    """A window with a trainer "fast" that skips, and "slow", who asked for something and has read nothing."""
    books = Books(capacity=80, ahead=1 << 20, keep=True, disk=1 << 20)
    books.manners["slow"] = CachePolicy(on_lag=on_lag, **manner)
    books.attach("f", "fast")
    books.attach("s", "slow")
    return books


def run_ahead(books: Books, frames: int) -> int:
    """Produce and let the fast one read, as long as the producer is not held up; gives the number of frames."""
    for number in range(frames):
        if not books.window.wants_more():
            return number
        books.append(5, 10)
        read(books, "f")
    return frames


def test_the_producer_waits_for_a_trainer_that_asked_for_that() -> None:
    books = lagging("wait")
    assert run_ahead(books, 50) == 8
    assert read(books, "s", 10) == list(range(10))
    books.credit(books.readers["s"], 10, 10)
    assert run_ahead(books, 50) == 2


@pytest.mark.slow
@pytest.mark.parametrize("on_lag", ["wait", "spill"])
def test_frames_that_grow_take_no_more_than_the_capacity_while_one_is_waited_for(on_lag: str) -> None:
    """As of a pipeline that begins slowly: its first frames are closed by their age, with little in them."""
    books = lagging(on_lag)
    books.disk.limit = 10
    while books.window.wants_more() and books.window.head < 60:
        books.append(1, 1)
        read(books, "f")
    for _ in range(500):
        read(books, "s", 1)
        while books.window.wants_more():
            books.append(1, 10)
            read(books, "f")
        assert books.window.nbytes <= 80 + 9, "more than what the first large frame came with on top"
    assert books.window.head > 500
    assert books.window.trainers["slow"].skipped == 0


def test_a_trainer_that_asked_for_it_is_served_from_disk_and_slows_nobody() -> None:
    books = lagging("spill")
    assert run_ahead(books, 50) == 50
    assert len(books.disk.frames) == 42
    assert read(books, "s") == list(range(250))
    assert books.window.trainers["slow"].spilled == 42 * 5
    books.credit(books.readers["s"], 250, 250)
    assert not books.disk.frames


def test_a_full_disk_makes_the_producer_wait() -> None:
    books = lagging("spill")
    books.disk.limit = 100
    assert run_ahead(books, 50) == 18
    read(books, "s", 20)
    books.credit(books.readers["s"], 20, 20)
    assert run_ahead(books, 50) == 4


def test_finite_data_stay_from_the_beginning_while_one_is_there_that_spills() -> None:
    books = Books(capacity=80, ahead=1 << 20, keep=True, disk=500, whole=True)
    books.manners["slow"] = books.manners["late"] = CachePolicy(on_lag="spill")
    books.attach("f", "fast")
    books.attach("s", "slow")
    for _ in range(3):
        run_ahead(books, 10)
        read(books, "s")
    assert books.window.base == 0
    assert not books.window.done
    books.attach("l", "late")
    assert read(books, "l") == list(range(150))
    assert run_ahead(books, 100) < 100, "the disk is full, and the slow one has not had everything"
    assert books.window.closing
    books.close_to_new_trainers([])
    assert run_ahead(books, 100) < 100
    assert books.window.base > 0, "the beginning was given up for it"


@pytest.mark.parametrize("on_lag", ["wait", "spill"])
def test_one_that_was_let_in_before_anything_went_loses_nothing_however_late_it_comes(on_lag: str) -> None:
    books = Books(capacity=80, ahead=1 << 20, keep=True, disk=1 << 20, whole=True)
    books.manners["late"] = CachePolicy(on_lag=on_lag)
    books.attach("f", "fast")
    made = run_ahead(books, 50)
    assert made < 50, "nothing goes before it is known who was let in"
    assert (books.window.closing, books.window.base) == (True, 0)
    books.close_to_new_trainers([("l", "late"), ("f", "fast")])
    assert run_ahead(books, 50) == 50
    books.attach("l", "late")
    assert read(books, "l") == list(range(5 * (made + 50)))
    assert books.window.trainers["late"].skipped == 0


@pytest.mark.parametrize("goes", ["the one that is awaited", "another"])
def test_elements_are_kept_for_one_that_is_awaited_until_it_is_known_not_to_come(goes: str) -> None:
    books = Books(capacity=80, ahead=1 << 20, keep=True, disk=1 << 20, whole=True)
    books.manners["late"] = CachePolicy(on_lag="spill")
    books.attach("f", "fast")
    run_ahead(books, 50)
    books.close_to_new_trainers([("l", "late")])
    assert "l" in books.window.clients
    books.window.leave("l" if goes == "the one that is awaited" else "somebody")
    books.window.remove_unread_trainers()
    books.moved_on |= {name for name, there in books.window.trainers.items() if there.removed}
    run_ahead(books, 50)
    assert (books.window.base > 0) is (goes == "the one that is awaited")


def test_one_that_is_awaited_and_wants_the_newest_begins_there() -> None:
    log = SharedLog(capacity=4, read_ahead_bytes=4, keep=True, keep_all=True)
    log.attach("a", "quick")
    log.append(object(), 3, 3)
    log.close_to_new_trainers([("b", "newest")])
    log.attach("b", "newest", cache_policy=CachePolicy(on_lag="wait", start="newest"))
    assert log.offset("newest") == 3
    log.validate()


def test_finite_data_stay_from_the_beginning_also_when_the_producer_had_to_wait_for_another() -> None:
    books = Books(capacity=80, ahead=1 << 20, keep=True, disk=1 << 20, whole=True)
    books.manners["slow"], books.manners["held"] = CachePolicy(on_lag="spill"), CachePolicy(on_lag="wait")
    for client, trainer in (("f", "fast"), ("s", "slow"), ("h", "held")):
        books.attach(client, trainer)
    for _ in range(5):
        assert run_ahead(books, 50) < 50, "the one that is waited for holds up the producer"
        read(books, "h")
        read(books, "s")
    assert books.window.base == 0


def test_one_that_waits_and_gives_no_sign_of_life_is_moved_on_until_it_reads_again() -> None:
    books = lagging("wait", timeout_s=10.0)
    books.tidy(0.0)
    run_ahead(books, 50)
    books.tidy(9.0)
    assert not books.window.wants_more()
    books.tidy(10.0)
    assert run_ahead(books, 4) == 4
    assert read(books, "s", 5) == list(range(20, 25))
    assert books.window.trainers["slow"].skipped == 20
    books.credit(books.readers["s"], 5, 5)
    books.tidy(11.0)
    assert run_ahead(books, 50) == 1


def test_one_that_left_is_let_go_after_its_time_and_goes_on_where_it_can_when_it_comes_again() -> None:
    books = lagging("spill", timeout_s=10.0)
    books.tidy(0.0)
    books.leave(books.readers["s"], 0)
    run_ahead(books, 20)
    assert books.disk.frames
    books.tidy(10.0)
    assert not books.disk.frames
    books.attach("again", "slow")
    assert read(books, "again", 5) == list(range(60, 65))
    assert books.window.trainers["slow"].skipped == 60


def test_one_that_is_sent_away_holds_nothing_any_more() -> None:
    books = lagging("wait")
    run_ahead(books, 50)
    books.dismiss("slow")
    assert run_ahead(books, 50) == 50
    books.window.remove_trainer("unknown")


def test_one_may_begin_at_the_newest_element() -> None:
    books = filled(5, 5, 5)
    books.manners["late"] = CachePolicy(start="newest")
    books.attach("l", "late")
    assert read(books, "l") == []
    assert books.window.wants_more(), "it waits for what comes next, though nobody had what was there"
    books.append(5, 5)
    assert read(books, "l") == list(range(15, 20))


def test_one_that_wants_all_begins_at_the_oldest_element_on_disk() -> None:
    books = lagging("spill")
    run_ahead(books, 50)
    books.manners["third"] = CachePolicy(on_lag="spill")
    books.attach("t", "third")
    assert read(books, "t") == list(range(250))


def test_nobody_is_given_anything_before_all_are_there() -> None:
    window = SharedLog(capacity=800, read_ahead_bytes=100, keep=True)
    for number in range(3):
        window.attach(f"r{number}", f"t{number}", cache_policy=CachePolicy(start_together=3))
        window.credit(f"r{number}", 100, 0, 1 << 20)
        if number == 0:
            window.append("frame", 5, 5)
        assert (window.take("r0") is not None) is (number == 2)
    window.leave("r2")
    assert window.take("r1") is not None, "who has begun goes on"


def test_those_that_wait_for_the_others_give_up_after_the_time_they_said() -> None:
    window = SharedLog(capacity=800, read_ahead_bytes=100, keep=True)
    assert not window.start_timed_out(0.0)
    window.attach("r", "t", cache_policy=CachePolicy(start_together=2, timeout_s=10.0))
    told = [window.start_timed_out(now) for now in (1.0, 10.0, 11.0, 12.0, 22.0)]
    assert told == [False, False, True, False, True]
    window.leave("r")
    window.attach("s", "other", cache_policy=CachePolicy(start_together=2, timeout_s=10.0))
    window.append("frame", 5, 5)
    window.credit("s", 5, 0, 100)
    assert window.take("s") is None, "the first one is no longer there"


def test_what_is_kept_encoded_beside_a_frame_counts_and_makes_room_with_the_next() -> None:
    books = filled(30, 30, capacity=1000)
    read(books, "first")
    books.window.reserve_encoded_bytes(0, 350)
    books.window.reserve_encoded_bytes(30, 350)
    assert (books.window.nbytes, books.window.tail) == (1300, 0)
    books.append(10, 100)
    assert (books.window.nbytes, books.window.tail) == (750, 30)
    books.window.reserve_encoded_bytes(0, 350)
    assert books.window.nbytes == 750, "a frame that is gone has nothing beside it"
    books.window.validate()


def test_an_encoded_form_is_not_kept_where_nothing_will_make_room_for_it() -> None:
    books = filled(30, 30, capacity=1000)
    read(books, "first")
    assert books.window.reserve_encoded_bytes(0, 300)
    books.finish()
    assert not books.window.reserve_encoded_bytes(30, 300), "no frame will come"
    assert books.window.reserve_encoded_bytes(30, 50), "there is room"
    assert books.window.nbytes == 950


def test_a_window_that_gets_smaller_lets_go_at_once_of_what_nobody_holds() -> None:
    books = filled(30, 30, 30, capacity=1000)
    read(books, "first", 60)
    window = books.window
    window.finish()
    window.capacity = 700
    window.make_room()
    assert (window.nbytes, window.tail) == (600, 30)
    window.capacity = 100
    window.make_room()
    assert (window.nbytes, window.tail) == (300, 60), "what nobody was sent stays"
    window.validate()


@pytest.fixture
def evicted() -> SharedLog:
    """The log of an epoch that is closed, of whose ten elements the first six are evicted."""
    log = SharedLog(capacity=4, read_ahead_bytes=4, keep=True, keep_all=True)
    log.close_to_new_trainers([])
    log.attach("a", "quick", cache_policy=CachePolicy(on_lag="wait"))
    for count in range(10):
        log.credit("a", count + 1, count, 1 << 20)
        log.append(object(), 1, 1)
        log.take_all("a")
    assert log.base == 6
    return log


@pytest.mark.parametrize("on_lag, skipped", [("wait", 6), ("spill", 6), ("skip", 0)])
def test_a_trainer_that_must_lose_nothing_and_comes_back_after_an_eviction_is_told_what_it_misses(
    evicted: SharedLog, on_lag: str, skipped: int
) -> None:
    evicted.attach("b", "late", cache_policy=CachePolicy(on_lag=on_lag))
    evicted.credit("b", 1, 0, 1 << 20)
    evicted.take_all("b")
    evicted.validate()
    assert evicted.trainer_report("late").skipped == skipped


@pytest.mark.parametrize("on_lag", ["wait", "spill"])
def test_what_a_returning_client_says_that_it_consumed_does_not_count_as_missed_or_repeated(
    evicted: SharedLog, on_lag: str
) -> None:
    evicted.attach("b", "late", cache_policy=CachePolicy(on_lag=on_lag))
    assert evicted.reconcile("late", [(0, 4), (5, 7)]) == 0
    evicted.credit("b", 1, 0, 1 << 20)
    assert [part.index for part in evicted.take_all("b")] == [7]
    evicted.validate()
    assert evicted.trainer_report("late").skipped == 1, "element 4 alone"

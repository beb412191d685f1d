"""The window under every schedule that hypothesis thinks of, against books that are kept element by element."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.worker.books import Books, BookedReader

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
    trainers = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(capacity=CAPACITY, ahead=AHEAD, keep=self.keep)
        self.made = 0

    @initialize(granted=st.integers(1, 30))
    def a_first_reader(self, granted: int) -> None:
        """The first read starts the pipeline, so nothing is produced before somebody is there."""
        self.reader_comes(0, 0)
        self.books.credit(self.readers()[0], granted, 0)

    def readers(self) -> list[BookedReader]:
        return list(self.books.readers.values())

    # ---- the producer

    @precondition(lambda self: self.books.window.wants_more())
    @rule(sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=5), odd=st.booleans())
    def elements_are_produced(self, sizes: list[tuple[int, int]], odd: bool) -> None:
        """In frames of some elements of so many bytes each; one stands for an error."""
        for count, size in sizes:
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
    @rule(number=pick, received=st.integers(0, 5))
    def reader_comes(self, number: int, received: int) -> None:
        """A new one, or one that another incarnation of the task knew, with counters of its own."""
        self.made += 1
        self.books.attach(f"client{self.made}", one(self.trainers, number), received if number % 3 == 2 else 0)

    @precondition(readers)
    @rule(number=pick, granted=st.integers(0, 40), max_bytes=st.integers(1, 200))
    def reader_gives_credit(self, number: int, granted: int, max_bytes: int) -> None:
        reader = one(self.readers(), number)
        self.books.credit(reader, reader.sent + granted, reader.consumed, max_bytes)

    @precondition(readers)
    @rule(number=pick, times=st.integers(1, 8))
    def reader_takes(self, number: int, times: int) -> None:
        for _ in range(times):
            if self.books.take(one(self.readers(), number)) is None:
                return

    @precondition(readers)
    @rule(number=pick, most=st.integers(1, 40))
    def reader_reads_on(self, number: int, most: int) -> None:
        """As a loop over a dataset does: everything that was sent is consumed, and as much is granted anew."""
        reader = one(self.readers(), number)
        self.books.credit(reader, reader.sent + most, reader.sent)
        while self.books.take(reader) is not None:
            self.books.credit(reader, reader.granted, reader.sent)

    @precondition(readers)
    @rule(number=pick, part=st.integers(0, 8))
    def reader_consumes(self, number: int, part: int) -> None:
        """Some of what it was sent; counters that come late or doubled change nothing."""
        reader = one(self.readers(), number)
        consumed = reader.consumed + len(reader.outstanding) * part // 8
        self.books.credit(reader, reader.granted, consumed)
        self.books.credit(reader, 0, reader.base)

    @precondition(readers)
    @rule(number=pick)
    def credit_is_recalled(self, number: int) -> None:
        reader = one(self.readers(), number)
        assert self.books.recall(reader) == reader.sent
        assert self.books.take(reader) is None

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
        self.books.check_everything_is_accounted_for()


class FirstComeMachine(WindowMachine):
    """Without the cache: one place for all, each element once, and nothing is let go that was not consumed."""

    keep = False
    trainers = ("",)


class LargeElementsMachine(WindowMachine):
    """Single elements of up to the whole capacity, which is what a producer may come with."""

    largest = CAPACITY

    @precondition(lambda self: self.books.window.wants_more())
    @rule(size=st.integers(CAPACITY // 8, CAPACITY))
    def a_large_element_is_produced(self, size: int) -> None:
        self.books.append(1, size)


MACHINES = (WindowMachine, FirstComeMachine, LargeElementsMachine)


def run_schedules(machine: type[WindowMachine], count: int, steps: int) -> None:
    """The same schedules each time, so that a red build is a change's own fault."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        ),
    )  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_the_window_keeps_its_promises_under_any_schedule(machine: type[WindowMachine]) -> None:
    run_schedules(machine, 150, 30)


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

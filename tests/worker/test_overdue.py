from __future__ import annotations

import threading
import time

import numpy as np

from dsnb.elements.frame import Frame
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.worker.overdue import Overdue
from dsnb.worker.producer import Producer
from tests.support.waiting import wait_for


def test_nothing_is_started_before_there_is_something_to_do() -> None:
    overdue = Overdue("overdue", 0.001, lambda: False)
    overdue.end()

    assert overdue.ident is None


def test_it_acts_after_a_while_and_as_long_as_there_is_something_to_do() -> None:
    at: list[float] = []

    def act() -> bool:
        at.append(time.monotonic())
        return len(at) < 3

    overdue = Overdue("overdue", 0.02, act)
    told = time.monotonic()
    overdue.tell()
    wait_for(lambda: len(at) == 3, what="three acts")
    overdue.tell()
    wait_for(lambda: len(at) == 4, what="one more")
    overdue.end()

    assert at[0] - told >= 0.02
    assert at[2] - at[0] >= 0.04
    assert not overdue.is_alive()


def test_it_ends_at_once_also_when_it_was_just_told() -> None:
    overdue = Overdue("overdue", 60.0, lambda: True)
    overdue.tell()
    began = time.monotonic()
    overdue.end()

    assert time.monotonic() - began < 5.0
    assert not overdue.is_alive()


class QuickThenStuck(Stage):
    """Ten elements at once, then none until it is let go on."""

    def __init__(self) -> None:
        super().__init__("quick then stuck")
        self.go_on = threading.Event()
        self.made = 0

    def produce(self, want: int) -> Run:
        if self.made == 10:
            self.go_on.wait(30.0)
            return []
        count = min(want, 10 - self.made)
        run = np.arange(self.made, self.made + count)
        self.made += count
        return run


class Collector:
    """Takes all frames there are."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.finished = False

    def wait_for_room(self) -> bool:
        return True

    def frame_bytes(self) -> int:
        return 1 << 20

    def element_bytes(self) -> int:
        return 1 << 20

    def gathered(self, count: int) -> None:
        pass

    def add(self, frame: Frame) -> None:
        self.values += map(int, frame.elements(0, frame.count))

    def finish(self) -> None:
        self.finished = True


def test_a_producer_does_not_hold_back_what_came_before_a_pull_that_takes_long() -> None:
    stage, collector = QuickThenStuck(), Collector()
    producer = Producer("producer", lambda: stage, collector, "in a test")
    producer.start()
    wait_for(lambda: len(collector.values) == 10, what="all elements that there are")
    stuck = not collector.finished
    stage.go_on.set()
    producer.join(5.0)

    assert stuck, "they came while the pipeline was busy"
    assert collector.values == list(range(10))
    assert collector.finished

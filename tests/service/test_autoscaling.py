"""Autoscaling of real services: readers that more workers cannot help, and a trainer that changes its pace twice."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.faults.chaos import paced
from tests.service.test_verdicts import counting, idle_machine, reading
from tests.support.requires import require_condition
from tests.support.waiting import wait_for

__all__ = ["idle_machine"]

SAID_S = 90.0
ELEMENT_S = 0.02
PHASES = ((80.0, 4_800), (320.0, 19_200), (80.0, 4_800))
"""The pace of a trainer, in elements per second, and how many it takes at that pace: a minute each."""
ADAPTED_S = 30.0
WORKER_PACE = 1 / ELEMENT_S


def decisions(service: dsnb.DataService) -> list[str]:
    """What autoscaling did or said, oldest first."""
    told = (event.text for event in service.status().events)
    return [text for text in told if text.startswith("autoscaling ") and "switched" not in text]


def adds_none_and_says_why(service: dsnb.DataService, why: str) -> None:
    """Wait until the reason is said, and check that the number of workers never changed."""
    before = service.workers
    try:
        wait_for(
            lambda: any(re.search(f"would not help: .*{why}", text) for text in decisions(service)),
            what=f"{why!r} among the decisions",
            timeout=SAID_S,
        )
    except AssertionError as error:
        error.add_note("\n".join(["what was said instead:", *decisions(service)]))
        raise
    assert not [text for text in decisions(service) if text.startswith("autoscaling from")]
    assert service.workers == len(service.status().workers) == before


@pytest.mark.slow
def test_a_reader_that_spends_its_time_building_elements_gets_no_more_workers() -> None:
    wide = dsnb.Dataset.from_tensor_slices({f"column {number}": np.arange(4_000) for number in range(60)})
    with dsnb.start(workers=1, isolation="process", autoscale=(1, 4)) as service, reading(wide, service):
        adds_none_and_says_why(service, r"It spends \d+ % of its time building elements from received data")


@pytest.mark.slow
def test_thread_workers_that_compete_for_the_interpreter_get_no_more_of_them() -> None:
    data = dsnb.Dataset.range(1_000).map(counting)
    with dsnb.start(workers=3, autoscale=(3, 6)) as service, reading(data, service):
        adds_none_and_says_why(service, "The workers are threads that compete for the GIL")


def large(number: int) -> np.ndarray[Any, Any]:
    """80 kB: of numbers alone, workers would produce the whole rest of the epoch ahead."""
    return np.full(10_000, number)


@dataclass
class Trainer:
    """Reads with a pace that changes.

    Attributes:
        got: The elements that it got.
        phases: What it did at each pace.
    """

    got: list[int] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)

    def read(self, elements: Iterator[Any]) -> None:
        for pace, count in PHASES:
            phase = Phase(pace, time.monotonic())
            for _ in range(count):
                began = time.monotonic()
                self.got.append(int(next(elements)[0]))
                phase.waits.append((began - phase.began, time.monotonic() - began))
                time.sleep(1 / pace)
            phase.ended = time.monotonic()
            self.phases.append(phase)
        self.got += [int(element[0]) for element in elements]  # there are none


@dataclass
class Phase:
    """What a trainer did at one pace: when, and each time it waited, with how long."""

    pace: float
    began: float
    ended: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)

    def wait_share(self, since: float) -> float:
        """The share of its time that it waited, from so many seconds after its beginning."""
        return sum(waited for at, waited in self.waits if at >= since) / (self.ended - self.began - since)

    @property
    def own_s(self) -> float:
        """How long it would have taken without waiting."""
        return self.ended - self.began - sum(waited for _, waited in self.waits)

    @property
    def own_pace(self) -> float:
        """Its elements per second without waiting, which are fewer than asked for where the machine is busy."""
        return len(self.waits) / self.own_s

    @property
    def best(self) -> int:
        """The least number of workers with which the trainer does not wait, at the pace that it really had."""
        return ceil(self.own_pace / WORKER_PACE)

    @property
    def oracle(self) -> float:
        """The worker-seconds of an oracle, which has the best number of workers from the first moment on."""
        return self.best * self.own_s


@contextmanager
def counted_workers(service: dsnb.DataService) -> Iterator[list[tuple[float, int]]]:
    """Note how many workers run, five times a second."""
    found: list[tuple[float, int]] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.2):
            found.append((time.monotonic(), len(service.status().workers)))

    thread = threading.Thread(target=count, name="test-counter", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(30.0)


def worker_seconds(counted: list[tuple[float, int]], phase: Phase) -> float:
    """For how long workers ran during a phase, all together."""
    spans = pairwise([*counted, (phase.ended, 0)])
    return sum(
        count * max(0.0, min(end, phase.ended) - max(at, phase.began)) for (at, count), (end, _) in spans if at < end
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("idle_machine")
def test_a_trainer_that_changes_its_pace_twice_in_three_minutes_gets_what_it_needs_and_loses_nothing() -> None:
    """A function that waits needs no processor, so others on this machine are not to count."""
    data = dsnb.Dataset.range(sum(count for _, count in PHASES)).map(paced(ELEMENT_S)).map(large)
    trainer = Trainer()
    with dsnb.start(workers=1, autoscale=(1, 16)) as service, counted_workers(service) as counted:
        distributed = data.apply(dsnb.distribute("distributed_epoch", service, job_name="train"))
        with iter(distributed) as elements:
            trainer.read(elements)
        told = decisions(service)
    used = [worker_seconds(counted, phase) for phase in trainer.phases]
    oracle = [phase.oracle for phase in trainer.phases]
    for phase, seconds in zip(trainer.phases, used, strict=True):
        sys.stdout.write(
            f"{phase.own_pace:.0f}/s for {phase.ended - phase.began:.0f} s: "
            f"waited {phase.wait_share(0.0):.1%} of it, and "
            f"{phase.wait_share(ADAPTED_S):.1%} after {ADAPTED_S:g} s; {seconds:.0f} worker-seconds, "
            f"an oracle's {phase.oracle:.0f}\n"
        )
    sys.stdout.write(f"{sum(used):.0f} worker-seconds, {sum(used) / sum(oracle):.2f} times an oracle's\n")
    sys.stdout.write("\n".join(told) + "\n")
    assert sorted(trainer.got) == list(range(len(trainer.got)))
    assert len(trainer.got) == sum(count for _, count in PHASES)
    slowed = [phase for phase in trainer.phases if phase.own_pace < 0.8 * phase.pace]
    require_condition(not slowed, "others kept the machine so busy that the trainer could not keep its pace")
    for phase in trainer.phases:
        assert phase.wait_share(ADAPTED_S) <= 0.1, (phase.pace, told)

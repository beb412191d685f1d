"""Processors are shared fairly: the rules on a simulated machine, whose jobs obey the paces that they get."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from dsnb.worker.processor_shares import JobPace, JobUse, ProcessorShares, max_min_shares
from tests.support.marks import slow

STEP_S = 0.004
UPDATE_S = 0.5


@dataclass
class Job:
    """A job whose threads compute for a while and then wait for a while, for each element."""

    name: str
    threads: int
    compute_s: float
    wait_s: float = 0.0
    weight: float = 1.0
    gil: bool = False
    pace: JobPace = field(default_factory=JobPace)
    ready: int = 0
    made: int = 0
    ran: float = 0.0
    held_s: float = 0.0
    seen: tuple[float, float, int] = (0.0, 0.0, 0)
    left: list[tuple[float, float]] = field(default_factory=list)
    ran_by_thread: list[float] = field(default_factory=list)
    queued_by_thread: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = [(0.0, 0.0)] * self.threads
        self.ran_by_thread, self.queued_by_thread = [0.0] * self.threads, [0.0] * self.threads

    def take(self, now: float) -> None:
        """Take finished elements as the pace allows, and begin new ones where there is room for two for each thread."""
        if self.pace.pause(now):
            self.held_s += STEP_S
        elif self.ready:
            count = self.pace.run_length(self.ready)
            self.ready -= count
            self.made += count
            self.pace.note(count, now)
        for number, (compute, wait) in enumerate(self.left):
            busy = sum(one != (0.0, 0.0) for one in self.left)
            if (compute, wait) == (0.0, 0.0) and self.ready + busy < 2 * self.threads:
                self.left[number] = self.compute_s, self.wait_s

    def runnable(self) -> list[int]:
        return [number for number, (compute, _) in enumerate(self.left) if compute > 0]

    def run(self, number: int, share: float, machine_share: float) -> None:
        compute, wait = self.left[number]
        self.left[number] = max(0.0, compute - share * STEP_S), wait
        self.ran += share * STEP_S
        self.ran_by_thread[number] += share * STEP_S
        self.queued_by_thread[number] += (1 - machine_share) * STEP_S
        self._finish(number)

    def wait(self) -> None:
        for number, (compute, wait) in enumerate(self.left):
            if compute == 0.0 and wait > 0:
                self.left[number] = 0.0, max(0.0, wait - STEP_S)
                self._finish(number)

    def _finish(self, number: int) -> None:
        if self.left[number] == (0.0, 0.0):
            self.ready += 1

    def use(self) -> JobUse:
        """What it did since the last call."""
        wanted = sum(
            ran * UPDATE_S / max(UPDATE_S - queued, ran, 1e-9)
            for ran, queued in zip(self.ran_by_thread, self.queued_by_thread, strict=True)
        )
        ran, held, made = self.seen
        self.seen = self.ran, self.held_s, self.made
        self.ran_by_thread, self.queued_by_thread = [0.0] * self.threads, [0.0] * self.threads
        return JobUse(
            weight=self.weight,
            ran_ns=int(1e9 * (self.ran - ran)),
            wanted_ns=int(1e9 * wanted),
            held_back_ns=int(1e9 * (self.held_s - held)),
            elements=self.made - made,
        )


def run(jobs: Sequence[Job], seconds: float, processors: float = 2.0, *, limited: bool = True) -> dict[str, float]:
    """Let jobs compete, with or without limits, and return how many processors each used in the second half."""
    shares, now, next_update, gil_wait, idle = ProcessorShares(), 0.0, UPDATE_S, 0.0, 0.0
    middle: dict[str, float] = {}
    for step in range(int(seconds / STEP_S)):
        now += STEP_S
        for job in jobs:
            job.take(now)
        holders = [(job, number) for job in jobs for number in job.runnable() if job.gil]
        others = [(job, number) for job in jobs for number in job.runnable() if not job.gil]
        # Whoever wants the GIL gets it in turn, so together they are like one thread.
        running = len(others) + bool(holders)
        share = min(1.0, processors / running) if running else 0.0
        for job, number in others:
            job.run(number, share, share)
        for job, number in holders:
            job.run(number, share / len(holders), 1.0)
        for job in jobs:
            job.wait()
        idle += max(0.0, processors - running) * STEP_S / UPDATE_S
        gil_wait += len(holders) * STEP_S / UPDATE_S
        if now >= next_update:
            next_update += UPDATE_S
            uses = {job.name: job.use() for job in jobs}
            rates = shares.update(uses, UPDATE_S, idle=idle, gil_wait=gil_wait)
            gil_wait = idle = 0.0
            for job in jobs:
                job.pace.change(rates[job.name] if limited else None, now)
        if step == int(seconds / STEP_S) // 2:
            middle = {job.name: job.ran for job in jobs}
    return {job.name: 2 * (job.ran - middle[job.name]) / seconds for job in jobs}


def test_a_job_with_one_thread_gets_as_much_as_one_with_eight() -> None:
    used = run([Job("wide", 8, 0.012), Job("narrow", 1, 0.012)], 40)
    assert used["narrow"] > 0.8
    assert used["wide"] > 0.8


def test_without_limits_the_number_of_threads_decides() -> None:
    used = run([Job("wide", 8, 0.012), Job("narrow", 1, 0.012)], 20, limited=False)
    assert used["narrow"] < 0.3 * used["wide"]


def test_weights_divide_what_all_want() -> None:
    used = run([Job("light", 8, 0.012), Job("heavy", 8, 0.012, weight=4.0)], 40)
    assert used["heavy"] / used["light"] == pytest.approx(4.0, rel=0.15)
    assert sum(used.values()) > 1.85


def test_jobs_that_hold_the_gil_share_it() -> None:
    used = run([Job("wide", 8, 0.012, gil=True), Job("narrow", 1, 0.012, gil=True)], 60)
    assert used["narrow"] > 0.4
    assert sum(used.values()) > 0.85


def test_nothing_is_taken_from_a_job_for_one_that_waits_most_of_the_time() -> None:
    alone = run([Job("busy", 8, 0.012)], 20)["busy"]
    used = run([Job("busy", 8, 0.012), Job("waiting", 8, 0.0003, wait_s=0.02)], 40)
    assert used["busy"] > alone - used["waiting"] - 0.1


def test_what_a_job_leaves_goes_to_the_others() -> None:
    wide, narrow = Job("wide", 8, 0.012), Job("narrow", 1, 0.012)
    run([wide, narrow], 20)
    assert wide.pace.per_s is not None
    narrow.wait_s = 1.0
    assert run([wide, narrow], 20)["wide"] > 1.8


def test_a_job_alone_is_never_limited() -> None:
    only = Job("only", 8, 0.012)
    run([only], 5)
    assert only.pace.per_s is None


def random_jobs(seed: int) -> list[Job]:
    """Two or three jobs, some of which wait for most of their time."""
    draw = random.Random(seed)
    jobs = []
    for number in range(draw.choice([2, 3])):
        compute_s, waits = draw.choice([0.004, 0.012, 0.048]), draw.choice([0.0, 0.0, 1.0, 10.0])
        weight = draw.choice([1.0, 1.0, 2.0])
        jobs.append(Job(str(number), draw.randint(1, 8), compute_s, compute_s * waits, weight))
    return jobs


@pytest.mark.parametrize("seed", [seed if seed < 4 else slow(seed) for seed in range(16)])
def test_each_job_gets_most_of_its_share_and_little_is_wasted(seed: int) -> None:
    used = run(random_jobs(seed), 20)
    alone = [run([job], 10)[job.name] for job in random_jobs(seed)]
    without = run(random_jobs(seed), 10, limited=False)
    total = sum(without.values())
    fair = max_min_shares(total, alone, [job.weight for job in random_jobs(seed)])
    for got, share in zip(used.values(), fair, strict=True):
        assert got > 0.65 * share, (used, fair)
    assert sum(used.values()) > 0.85 * total, (used, without)


def test_shares_sum_to_what_is_divided_and_no_job_gets_more_than_it_wants() -> None:
    shares = max_min_shares(3.0, [math.inf, 0.5, 1.0], [1.0, 1.0, 2.0])
    assert shares == [1.5, 0.5, 1.0]
    assert max_min_shares(5.0, [1.0, 1.0], [1.0, 1.0]) == [1.0, 1.0]
    assert max_min_shares(2.0, [math.inf, math.inf], [1e6, 1e-12])[0] == pytest.approx(2.0)


# ---- the pace


def test_a_pace_spaces_elements_evenly_and_makes_up_for_a_short_delay() -> None:
    pace, now, made = JobPace(), 10.0, 0
    pace.change(50.0, now)
    while now < 20.0:
        pause = pace.pause(now)
        if pause:
            now += min(pause, 0.004) + 0.001  # a thread wakes up a little late
            continue
        count = pace.run_length(100)
        made += count
        pace.note(count, now)
    assert made == pytest.approx(500, rel=0.03)


def test_a_pace_that_is_lifted_holds_nothing_back() -> None:
    pace = JobPace()
    pace.change(0.01, 1.0)
    pace.note(5, 1.0)
    assert pace.pause(1.0) == pytest.approx(500.0, rel=0.01)
    pace.change(10.0, 1.0)
    assert pace.pause(1.0) == pytest.approx(0.5, rel=0.01), "a higher pace shortens the pause"
    pace.change(0.01, 1.0)
    assert pace.pause(1.0) == pytest.approx(0.5, rel=0.01), "what was made is not paid for again at a lower one"
    pace.change(None, 1.0)
    assert pace.pause(1.0) == 0.0
    assert pace.run_length(1000) == 1000

"""The autoscaler with simulated services: how fast it finds the right number, and when it changes nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import pytest

from dsnb.dispatcher.autoscaler import INTERVAL_S, Autoscaler
from dsnb.monitor.snapshot import CursorStatus, JobStatus, Snapshot, TaskStatus, TrainerStatus, WorkerStatus
from dsnb.wire.messages import LinkReport, StageReport
from tests.support.marks import slow

STEP_S = 0.1
_SAMPLES_PER_S = 10
SEEDS = [0, *map(slow, range(1, 5))]


@dataclass
class SimulatedService:
    """A trainer and workers as flows: each worker makes `worker_rate` elements a second, the trainer takes `pace`.

    Args:
        pace: Elements per second that the trainer consumes if it never waits; 0 if nobody reads.
        worker_rate: Elements per second of one worker that never waits.
        cores: Processors; None if workers wait for something else and hardly use any.
        link_rate: The most elements per second that the network carries.
        noise: How much the trainer's pace varies from step to step, as a share.
        join_s: How long a new worker takes to join.
        gil: Whether the workers are threads of one process that compete for the GIL.
        duty: The share of its time that a worker can work.
        produced_ahead: Whether the workers have produced all elements, so that only the trainer still works.
        look_s: How often the autoscaler gets a snapshot.
        building: The share of its time without waiting that the trainer spends building elements.
    """

    pace: float = 100.0
    worker_rate: float = 50.0
    cores: int | None = None
    link_rate: float = float("inf")
    noise: float = 0.1
    join_s: float = 2.0
    gil: bool = False
    duty: float = 1.0
    look_s: float = INTERVAL_S
    seed: int = 0
    cached: bool = False
    now: float = 0.0
    size: int = 1
    running: int = 1
    produced_ahead: bool = False
    building: float = 0.0
    consumed: float = 0.0
    wait_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 1_000.0
    late_s: float = 0.0
    in_flight_s: float = 0.0
    worker_seconds: float = 0.0
    joining: list[float] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    rates: list[tuple[float, float, float]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._heads: list[float] = [0.0] * 64

    # ---- the flows

    def step(self) -> None:
        self.now += STEP_S
        self.running += sum(at <= self.now for at in self.joining)
        self.joining = [at for at in self.joining if at > self.now]
        usable = min(self.running, self.cores or self.running, 1 if self.gil else self.running)
        supply = min(self.duty * usable * self.worker_rate, self.link_rate)
        if self.produced_ahead:
            supply = float("inf")
        pace = self.pace * self._random.uniform(1 - self.noise, 1 + self.noise)
        taken = min(supply, pace)
        self.consumed += taken * STEP_S
        for worker in range(0 if self.produced_ahead else self.running):
            self._heads[worker] += taken / self.running * STEP_S
        self.wait_s += (1 - taken / pace) * STEP_S if pace else 0.0
        # Where processors limit them, all workers are busy; where the network does, they wait.
        if usable and not self.produced_ahead:
            self.busy_s += taken / (usable * self.worker_rate) * self.running * STEP_S
        if self.link_rate <= supply < pace:
            self.in_flight_s += STEP_S
        if self.cores is not None:
            self.idle_s += (self.cores - taken / self.worker_rate) * STEP_S
        else:
            self.idle_s += 2 * STEP_S
        self.late_s += (0.01 if self.gil and self.running > 1 else 0.0005) * STEP_S * _SAMPLES_PER_S
        self.worker_seconds += self.running * STEP_S
        self.rates.append((self.now, taken, min(self.best() * self.worker_rate, pace)))

    def scale(self, count: int) -> None:
        if count < self.size:  # those that leave do so at once: what they hold is delivered by others meanwhile
            starting = len(self.joining)
            self.joining = self.joining[: max(0, count - self.running)]
            self.running -= max(0, self.size - count - (starting - len(self.joining)))
        else:
            self.joining += [self.now + self.join_s] * (count - self.size)
        self.size = count
        self.sizes.append((self.now, count))

    # ---- as the dispatcher shows it

    def snapshot(self) -> Snapshot:
        clock = int((100 + self.now) * 1e9)
        cpu_s = self.busy_s if self.cores is not None else 0.01 * self.busy_s
        workers = tuple(
            WorkerStatus(
                name=f"w{number}",
                uid=f"u{number}",
                address="127.0.0.1:5050",
                state="running",
                isolation="thread" if self.gil else "process",
                pid=0 if self.gil else number,
                tasks=1,
                clock_ns=clock,
                cpu_ns=int((1 + (self.now if self.gil else cpu_s / max(1, self.running))) * 1e9),
                late_ns=int(self.late_s * 1e9),
                latency_samples=int(self.now * _SAMPLES_PER_S),
                cpus=self.cores or 2,
                idle_ns=int(self.idle_s * 1e9),
                sent_elements=1_000,
                sent_bytes=100_000_000,
            )
            for number in range(self.running)
        )
        return Snapshot(
            version=1,
            seq=1,
            time=1_000.0 + self.now,
            service="s",
            target="grpc://127.0.0.1:1",
            started=1.0,
            workers=workers,
            jobs=(self._job(),) if self.pace else (),
        )

    def _job(self) -> JobStatus:
        trainer = TrainerStatus(
            trainer_id="t",
            clients=1,
            elements=int(self.consumed),
            wait_ns=int(self.wait_s * 1e9),
            active_ns=int(self.now * 1e9),
            decode_ns=int(self.building * (self.now - self.wait_s) * 1e9),
            cursors=(
                CursorStatus(task_id="t0", worker="w0", offset=0, lag=0, in_flight_ns=int(self.in_flight_s * 1e9)),
            ),
        )
        return JobStatus(
            name="train",
            anonymous=False,
            dataset_id="d",
            pipeline="range | map(f)",
            mode="DYNAMIC",
            cached=self.cached,
            iteration=0,
            state="running",
            clients=1,
            produced=int(sum(self._heads)),
            consumed=int(self.consumed),
            tasks=tuple(
                TaskStatus(
                    task_id=f"t{n}",
                    worker=f"w{n}",
                    iteration=0,
                    incarnation=1,
                    state="running",
                    head=int(self._heads[n]),
                )
                for n in range(self.running)
            ),
            trainers=(trainer,),
            stages=(StageReport(name="map(f)", elements=int(self.consumed), busy_ns=int(self.busy_s * 1e9)),),
            links=(LinkReport(client_id="c", trainer_id="t", task_id="t0", transfer="grpc"),),
        )

    # ---- driven by an autoscaler

    def run(self, autoscaler: Autoscaler, seconds: float, places: int | None = None) -> None:
        """Let time pass; a launcher has so many places for workers in all, or shares this host's processors."""
        until = self.now + seconds
        next_look = self.now
        while self.now < until:
            self.step()
            if self.now >= next_look:
                next_look += self.look_s
                capacity = None if places is None else places - self.size
                decision = autoscaler.decide(self.now, self.snapshot(), size=self.size, capacity=capacity)
                if decision is not None:
                    self.said.append(decision.text)
                    if decision.workers is not None:
                        self.scale(decision.workers)

    def best(self) -> int:
        """The least number of workers with which the trainer does not wait."""
        return ceil(self.pace / self.worker_rate)

    def adapted_after(self, began: float) -> float:
        """Seconds from `began` until the trainer got 90 % of what the best number of workers gives."""
        window = round(2.0 / STEP_S)
        late = [(taken, ideal) for at, taken, ideal in self.rates if at > began]
        slow = [
            n
            for n in range(len(late) - window)
            if sum(taken for taken, _ in late[n : n + window]) < 0.9 * sum(ideal for _, ideal in late[n : n + window])
        ]
        return (slow[-1] + 1) * STEP_S if slow else 0.0

    def share_of_best(self, began: float) -> float:
        """What the trainer has got since `began`, as a share of what the best number of workers gives."""
        late = [(taken, ideal) for at, taken, ideal in self.rates if at > began]
        return sum(taken for taken, _ in late) / sum(ideal for _, ideal in late)


def reversals(service: SimulatedService, since: float) -> int:
    """How often the number of workers changed its direction."""
    sizes = [size for at, size in service.sizes if at > since]
    directions = [after > before for before, after in pairwise(sizes)]
    return sum(one != other for one, other in pairwise(directions))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("need", [1.0, 1.9, 2.0])
def test_a_trainer_that_changes_its_pace_twice_gets_the_workers_it_needs(seed: int, need: float) -> None:
    service, autoscaler = SimulatedService(pace=50.0 * need, seed=seed), Autoscaler(1, 32)
    oracle = 0.0
    for pace in (50.0 * need, 200.0 * need, 50.0 * need):
        service.pace, began = pace, service.now
        service.run(autoscaler, 200.0)
        assert service.adapted_after(began) < 30.0, (pace, service.said)
        oracle += 200.0 * service.best()
    assert service.worker_seconds <= 1.25 * oracle, service.said
    assert service.size == service.best()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("need", [slow(1.0), 2.5, slow(4.05), slow(6.2), slow(9.0)])
def test_ten_steady_minutes_have_fewer_than_two_reversals(seed: int, need: float) -> None:
    service, autoscaler = SimulatedService(pace=50.0 * need, seed=seed, noise=0.3), Autoscaler(1, 32)
    service.run(autoscaler, 60.0)
    service.run(autoscaler, 600.0)
    assert reversals(service, since=60.0) < 2, service.said
    assert service.share_of_best(60.0) > 0.9, service.said
    assert service.size in (service.best(), service.best() - 1)


def test_workers_that_wait_may_outnumber_the_processors() -> None:
    service = SimulatedService(pace=500.0, cores=None)
    service.run(Autoscaler(1, 32), 90.0)
    assert service.size == 10


def test_workers_that_compute_do_not_outnumber_the_idle_processors() -> None:
    service = SimulatedService(pace=500.0, cores=4)
    service.run(Autoscaler(1, 32), 120.0)
    assert service.size == 4
    assert any("autoscaling adds no workers, because" in text for text in service.said), service.said


def test_a_launcher_s_room_elsewhere_counts_instead_of_this_host_s_processors() -> None:
    service = SimulatedService(pace=500.0, cores=2)
    service.run(Autoscaler(1, 32), 60.0, places=4)
    assert service.size == 4
    full = SimulatedService(pace=500.0)
    full.run(Autoscaler(1, 32), 60.0, places=1)
    assert full.size == 1
    assert any("the launcher has no room for more" in text for text in full.said)


def test_a_job_that_the_network_limits_gets_no_workers_and_the_reason_is_said_once() -> None:
    service = SimulatedService(pace=500.0, link_rate=100.0, size=4, running=4)
    service.run(Autoscaler(1, 32), 300.0)
    assert max(size for _, size in [(0, 4), *service.sizes]) == 4
    told = [text for text in service.said if "would not help" in text]
    assert len(told) == 1
    assert "the network connection carries" in told[0]


@pytest.mark.parametrize("look_s", [2.3, 2.8, 3.7, 4.9, 7.0, 12.0])
def test_the_reason_is_said_also_if_the_autoscaler_itself_is_late(look_s: float) -> None:
    """Where workers compete for the GIL, its own thread waits for the GIL too."""
    service = SimulatedService(pace=500.0, gil=True, size=3, running=3, look_s=look_s)
    service.run(Autoscaler(3, 6), 60.0)
    assert [
        text for text in service.said if "would not help: " in text and "compete for the GIL" in text
    ] == service.said
    assert len(service.said) == 1


@pytest.mark.parametrize("look_s", [2.3, 3.7])
def test_workers_are_added_also_if_the_autoscaler_itself_is_late(look_s: float) -> None:
    service = SimulatedService(pace=400.0, look_s=look_s)
    service.run(Autoscaler(1, 32), 90.0)
    assert service.size == 8, service.said


def test_workers_that_the_gil_makes_useless_leave_again_for_good_and_the_gil_is_named() -> None:
    """Only when there are several of them do they compete, so no verdict shows it before."""
    service = SimulatedService(pace=500.0, gil=True)
    service.run(Autoscaler(1, 4), 200.0)
    assert [size for _, size in service.sizes] == [2, 1]
    back = [text for text in service.said if "had no effect" in text]
    assert len(back) == 1
    assert "The workers are threads that compete for the GIL" in back[0], back


def test_a_reader_that_waits_long_for_workers_that_could_make_enough_gets_none_and_the_reason_is_said() -> None:
    """`explain` says that it is input-bound, so autoscaling must not be silent."""
    service = SimulatedService(pace=186.0, size=4, running=4, duty=0.71)
    service.run(Autoscaler(4, 8), 60.0)
    assert len(service.said) == 1, service.said
    assert "autoscaling adds no workers, because 4 workers could make enough: the readers of job" in service.said[0]


def slow_reader(pace: float) -> SimulatedService:
    """A reader that spends its time building elements, with one worker that makes 100 elements a second."""
    return SimulatedService(pace=pace, worker_rate=100.0, building=0.4, noise=0.0)


def test_a_reader_that_builds_elements_gets_no_workers_and_the_reason_is_said_also_if_it_never_waits() -> None:
    """As on a busy machine, where it gets so little done that the workers are always ahead of it."""
    service = slow_reader(pace=20.0)
    service.run(Autoscaler(1, 4), 60.0)
    assert len(service.said) == 1, service.said
    assert service.said[0] == (
        "autoscaling adds no workers, because they would not help: Job 'train' is slowed down by its reader: the "
        "client with the id t waits 0 % of its time. It spends 40 % of its time building elements from received data."
    )


def test_a_reader_that_builds_elements_gets_more_workers_if_it_would_need_them_without_its_waiting() -> None:
    service = SimulatedService(pace=160.0, worker_rate=100.0, building=0.9)
    service.run(Autoscaler(1, 4), 60.0)
    assert service.size == 2, service.said


def test_a_reason_is_said_once_though_the_reader_waits_only_now_and_then() -> None:
    service, autoscaler = slow_reader(pace=80.0), Autoscaler(1, 4)
    service.duty = 0.7
    for pace in 5 * [80.0, 60.0]:
        service.pace = pace
        service.run(autoscaler, 30.0)
    assert len(service.said) == 1, service.said
    assert "would not help" in service.said[0]


def test_workers_without_effect_leave_again_and_are_not_tried_again_soon() -> None:
    service, autoscaler = SimulatedService(pace=200.0), Autoscaler(1, 32)
    service.link_rate = 50.0  # a limit that no verdict sees: nothing is in flight
    service.in_flight_s = 0.0
    service.run(autoscaler, 400.0)
    assert sum(after > before for before, after in pairwise([1, *(size for _, size in service.sizes)])) <= 1
    assert service.size == 1


def test_the_limits_hold_and_a_service_that_nobody_reads_shrinks_to_the_minimum() -> None:
    service, autoscaler = SimulatedService(pace=5_000.0), Autoscaler(2, 6)
    service.run(autoscaler, 60.0)
    assert service.size == 6
    assert any("6 is the maximum" in text for text in service.said), service.said
    service.pace = 0.0
    service.run(autoscaler, 200.0)
    assert service.size == 2
    assert max(size for _, size in service.sizes) == 6


def test_workers_that_leave_at_the_end_of_an_epoch_are_said_to_have_nothing_left_to_produce() -> None:
    service, autoscaler = SimulatedService(pace=90.0, size=2, running=2), Autoscaler(1, 4)
    service.run(autoscaler, 30.0)
    service.produced_ahead = True
    service.run(autoscaler, 60.0)
    assert service.said == [
        "autoscaling from 2 to 1 worker: no reader has waited for 30 s, and the workers had nothing to produce"
    ]


def test_a_need_that_rounds_to_nothing_is_said_in_words() -> None:
    service = SimulatedService(pace=1.0, size=2, running=2, noise=0.0)
    service.run(Autoscaler(1, 4), 60.0)
    assert service.said == [
        "autoscaling from 2 to 1 worker: no reader has waited for 30 s, and less than 0.1 of them is needed"
    ]


def test_nothing_happens_in_the_first_seconds_of_a_job_or_while_it_is_paused() -> None:
    service, autoscaler = SimulatedService(pace=400.0), Autoscaler(1, 32)
    service.run(autoscaler, 9.0)
    assert service.size == 1
    service.run(autoscaler, 20.0)
    assert service.size > 1


def test_each_decision_has_its_numbers() -> None:
    service = SimulatedService(pace=200.0, noise=0.0)
    service.run(Autoscaler(1, 32), 30.0)
    assert service.said[0] == (
        "autoscaling from 1 to 4 workers: the readers of job 'train' wait 75 % of their time; they could consume "
        "200/s, and one worker makes 50/s"
    )

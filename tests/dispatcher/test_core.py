"""The core under every schedule that hypothesis thinks of; what is checked after each step stands in `model.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dsnb.dispatcher.state import replay
from dsnb.errors import DsnbError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import ClientReport, SplitsRequest, WorkerReport
from tests.dispatcher.actors import Pipeline, SimClient, SimTask, SimWorker
from tests.dispatcher.model import DispatcherDied, Seen
from tests.dispatcher.simulation import INTERVAL, Service


@dataclass(frozen=True)
class Source:
    """A pipeline as it is registered."""

    counts: tuple[int, ...] = ()
    pipeline: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)

    def register(self, service: Service, number: int, **changes: Any) -> str:
        length = {"length": self.dataset["cardinality"]} if "cardinality" in self.dataset else {}
        made = Pipeline(**{"counts": self.counts, **length, **self.pipeline})
        fields = {"name": f"pipeline {number}", **self.dataset, **changes}
        return service.register(*self.counts, makes=made, **fields)


AT_RANDOM = "it draws at random"
SOURCES = (
    Source((20,), dataset={"cardinality": 20}),
    Source((6,), {"step": 4}, {"cardinality": 6}),
    Source((30,), {"step": 0}, {"cardinality": 30}),
    Source((5, 12)),
    Source((8,), {"repetitions": 2, "step": 3}, {"cardinality": 16}),
    Source((12,), dataset={"cardinality": 12, "inexact_reason": AT_RANDOM, "inexact_shard_reason": AT_RANDOM}),
    Source((9,), {"slow": True}),
    Source((0,)),
    Source((), {"length": 7}, {"cardinality": 7}),
    Source((7,), {"repetitions": 1 << 20, "length": None}, {"cardinality": -1}),
)
Mode = tuple[str, bool, str]
"""A processing mode, whether trainers share a cache, and `on_worker_loss`."""
MODES: list[Mode] = [
    *[("DYNAMIC", False, "")] * 3,
    ("DYNAMIC", False, "repeat"),
    ("DYNAMIC", False, "drop"),
    ("OFF", False, ""),
    ("DATA", False, ""),
    ("DATA", False, "repeat"),
    ("DYNAMIC", True, ""),
    ("OFF", True, ""),
]
ROUNDS = 24
"""Rounds in which everybody moves, after which each reader has come to the end of its pass; the slowest waits out a
client that died in silence."""
T = TypeVar("T")
pick = st.integers(0, 63)
few = st.integers(1, 9)
modes = st.sampled_from(MODES)


def one(things: Sequence[T], number: int) -> T:
    """The thing that a drawn number stands for."""
    return things[number % len(things)]


class CoreMachine(RuleBasedStateMachine):
    """Workers, clients and time, in any order; what goes wrong is found by the model.

    Rules are shaped so that most steps do something: a rule that could always run would be most of a schedule.
    """

    seen: ClassVar[Seen] = Seen()
    """What happened in all schedules."""

    def __init__(self) -> None:
        super().__init__()
        self.service = Service(seen=self.seen)
        self.datasets: list[str] = []
        self.made = 0
        self.records = 0

    @initialize(source=st.sampled_from(range(len(SOURCES))), workers=st.integers(1, 3), mode=modes, readers=few)
    def a_service_at_work(self, source: int, workers: int, mode: Mode, readers: int) -> None:
        """Most of what can go wrong needs workers and readers: begin with them."""
        for number in range(workers):
            self.worker_arrives(number)
        self.datasets.append(SOURCES[source].register(self.service, source))
        for number in range(1 + readers // 4):
            self.join(0, "a", mode, number)

    # ---- who is there

    def connected(self) -> list[SimWorker]:
        return [worker for worker in self.service.workers.values() if worker.connected]

    def away(self) -> list[SimWorker]:
        return [worker for worker in self.service.workers.values() if not worker.connected and not worker.dead]

    def running(self) -> list[tuple[SimWorker, SimTask]]:
        return [(worker, task) for worker in self.connected() for task in worker.tasks.values() if not task.ended]

    def asking(self) -> list[tuple[SimTask, int]]:
        """Tasks whose pipelines ask a provider for more."""
        found = []
        for _, task in self.running():
            for at, place in enumerate(task.places):
                if place.repetition < task.order.pipeline.repetitions:
                    found.append((task, at))
        return found

    def asked(self) -> list[tuple[SimTask, int]]:
        return [(task, at) for task, at in self.asking() if task.places[at].asked]

    def making(self) -> list[SimTask]:
        return [task for _, task in self.running() if not task.places]

    def active(self) -> list[SimClient]:
        """Clients whose processes run, and that the dispatcher counts in."""
        return [client for client in self.service.clients.values() if client.active and not client.cancelled]

    def readers(self) -> list[SimClient]:
        return [client for client in self.service.clients.values() if client.connected and client.active]

    def asleep(self) -> list[SimClient]:
        present = [client for client in self.service.clients.values() if client.suspended]
        return [*present, *self.service.forsaken]

    def idle_jobs(self) -> list[str]:
        return [name for name, job in self.service.core.state.jobs.items() if not job.clients]

    # ---- workers

    @precondition(lambda self: len(self.service.workers) < 4)
    @rule(number=pick, again=st.booleans())
    def worker_arrives(self, number: int, again: bool = False) -> None:
        """A new one, or one that was started again at the address of another."""
        self.made += 1
        there = [worker.address for worker in self.connected()]
        self.service.add_worker(f"uid{self.made}", one(there, number) if again and there else f"host:{self.made}")

    @precondition(connected)
    @rule(number=pick, ticks=st.integers(0, 5))
    def worker_breaks_and_returns(self, number: int, ticks: int) -> None:
        """Within its time or after it; somebody else may have joined a pass meanwhile."""
        worker = one(self.connected(), number)
        self.service.break_worker(worker)
        if number % 2 and self.datasets:
            self.client_joins(number, "b", ("DYNAMIC", False, ""))
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)
        if number % 4 < 3 and not worker.dead:  # another may have been started at its address
            self.service.arrive(worker)

    @precondition(lambda self: self.service.given_up)
    @rule(returns=st.booleans())
    def lost_worker_gets_nothing_until_it_registers_again(self, returns: bool) -> None:
        worker = next(iter(self.service.given_up.values()))
        questions = [
            SplitsRequest(
                task_id=task.task_id, incarnation=task.incarnation, provider=0, repetition=0, cursor=0, want=1
            )
            for task in worker.tasks.values()
        ]
        for wrong in (*questions, WorkerReport(uid=worker.uid)):
            decision = self.service.handle(wrong)
            assert isinstance(decision.error, NotFoundError)
            assert not decision.records
        if returns:
            self.service.arrive(worker)

    @precondition(connected)
    @rule(number=pick)
    def worker_stops(self, number: int) -> None:
        self.service.stop(one(self.connected(), number))

    @precondition(connected)
    @rule(number=pick, seen=st.booleans())
    def worker_dies(self, number: int, seen: bool) -> None:
        """Its owner sees it die, or it is found to be silent."""
        worker = one(self.connected(), number)
        if seen:
            self.service.kill(worker)
        else:
            self.service.lose(worker)
            self.service.break_worker(worker)
            self.service.wait(6 * INTERVAL, self.service.keep_alive)

    @precondition(lambda self: any(not worker.draining for worker in self.connected()))
    @rule(number=pick)
    def worker_drains(self, number: int) -> None:
        self.service.drain(one([worker for worker in self.connected() if not worker.draining], number))

    @precondition(connected)
    @rule(number=pick, joins=st.booleans(), restarts=st.booleans())
    def workers_are_replaced(self, number: int, joins: bool, restarts: bool) -> None:
        """Up to two at once; a client joins, or the dispatcher dies, while the new ones are held."""
        self.service.hold_new_workers()
        old = self.connected()[: 1 + number % 2]
        for _ in old:
            self.worker_arrives(0, again=False)
        if joins and self.datasets:
            self.client_joins(number, "b", one(MODES, number))
        if restarts:
            self.service.restart()
        else:
            self.service.replace(*[worker for worker in old if worker.uid in self.service.workers])

    @precondition(lambda self: any(worker.replaced and not worker.tasks for worker in self.connected()))
    @rule()
    def replaced_workers_that_have_finished_stop(self) -> None:
        for worker in self.connected():
            if worker.replaced and not worker.tasks:
                self.service.stop(worker)

    @precondition(lambda self: len(self.service.workers) > 1)
    @rule(number=pick)
    def worker_is_ordered_to_drain(self, number: int) -> None:
        self.service.order_to_drain(one(list(self.service.workers.values()), number))

    @precondition(lambda self: len(self.service.workers) > 1)
    @rule(number=pick)
    def worker_is_removed(self, number: int) -> None:
        worker = one(list(self.service.workers.values()), number)
        assert self.service.remove(worker) == self.service.remove(worker) == "gone"

    @precondition(connected)
    @rule(number=pick, late=st.booleans())
    def worker_reports(self, number: int, late: bool) -> None:
        """At once, or with a report that is some time on its way."""
        worker = one(self.connected(), number)
        if late:
            worker.write_report()
        else:
            self.service.report(worker)

    @precondition(connected)
    @rule()
    def workers_obey(self) -> None:
        for worker in self.connected():
            worker.obey()

    # ---- tasks

    @precondition(asking)
    @rule(number=pick, want=few, times=st.integers(1, 6))
    def task_asks(self, number: int, want: int, times: int) -> None:
        task, provider = one(self.asking(), number)
        for _ in range(times):
            if task.places[provider].repetition < task.order.pipeline.repetitions:
                self.service.ask(task, provider, want)
                if number % 2 and task.places[provider].asked:  # as if the answer had been lost
                    self.service.ask_again(task, provider)

    @precondition(asking)
    @rule(want=few)
    def tasks_ask_in_turn(self, want: int) -> None:
        for task, provider in self.asking():
            self.service.ask(task, provider, want)

    @precondition(asked)
    @rule(number=pick, which=pick)
    def old_question_arrives(self, number: int, which: int) -> None:
        task, provider = one(self.asked(), number)
        self.service.ask_old(task, provider, which % len(task.places[provider].asked))

    @precondition(making)
    @rule(number=pick, count=few)
    def task_makes(self, number: int, count: int) -> None:
        self.service.make(one(self.making(), number), count)

    @precondition(asking)
    @rule(number=pick)
    def task_begins_the_next_pass(self, number: int) -> None:
        self.service.next_pass(one(self.asking(), number)[0])

    @precondition(running)
    @rule(number=pick)
    def task_ends(self, number: int) -> None:
        """With all that there is, or, seldom, early, as with `take`."""
        _, task = one(self.running(), number)
        self.end(task, early=number % 16 == 0)

    def end(self, task: SimTask, *, early: bool = False) -> None:
        """Let a task come to its end, if it has one."""
        known = self.service.core.state.tasks[task.task_id]
        book, pipeline = self.service.passes[known.job, known.iteration], task.order.pipeline
        if early:
            book.early = True
            self.service.replay(task)
        elif task.places and pipeline.repetitions < 1 << 10:
            while task.places[0].repetition < pipeline.repetitions:
                self.service.ask(task, 0, 9)
        elif pipeline.length is not None:
            self.service.make(task, 1 << 20)
        else:
            return
        task.finish()

    # ---- reading

    @precondition(active)
    @rule(number=pick, most=few, part=st.integers(0, 4), tell=st.booleans())
    def client_reads(self, number: int, most: int, part: int, tell: bool) -> None:
        """Something is sent; some of it arrives, some of that is consumed, and workers are told or not."""
        service, client = self.service, one(self.active(), number)
        service.open(client)
        for hold in client.holds.values():
            service.send(client, hold, most)
        client.receive(most * part)
        service.eat(client, most * part // 2)
        if tell:
            client.acknowledge()

    @precondition(active)
    @rule(tell=st.booleans(), most=few)
    def everybody_reads(self, tell: bool, most: int) -> None:
        for client in self.active():
            self.service.read(client, most, tell=tell)

    # ---- clients and jobs

    @precondition(lambda self: len(self.datasets) < 4)
    @rule(number=pick)
    def dataset_is_registered(self, number: int) -> None:
        changes: dict[str, Any] = {"unsplittable_reason": "it cannot be split"} if number % 9 == 8 else {}
        changes |= {"dataset_id": "chosen"} if number % 8 == 7 else {}
        at = number % len(SOURCES)
        with suppress(InvalidArgumentError):  # the chosen id has another pipeline, and somebody reads it
            self.datasets.append(SOURCES[at].register(self.service, number, **changes))

    def join(self, dataset: int, job: str, mode: Mode, number: int) -> None:
        cached = mode[1]
        trainer = f"trainer {number % 2}" if cached else ""
        self.service.join(
            one(self.datasets, dataset), job, mode[0], cached=cached, trainer_id=trainer,
            complete_only=cached and number % 3 > 0, iteration=0 if cached else number // 4 % 2,
            on_worker_loss=mode[2],
        )  # fmt: skip

    @precondition(lambda self: self.datasets and len(self.service.clients) < 5)
    @rule(number=pick, job=st.sampled_from(["", "a", "a", "b"]), mode=modes)
    def client_joins(self, number: int, job: str, mode: Mode) -> None:
        # Another mode, another pipeline, a dataset that is forgotten: refused, and the model sees that nothing changed.
        with suppress(DsnbError):
            self.join(number, job, mode, number)

    @precondition(lambda self: self.service.core.state.jobs and len(self.service.clients) < 5)
    @rule(number=pick)
    def client_joins_what_is_read(self, number: int) -> None:
        job = one(list(self.service.core.state.jobs.values()), number)
        with suppress(DsnbError):
            self.service.join(
                job.dataset_id, job.name, job.mode, cached=job.cached, complete_only=job.cached and number % 3 > 0,
                trainer_id=f"trainer {number % 2}" if job.cached else "", on_worker_loss=job.on_worker_loss,
            )  # fmt: skip

    @precondition(readers)
    @rule(number=pick, ticks=st.integers(0, 5))
    def client_breaks_and_returns(self, number: int, ticks: int) -> None:
        client = one(self.readers(), number)
        self.service.break_client(client)
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)
        if client.client_id in self.service.clients:
            self.service.hear(client)
        else:
            assert isinstance(self.service.handle(ClientReport(client_id=client.client_id)).error, NotFoundError)

    @precondition(readers)
    @rule(number=pick)
    def client_leaves(self, number: int) -> None:
        self.service.close(one(self.readers(), number))

    @precondition(readers)
    @rule(number=pick, silently=st.booleans())
    def client_dies(self, number: int, silently: bool) -> None:
        self.service.kill_client(one(self.readers(), number), silently=silently)

    @precondition(readers)
    @rule(number=pick, ticks=st.integers(0, 16))
    def client_is_suspended(self, number: int, ticks: int) -> None:
        self.service.suspend(one(self.readers(), number))
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)

    @precondition(asleep)
    @rule(number=pick)
    def suspended_client_goes_on(self, number: int) -> None:
        with suppress(DsnbError):  # its pass is gone
            self.service.wake(one(self.asleep(), number))

    @precondition(readers)
    @rule(number=pick)
    def client_is_heard(self, number: int) -> None:
        self.service.hear(one(self.readers(), number))

    @precondition(lambda self: any(client.at_end for client in self.readers()))
    @rule(number=pick)
    def client_sees_the_end(self, number: int) -> None:
        client = one([client for client in self.readers() if client.at_end], number)
        if not client.cancelled and self.service.see_end(client) and number % 4:
            self.service.close(client)

    @precondition(idle_jobs)
    @rule(number=pick)
    def job_is_forgotten(self, number: int) -> None:
        self.service.forget(one(self.idle_jobs(), number))

    @precondition(lambda self: self.service.core.state.jobs)
    @rule(number=pick)
    def job_is_paused_or_resumed(self, number: int) -> None:
        job = one(list(self.service.core.state.jobs.values()), number)
        (self.service.resume if job.paused_by else self.service.pause)(job.name)

    @precondition(lambda self: self.service.core.state.jobs)
    @rule(number=pick)
    def job_is_cancelled(self, number: int) -> None:
        name = one(list(self.service.core.state.jobs), number)
        if number % 4 == 0:  # else too many schedules would end here
            assert self.service.cancel(name) == self.service.cancel(name) == "cancelled"

    # ---- time, and the dispatcher's own death

    @rule(ticks=st.integers(1, 20), silent=pick)
    def time_passes_and_one_is_silent(self, ticks: int, silent: int) -> None:
        people: list[SimWorker | SimClient] = [*self.connected(), *self.readers()]
        nobody = [one(people, silent)] if people and silent % 3 == 0 else []
        self.service.wait(ticks * INTERVAL, lambda: self.service.keep_alive(*nobody))

    @precondition(lambda self: len(self.service.records) > self.records + 3)
    @rule(number=pick, ticks=st.integers(0, 20))
    def dispatcher_dies(self, number: int, ticks: int) -> None:
        """After it kept a decision and before anybody heard of it; some come back at once, some later or never."""
        deeds: list[Callable[[], object]] = [
            lambda: None,
            lambda: self.client_joins(number, "b", ("DYNAMIC", False, "")),
            lambda: self.connected() and self.worker_breaks_and_returns(number, 8),
            lambda: self.connected() and self.worker_arrives(number, again=True),
            lambda: self.connected() and self.worker_stops(number),
            lambda: self.connected() and self.worker_dies(number, seen=True),
            lambda: self.asking() and self.tasks_ask_in_turn(3),
            lambda: self.readers() and self.client_leaves(number),
            lambda: self.readers() and self.client_is_heard(number),
            lambda: self.running() and self.task_ends(number),
            lambda: self.connected() and self.worker_reports(number, late=False),
        ]
        self.service.dies = True
        with suppress(DispatcherDied):
            one(deeds, number)()
        self.service.restart(absent=lambda who: who in [*self.connected(), *self.readers()][: number % 3])
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)
        for worker in self.away()[: number % 2]:
            self.service.arrive(worker)
        self.records = len(self.service.records)

    @precondition(lambda self: len(self.service.records) > self.records + 3)
    @rule(seconds=st.integers(5, 3600))
    def dispatcher_is_away(self, seconds: int) -> None:
        self.records = len(self.service.records)
        self.service.keep_alive()
        people = [*self.connected(), *self.readers()]
        self.service.tick(after=float(seconds))
        assert people == [*self.connected(), *self.readers()], "somebody was lost by a late tick alone"

    # ---- the end

    def teardown(self) -> None:
        """Faults are over: each reader comes to the end. When all are gone for long, nothing is left of any job."""
        service = self.service
        if not service.sound:
            return
        self.come_to_rest()
        for client in list(service.clients.values()):
            service.close(client)
        for _ in range(24):  # the longest steps that are not late
            service.tick(after=2 * INTERVAL)
        state = service.core.state
        assert replay(service.records).export() == service.journal.load().export() == state.export()
        service.journal.close()
        assert not state.jobs, "a job remains that nobody has read for longer than its time"
        assert not state.tasks
        assert not state.workers
        assert {dataset.chosen for dataset in state.datasets.values()} <= {True, False}

    def come_to_rest(self) -> None:
        """All that are away come back, and everybody does what is to be done; soon each reader's pass is over."""
        service = self.service
        for job in list(service.core.state.jobs):
            service.resume(job)
        for worker in self.away():
            service.arrive(worker)
        for client in self.asleep():
            with suppress(DsnbError):  # its pass is gone
                service.wake(client)
        for client in service.clients.values():
            if client.active and not client.connected:
                service.hear(client)
        if all(worker.draining or worker.replaced for worker in self.connected()):
            self.worker_arrives(0)
        for _ in range(ROUNDS):
            if not self.round():
                return
            service.tick()
        stuck = [(c.client_id, c.at_end, {i: (h.info, h.ended) for i, h in c.holds.items()}) for c in self.active()]
        raise AssertionError(f"readers never come to the end of their passes: {stuck}")

    def round(self) -> list[SimClient]:
        """Everybody moves once; the clients that still read."""
        service = self.service
        for _, task in self.running():
            self.end(task)
        reading = []
        for client in self.active():
            service.hear(client)
            service.read(client)
            if client.client_id not in service.clients:
                continue
            pipeline = service.passes[client.job, client.number].pipeline
            endless = pipeline.length is None or pipeline.repetitions > 1 << 10
            if endless or (client.at_end and service.see_end(client)):
                service.close(client)
            else:
                reading.append(client)
        for worker in self.connected():
            service.report(worker)
        return reading


def run_schedules(count: int, steps: int) -> None:
    """The same schedules each time, so that a red build is a change's own fault."""
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_the_core_keeps_its_promises_under_any_schedule() -> None:
    run_schedules(300, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_core_keeps_its_promises_under_thousands_of_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    CoreMachine.seen = Seen()
    run_schedules(5000, 50)
    with capsys.disabled():
        print(f"\ndispatcher core: {5000 * 60 / (time.monotonic() - began):,.0f} schedules a minute, in which")  # noqa: T201
        for happened in fields(Seen):
            print(f"  {happened.name.replace('_', ' '):<12} {getattr(CoreMachine.seen, happened.name):>9,}")  # noqa: T201

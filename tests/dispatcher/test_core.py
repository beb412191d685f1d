"""The core under every schedule that hypothesis thinks of; what is checked after each step stands in `model.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dsnb.dispatcher import events as e
from dsnb.dispatcher.state import replay
from dsnb.errors import DsnbError, InvalidArgumentError, NotFoundError
from tests.dispatcher.model import DispatcherDied, SimClient, SimTask, SimWorker
from tests.dispatcher.simulation import INTERVAL, Service

PIPELINES = ((20,), (6,), (30,), (5, 12), (0,), ())
T = TypeVar("T")
pick = st.integers(0, 63)
few = st.integers(1, 9)
modes = st.sampled_from(["DYNAMIC", "DYNAMIC", "DYNAMIC", "OFF", "DATA"])


def one(things: Sequence[T], number: int) -> T:
    """The thing that a drawn number stands for."""
    return things[number % len(things)]


class CoreMachine(RuleBasedStateMachine):
    """Workers, clients and time, in any order; what goes wrong is found by the model.

    Rules are shaped so that most steps do something: a rule that could always run would be most of a schedule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.service = Service()
        self.datasets: list[str] = []
        self.made = 0
        self.seen = 0

    @initialize(pipeline=st.sampled_from(PIPELINES), workers=st.integers(1, 3), mode=modes)
    def a_service_at_work(self, pipeline: tuple[int, ...], workers: int, mode: str) -> None:
        """Most of what can go wrong needs workers and a reader: begin with them."""
        for number in range(workers):
            self.worker_arrives(number)
        self.datasets.append(self.service.register(*pipeline))
        self.service.join(self.datasets[0], "a", mode)

    # ---- who is there

    def connected(self) -> list[SimWorker]:
        return [worker for worker in self.service.workers.values() if worker.connected]

    def running(self) -> list[tuple[SimWorker, SimTask]]:
        return [(worker, task) for worker in self.connected() for task in worker.tasks.values() if not task.ended]

    def asking(self) -> list[tuple[SimTask, int]]:
        return [(task, at) for _, task in self.running() for at in range(len(task.places))]

    def asked(self) -> list[tuple[SimTask, int]]:
        return [(task, at) for task, at in self.asking() if task.places[at].asked]

    def readers(self) -> list[SimClient]:
        return [client for client in self.service.clients.values() if client.connected]

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
            self.client_joins(number, "b", "DYNAMIC")
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)
        if number % 4 < 3:
            self.service.arrive(worker)

    @precondition(lambda self: self.service.given_up)
    @rule()
    def lost_worker_is_told_that_it_is_unknown_and_returns(self) -> None:
        worker = next(iter(self.service.given_up.values()))
        questions = [e.SplitsRequested(task_id=t, provider=0, repetition=0, cursor=0, want=1) for t in worker.tasks]
        for wrong in (*questions, e.WorkerSeen(uid=worker.uid)):
            decision = self.service.handle(wrong)
            assert isinstance(decision.error, NotFoundError)
            assert not decision.records
        self.service.arrive(worker)

    @precondition(lambda self: len(self.connected()) > 1)
    @rule(number=pick)
    def worker_stops(self, number: int) -> None:
        self.service.stop(one(self.connected(), number))

    @precondition(lambda self: any(not worker.draining for worker in self.connected()))
    @rule(number=pick)
    def worker_drains(self, number: int) -> None:
        self.service.drain(one([worker for worker in self.connected() if not worker.draining], number))

    @precondition(lambda self: len(self.service.workers) > 1)
    @rule(number=pick)
    def worker_is_ordered_to_drain(self, number: int) -> None:
        self.service.order_to_drain(one(list(self.service.workers.values()), number))

    @precondition(lambda self: len(self.service.workers) > 1)
    @rule(number=pick)
    def worker_is_removed(self, number: int) -> None:
        worker = one(list(self.service.workers.values()), number)
        assert self.service.remove(worker) == self.service.remove(worker) == "gone"

    # ---- tasks

    @precondition(asking)
    @rule(number=pick, want=few, times=st.integers(1, 6))
    def task_asks(self, number: int, want: int, times: int) -> None:
        task, provider = one(self.asking(), number)
        for _ in range(times):
            self.service.ask(task, provider, want)
            if number % 2:  # as if the answer had been lost
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

    @precondition(asking)
    @rule(number=pick)
    def task_begins_the_next_pass(self, number: int) -> None:
        self.service.next_pass(one(self.asking(), number)[0])

    @precondition(running)
    @rule(number=pick, early=st.booleans())
    def task_ends(self, number: int, early: bool) -> None:
        """With all that there is, or early, as with `take`; its readers may have had all of it or not."""
        worker, task = one(self.running(), number)
        for at in range(0 if early else len(task.places)):
            while not self.service.ask(task, at, 9).done:
                pass
        task.ended = True
        if number % 2:
            self.service.consume(task)
            self.service.report(worker)

    @precondition(lambda self: any(worker.tasks for worker in self.connected()))
    @rule(number=pick, part=st.integers(1, 4))
    def readers_consume(self, number: int, part: int) -> None:
        worker, task = one([(w, task) for w in self.connected() for task in w.tasks.values()], number)
        for at, before in enumerate(task.done):
            task.done[at] = max(before, self.service.held(task, at) * part // 4)
        self.service.report(worker)

    # ---- clients and jobs

    @precondition(lambda self: len(self.datasets) < 4)
    @rule(number=pick)
    def dataset_is_registered(self, number: int) -> None:
        counts, why = PIPELINES[number % len(PIPELINES)], "it cannot be split" if number % 9 == 8 else ""
        chosen = "chosen" if number % 8 == 7 else ""
        with suppress(InvalidArgumentError):  # the chosen id has another pipeline, and somebody reads it
            self.datasets.append(
                self.service.register(*counts, dataset_id=chosen, unsplittable=why, fingerprint=f"{counts}{why}")
            )

    @precondition(lambda self: self.datasets and len(self.service.clients) < 5)
    @rule(number=pick, job=st.sampled_from(["", "a", "b"]), mode=modes)
    def client_joins(self, number: int, job: str, mode: str) -> None:
        # Another mode, another pipeline, a dataset that is forgotten: refused, and the model sees that nothing changed.
        with suppress(DsnbError):
            self.service.join(one(self.datasets, number), job, mode, repetition=number // 4 % 2)

    @precondition(readers)
    @rule(number=pick, ticks=st.integers(0, 5))
    def client_breaks_and_returns(self, number: int, ticks: int) -> None:
        client = one(self.readers(), number)
        self.service.break_client(client)
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)
        if client.client_id in self.service.clients:
            self.service.hear(client)
        else:
            assert isinstance(self.service.handle(e.ClientSeen(client_id=client.client_id)).error, NotFoundError)

    @precondition(readers)
    @rule(number=pick)
    def client_leaves(self, number: int) -> None:
        self.service.close(one(self.readers(), number))

    @precondition(readers)
    @rule(number=pick)
    def client_sees_the_end(self, number: int) -> None:
        client = one(self.readers(), number)
        owners = {task.task_id: task for worker in self.service.workers.values() for task in worker.tasks.values()}
        if client.tasks and all(task in owners and owners[task].ended for task in client.tasks):
            assert self.service.see_end(client) == client.finished

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
        assert self.service.cancel(name) == self.service.cancel(name) == "cancelled"

    # ---- time, and the dispatcher's own death

    @rule(ticks=st.integers(1, 20), silent=pick)
    def time_passes_and_one_is_silent(self, ticks: int, silent: int) -> None:
        people: list[SimWorker | SimClient] = [*self.connected(), *self.readers()]
        nobody = [one(people, silent)] if people and silent % 3 == 0 else []
        self.service.wait(ticks * INTERVAL, lambda: self.service.keep_alive(*nobody))

    @precondition(lambda self: len(self.service.records) > self.seen + 3)
    @rule(number=pick, ticks=st.integers(0, 20))
    def dispatcher_dies(self, number: int, ticks: int) -> None:
        """After it kept a decision and before anybody heard of it; some come back at once, some later or never."""
        deeds: list[Callable[[], object]] = [
            lambda: None,
            lambda: self.client_joins(number, "b", "DYNAMIC"),
            lambda: self.connected() and self.worker_breaks_and_returns(number, 8),
            lambda: self.connected() and self.worker_arrives(number, again=True),
            lambda: len(self.connected()) > 1 and self.worker_stops(number),
            lambda: self.asking() and self.tasks_ask_in_turn(3),
            lambda: self.readers() and self.client_leaves(number),
            lambda: self.running() and self.task_ends(number, early=False),
        ]
        self.service.dies = True
        with suppress(DispatcherDied):
            one(deeds, number)()
        self.service.restart(absent=lambda who: who in [*self.connected(), *self.readers()][: number % 3])
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)
        for worker in [worker for worker in self.service.workers.values() if not worker.connected][: number % 2]:
            self.service.arrive(worker)
        self.seen = len(self.service.records)

    @precondition(lambda self: len(self.service.records) > self.seen + 3)
    @rule(seconds=st.integers(5, 3600))
    def dispatcher_is_away(self, seconds: int) -> None:
        self.seen = len(self.service.records)
        self.service.keep_alive()
        people = [*self.connected(), *self.readers()]
        self.service.tick(after=float(seconds))
        assert people == [*self.connected(), *self.readers()], "somebody was lost by a late tick alone"

    # ---- the end

    def teardown(self) -> None:
        """When everybody is gone for long, nothing is left of any job."""
        service = self.service
        if not service.sound:
            return
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


def run_schedules(count: int, steps: int) -> None:
    """The same schedules each time, so that a red build is a change's own fault."""
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        ),
    )  # fmt: skip


def test_the_core_keeps_its_promises_under_any_schedule() -> None:
    run_schedules(300, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_core_keeps_its_promises_under_thousands_of_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    run_schedules(5000, 50)
    with capsys.disabled():
        print(f"\ndispatcher core: {5000 * 60 / (time.monotonic() - began):,.0f} schedules a minute")  # noqa: T201

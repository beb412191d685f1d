"""The core under every schedule that hypothesis thinks of; what is checked after each step stands in `model.py`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.core import Core
from dsnb.dispatcher.state import replay
from dsnb.errors import DsnbError, NotFoundError
from tests.dispatcher.model import SimClient, SimTask, SimWorker
from tests.dispatcher.simulation import INTERVAL, Service

PIPELINES = ((6,), (20,), (5, 12), (0,), ())
pick = st.integers(0, 63)
few = st.integers(1, 9)


class CoreMachine(RuleBasedStateMachine):
    """Workers, clients and time, in any order; what goes wrong is found by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.service = Service()
        self.datasets: list[str] = []
        self.made = 0

    @initialize(pipeline=st.sampled_from(PIPELINES), workers=st.integers(0, 3), mode=st.sampled_from(["DYNAMIC", "OFF"]))
    def a_service_at_work(self, pipeline: tuple[int, ...], workers: int, mode: str) -> None:
        """Most of what can go wrong needs workers and a reader: begin with them."""
        for number in range(workers):
            self.worker_arrives(number)
        self.datasets.append(self.service.register(*pipeline))
        self.service.join(self.datasets[0], "a", mode)

    # ---- who is there

    def worker(self, number: int, *, connected: bool = True) -> SimWorker:
        there = [worker for worker in self.service.workers.values() if worker.connected is connected]
        return there[number % len(there)]

    def client(self, number: int, *, connected: bool = True) -> SimClient:
        there = [client for client in self.service.clients.values() if client.connected is connected]
        return there[number % len(there)]

    def task(self, number: int) -> tuple[SimWorker, SimTask]:
        tasks = self.tasks()
        return tasks[number % len(tasks)]

    def tasks(self) -> list[tuple[SimWorker, SimTask]]:
        """Tasks that still run, of workers that are reached."""
        workers = [worker for worker in self.service.workers.values() if worker.connected]
        return [(worker, task) for worker in workers for task in worker.tasks.values() if not task.ended]

    def some_workers(self) -> bool:
        return any(worker.connected for worker in self.service.workers.values())

    def some_broken_workers(self) -> bool:
        return any(not worker.connected for worker in self.service.workers.values())

    def some_clients(self) -> bool:
        return any(client.connected for client in self.service.clients.values())

    def some_broken_clients(self) -> bool:
        return any(not client.connected for client in self.service.clients.values())

    def some_asking(self) -> bool:
        return any(task.places for _, task in self.tasks())

    # ---- workers

    @precondition(lambda self: len(self.service.workers) < 4)
    @rule(number=pick)
    def worker_arrives(self, number: int) -> None:
        """At one of four addresses, so that some are those of others: workers that were started again."""
        self.made += 1
        self.service.add_worker(f"uid{self.made}", f"host:{number % 4}")

    @precondition(some_workers)
    @rule(number=pick)
    def worker_breaks(self, number: int) -> None:
        self.service.break_worker(self.worker(number))

    @precondition(some_broken_workers)
    @rule(number=pick)
    def worker_returns(self, number: int) -> None:
        self.service.arrive(self.worker(number, connected=False))

    @precondition(lambda self: self.service.given_up)
    @rule()
    def lost_worker_returns(self) -> None:
        self.service.arrive(next(iter(self.service.given_up.values())))

    @precondition(lambda self: any(worker.tasks for worker in self.service.given_up.values()))
    @rule()
    def lost_worker_is_answered_that_it_is_unknown(self) -> None:
        worker = next(worker for worker in self.service.given_up.values() if worker.tasks)
        event = e.SplitsRequested(task_id=next(iter(worker.tasks)), provider=0, repetition=0, cursor=0, want=1)
        for wrong in (event, e.WorkerSeen(uid=worker.uid)):
            decision = self.service.handle(wrong)
            assert isinstance(decision.error, NotFoundError)
            assert not decision.records

    @precondition(some_workers)
    @rule(number=pick)
    def worker_stops(self, number: int) -> None:
        self.service.stop(self.worker(number))

    @precondition(some_workers)
    @rule(number=pick)
    def worker_drains(self, number: int) -> None:
        self.service.drain(self.worker(number))

    @precondition(some_workers)
    @rule(number=pick)
    def worker_reports(self, number: int) -> None:
        self.service.report(self.worker(number))

    # ---- tasks

    @precondition(some_asking)
    @rule(number=pick, want=few, times=st.integers(1, 4))
    def task_asks(self, number: int, want: int, times: int) -> None:
        asking = [task for _, task in self.tasks() if task.places]
        task = asking[number % len(asking)]
        for _ in range(times):
            self.service.ask(task, number % len(task.places), want)

    @precondition(lambda self: any(place.asked for _, task in self.tasks() for place in task.places))
    @rule(number=pick, old=st.booleans())
    def task_asks_again(self, number: int, old: bool) -> None:
        asked = [(task, at) for _, task in self.tasks() for at, place in enumerate(task.places) if place.asked]
        task, provider = asked[number % len(asked)]
        if old:
            self.service.ask_old(task, provider, number % len(task.places[provider].asked))
        else:
            self.service.ask_again(task, provider)

    @precondition(some_asking)
    @rule(number=pick)
    def task_begins_the_next_pass(self, number: int) -> None:
        asking = [task for _, task in self.tasks() if task.places]
        self.service.next_pass(asking[number % len(asking)])

    @precondition(tasks)
    @rule(number=pick, reported=st.booleans())
    def task_ends(self, number: int, reported: bool) -> None:
        """With all that there is, or early, as with `take`."""
        worker, task = self.task(number)
        if number % 3 and task.places:
            while not self.service.ask(task, number % len(task.places)).done:
                pass
        task.ended = True
        if reported:
            self.service.report(worker)

    @precondition(lambda self: any(worker.tasks for worker in self.service.workers.values()))
    @rule(number=pick, part=st.integers(0, 4))
    def readers_consume(self, number: int, part: int) -> None:
        tasks = [task for worker in self.service.workers.values() for task in worker.tasks.values()]
        task = tasks[number % len(tasks)]
        for at, before in enumerate(task.done):
            task.done[at] = max(before, self.service.held(task, at) * part // 4)

    # ---- clients and jobs

    @rule(number=pick)
    def dataset_is_registered(self, number: int) -> None:
        unsplittable = "this source cannot be split" if number % 9 == 8 else ""
        counts = PIPELINES[number % len(PIPELINES)]
        self.datasets.append(
            self.service.register(
                *counts, dataset_id="chosen" if number % 8 == 7 else "", unsplittable=unsplittable,
                fingerprint=f"fingerprint of range{counts}{unsplittable}",
            )
        )  # fmt: skip

    @precondition(lambda self: self.datasets)
    @rule(number=pick, job=st.sampled_from(["", "a", "b"]), mode=st.sampled_from(["DYNAMIC", "DYNAMIC", "OFF"]))
    def client_joins(self, number: int, job: str, mode: str) -> None:
        dataset = self.datasets[-1 - number % len(self.datasets)]
        # Another mode, another pipeline, a dataset that is forgotten: refused, and the model sees that nothing changed.
        self.attempt(lambda: self.service.join(dataset, job, mode, repetition=number % 2))

    @precondition(some_clients)
    @rule(number=pick)
    def client_breaks(self, number: int) -> None:
        self.service.break_client(self.client(number))

    @precondition(some_broken_clients)
    @rule(number=pick)
    def client_returns(self, number: int) -> None:
        self.service.hear(self.client(number, connected=False))

    @precondition(some_clients)
    @rule(number=pick)
    def client_leaves(self, number: int) -> None:
        self.service.close(self.client(number))

    @precondition(some_clients)
    @rule(number=pick)
    def client_sees_the_end(self, number: int) -> None:
        client = self.client(number)
        owners = {task.task_id: task for worker in self.service.workers.values() for task in worker.tasks.values()}
        known = [owners[task] for task in client.tasks if task in owners]
        if all(task.ended for task in known):
            assert self.service.see_end(client) == client.finished

    @rule(job=st.sampled_from(["a", "b"]))
    def job_is_forgotten(self, job: str) -> None:
        self.attempt(lambda: self.service.forget(job))

    # ---- time, and the dispatcher's own death

    @rule(ticks=st.integers(1, 20))
    def time_passes(self, ticks: int) -> None:
        self.service.wait(ticks * INTERVAL)

    @rule(ticks=st.integers(1, 20))
    def time_passes_while_all_are_heard_of(self, ticks: int) -> None:
        self.service.wait(ticks * INTERVAL, self.service.keep_alive)

    @rule(seconds=st.integers(5, 3600))
    def tick_comes_late(self, seconds: int) -> None:
        self.service.keep_alive()
        here = self.service.core.state.workers.keys() | self.service.core.state.clients.keys()
        broken = [one.uid for one in self.service.workers.values() if not one.connected]
        broken += [one.client_id for one in self.service.clients.values() if not one.connected]
        self.service.tick(after=float(seconds))
        still = self.service.core.state.workers.keys() | self.service.core.state.clients.keys()
        assert here - still <= set(broken), "somebody was lost because the dispatcher was late"

    @rule()
    def dispatcher_restarts(self) -> None:
        self.service.restart()

    # ---- the end

    def teardown(self) -> None:
        """When everybody is gone for long, nothing is left of any job."""
        service = self.service
        for client in list(service.clients.values()):
            service.close(client)
        for _ in range(24):  # the longest steps that are not late
            service.tick(after=2 * INTERVAL)
        state = service.core.state
        assert not state.jobs, "a job remains that nobody has read for longer than its time"
        assert not state.tasks
        assert not state.workers
        assert {dataset.chosen for dataset in state.datasets.values()} <= {True, False}

    @staticmethod
    def attempt(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except DsnbError:
            pass


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
    run_schedules(150, 30)

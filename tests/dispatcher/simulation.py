"""A dispatcher core with simulated workers, clients and time.

Times are multiples of a quarter of a second, so that sums of them are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from tests.dispatcher.model import Model, SimClient, SimTask, SimWorker

INTERVAL = 0.25
CONFIG = DispatcherConfig(
    job_gc_check_interval_ms=250,
    worker_timeout_ms=4_000,
    client_timeout_ms=3_000,
    reconnect_ms=1_000,
    task_gc_timeout_ms=2_000,
    job_gc_timeout_ms=6_000,
)


class Service(Model):
    """A service whose workers and clients do what they are told to; each step is checked by the model.

    Example:
        >>> service = Service()
        >>> worker = service.add_worker("w")
        >>> client = service.join(service.register(3))
        >>> service.ask(service.task(worker)).first
        0
    """

    def __init__(self, config: DispatcherConfig = CONFIG) -> None:
        super().__init__(config, now=1000.0)
        self.kept = ""
        """What the last registration was told of the pipeline that has its id."""
        self.given_up: dict[str, SimWorker] = {}
        """Workers that were lost and still run: they hung, or their network did."""

    def call(self, event: e.Event) -> Any:
        """Let the core decide, and return its answer or raise its error."""
        decision = self.handle(event)
        if decision.error is not None:
            raise decision.error
        return decision.reply

    # ---- datasets and jobs

    def register(self, *counts: int, **changes: Any) -> str:
        """Register a pipeline with a provider of each count."""
        name = f"range{counts}"
        fields: dict[str, Any] = {
            "dataset_id": "",
            "fingerprint": f"fingerprint of {name}",
            "definition": f"definition of {name}",
            "blobs": (),
            "element_spec": "",
            "cardinality": -2,
            "compression": "AUTO",
            "pipeline": name,
            "providers": tuple((f"range({count})", count) for count in counts),
            "unsplittable": "",
        }
        registered = self.call(e.RegisterDataset(**{**fields, **changes}))
        assert isinstance(registered, e.Registered)
        self.kept = registered.kept
        return registered.dataset_id

    def join(self, dataset_id: str, job_name: str = "", mode: str = "DYNAMIC", **changes: Any) -> SimClient:
        """Let a client join."""
        fields: dict[str, Any] = {
            "dataset_id": dataset_id,
            "job_name": job_name,
            "mode": mode,
            "cached": False,
            "trainer_id": "",
            "compression": "AUTO",
            "target_workers": "AUTO",
            "repetition": 0,
        }
        joined = self.call(e.Join(**{**fields, **changes}))
        return self.clients[joined.client_id]

    def forget(self, job: str) -> None:
        self.call(e.ForgetJob(name=job))

    def pause(self, job: str) -> str:
        return str(self.call(e.PauseJob(name=job, by="anna")))

    def resume(self, job: str) -> str:
        return str(self.call(e.ResumeJob(name=job, by="anna")))

    def cancel(self, job: str) -> str:
        return str(self.call(e.CancelJob(name=job, by="anna")))

    # ---- workers

    def add_worker(self, uid: str, address: str = "") -> SimWorker:
        """Let a new worker arrive; whoever was at its address before is gone."""
        worker = SimWorker(uid, address or f"host:{uid}")
        for table in (self.workers, self.given_up):
            for other in [other for other in table.values() if other.address == worker.address]:
                del table[other.uid]
        self.workers[uid] = worker
        self.arrive(worker)
        return worker

    def arrive(self, worker: SimWorker) -> None:
        """Let a worker open its control stream, for the first time or again, with the tasks that it has."""
        if self.given_up.pop(worker.uid, None) is not None:
            worker.draining = False  # to the dispatcher it is a new one
        self.workers[worker.uid] = worker
        worker.connected, worker.silence, worker.patience = True, 0.0, self.patience(worker)
        self.call(
            e.WorkerArrives(
                uid=worker.uid, name="", address=worker.address, isolation="thread", pid=1, tasks=tuple(worker.tasks),
                grants=tuple(grant for task in worker.tasks.values() for grant in self.grants(task)),
            )
        )  # fmt: skip

    def grants(self, task: SimTask) -> list[e.Granted]:
        """The last run of each provider that a task knows of."""
        runs = {at: [x for x in place.asked if not x[1].done][-1:] for at, place in enumerate(task.places)}
        return [
            e.Granted(task_id=task.task_id, provider=at, repetition=asked[0], cursor=asked[1], first=r.first, end=r.end)
            for at, found in runs.items()
            for asked, r in found
        ]

    def restart(self, absent: Callable[[SimWorker | SimClient], bool] = lambda _one: False) -> None:
        """Let the dispatcher die and come back, and then all who were connected, but those who are absent."""
        before = [one for one in (*self.workers.values(), *self.clients.values()) if one.connected]
        super().restart()
        self.call(e.Begin(instance="a service"))
        for one in before:
            if not absent(one):
                self.arrive(one) if isinstance(one, SimWorker) else self.hear(one)

    def break_worker(self, worker: SimWorker) -> None:
        worker.connected, worker.silence, worker.patience = False, 0.0, self.config.reconnect_ms / 1000
        self.call(e.WorkerBroken(uid=worker.uid))

    def drain(self, worker: SimWorker) -> None:
        worker.draining = True
        self.call(e.WorkerDrains(uid=worker.uid))

    def order_to_drain(self, worker: SimWorker) -> str:
        """Let somebody tell the dispatcher that a worker is to leave when it is done."""
        return str(self.call(e.DrainWorker(name=worker.uid, by="anna")))

    def remove(self, worker: SimWorker) -> str:
        """Let somebody tell the dispatcher to do without a worker."""
        return str(self.call(e.RemoveWorker(name=worker.address, by="anna")))

    def stop(self, worker: SimWorker) -> None:
        """Let a worker say goodbye."""
        del self.workers[worker.uid]
        self.call(e.WorkerLeaves(uid=worker.uid))

    def report(self, worker: SimWorker) -> None:
        """Let a worker say how many splits are done, and which tasks have ended and been consumed."""
        worker.silence, worker.patience = 0.0, self.patience(worker)
        done = {task.task_id: tuple(task.done) for task in worker.tasks.values() if task.places}
        self.report_done(done)
        ended = tuple(task.task_id for task in worker.tasks.values() if task.ended and self.consumed(task))
        self.call(e.WorkerSeen(uid=worker.uid, ended=ended, done=done))

    # ---- tasks

    def task(self, worker: SimWorker, index: int = -1) -> SimTask:
        """A task of a worker, the newest unless another is wanted."""
        return list(worker.tasks.values())[index]

    def ask(self, task: SimTask, provider: int = 0, want: int = 4) -> e.Splits:
        """Ask for the next splits and take them, as a worker does."""
        place = task.places[provider]
        question, before = (place.repetition, place.cursor), len(self.records)
        answer = self._ask(task, provider, question, want)
        if not answer.done and len(self.records) > before:  # else it was given before, and the answer was lost
            assert 0 < answer.end - answer.first <= max(1, want), "an answer of another size than wanted"
        place.asked.append((question, answer))
        if answer.done:
            place.repetition, place.cursor = place.repetition + 1, 0
        else:
            place.cursor += answer.end - answer.first
        return answer

    def ask_again(self, task: SimTask, provider: int = 0, want: int = 9) -> None:
        """Ask the last question once more, as if its answer had been lost."""
        (question, answer), before = task.places[provider].asked[-1], len(self.records)
        assert self._ask(task, provider, question, want) == answer, "another answer to the same question"
        assert len(self.records) == before, "a question that was asked again changed something"

    def ask_old(self, task: SimTask, provider: int, which: int) -> None:
        """Let a question arrive that later ones have overtaken: it may fail, and gives nothing away."""
        (question, answer), before = task.places[provider].asked[which], len(self.records)
        decision = self.handle(self._question(task, provider, question, 3))
        assert decision.error is not None or decision.reply.done or decision.reply == answer
        assert len(self.records) == before, "an old question changed something"

    def next_pass(self, task: SimTask) -> None:
        """Let a task give up what is left of a repetition, as the end of a zip's shorter side does."""
        repetition = 1 + max(place.repetition for place in task.places)
        for place in task.places:
            place.repetition, place.cursor = repetition, 0

    def finish(self, worker: SimWorker, task: SimTask, *, consumed: bool = True) -> None:
        """Let a task ask for all that is left, end, be read to its end if `consumed`, and be reported."""
        for provider in range(len(task.places)):
            while not self.ask(task, provider).done:
                pass
        task.ended = True
        if consumed:
            self.consume(task)
        self.report(worker)

    def consumed(self, task: SimTask) -> bool:
        return task.done == [self.held(task, provider) for provider in range(len(task.places))]

    def consume(self, task: SimTask) -> None:
        """Let the readers of a task have all that it made so far."""
        task.done = [self.held(task, provider) for provider in range(len(task.places))]

    def _ask(self, task: SimTask, provider: int, question: tuple[int, int], want: int) -> e.Splits:
        answer = self.call(self._question(task, provider, question, want))
        assert isinstance(answer, e.Splits)
        return answer

    def _question(self, task: SimTask, provider: int, question: tuple[int, int], want: int) -> e.SplitsRequested:
        return e.SplitsRequested(
            task_id=task.task_id, provider=provider, repetition=question[0], cursor=question[1], want=want
        )

    # ---- clients

    def see_end(self, client: SimClient) -> bool:
        """Let a client say that all tasks it knows have ended, and ask whether that is all."""
        return bool(self.call(e.EndSeen(client_id=client.client_id, ended=tuple(client.tasks))))

    def hear(self, client: SimClient) -> None:
        """Let a client give a sign of life; after a break it opens its stream again and is told how things are."""
        client.silence, client.patience = 0.0, self.patience(client)
        if not client.connected:
            client.connected = True
            self.show(client)
            self.catch_up(client)
        self.call(e.ClientSeen(client_id=client.client_id))

    def break_client(self, client: SimClient) -> None:
        client.connected, client.silence, client.patience = False, 0.0, self.config.reconnect_ms / 1000
        self.call(e.ClientBroken(client_id=client.client_id))

    def close(self, client: SimClient) -> None:
        """Let a client say goodbye."""
        del self.clients[client.client_id]
        self.call(e.ClientLeaves(client_id=client.client_id))

    # ---- time

    def tick(self, after: float = INTERVAL) -> None:
        """Let time pass and the clock tick once; silence beyond two intervals is the dispatcher's own absence."""
        self.now += after
        for one in (*self.workers.values(), *self.clients.values()):
            one.silence += min(after, 2 * INTERVAL)
        late = {uid: worker for uid, worker in self.workers.items() if worker.silence > worker.patience}
        for worker in late.values():
            worker.connected = False
            self.given_up[worker.uid] = self.workers.pop(worker.uid)
        for client in [client for client in self.clients.values() if client.silence > client.patience]:
            del self.clients[client.client_id]
        self.call(e.Tick())

    def wait(self, seconds: float, during: Callable[[], None] | None = None) -> None:
        """Let time pass with a tick at each interval, and something else after each."""
        for _ in range(int(seconds / INTERVAL)):
            self.tick()
            if during is not None:
                during()

    def keep_alive(self, *silent: SimWorker | SimClient) -> None:
        """Let everybody who is connected be heard of, but these."""
        for worker in list(self.workers.values()):
            if worker.connected and worker not in silent:
                self.report(worker)
        for client in list(self.clients.values()):
            if client.connected and client not in silent:
                self.hear(client)

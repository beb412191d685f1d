"""A dispatcher core with simulated workers, clients and time.

Times are multiples of a quarter of a second, so that sums of them are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher import records as r
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.wire.messages import (
    ClientReport,
    ControlRequest,
    DatasetInfo,
    EndRequest,
    ForgetRequest,
    JoinRequest,
    RegisterReply,
    SplitProvider,
    SplitsReply,
    SplitsRequest,
)
from tests.dispatcher.actors import Pipeline, SimClient, SimHold, SimTask, SimWorker
from tests.dispatcher.model import Model, Seen

INTERVAL = 0.25
CONFIG = DispatcherConfig(
    job_gc_check_interval_ms=250,
    worker_timeout_ms=4_000,
    client_timeout_ms=3_000,
    reconnect_ms=1_000,
    task_gc_timeout_ms=2_000,
    job_gc_timeout_ms=6_000,
)
MOST = 1 << 20


class Service(Model):
    """A service whose workers and clients do what they are told to; each step is checked by the model.

    Example:
        >>> service = Service()
        >>> worker = service.add_worker("w")
        >>> client = service.join(service.register(3))
        >>> service.ask(service.task(worker)).first
        0
        >>> service.read(client)
        [(0, 0), (0, 1), (0, 2)]
    """

    def __init__(self, config: DispatcherConfig = CONFIG, seen: Seen | None = None) -> None:
        super().__init__(config, 1000.0, seen)
        self.kept = ""
        """What the last registration was told of the pipeline that has its id."""
        self.given_up: dict[str, SimWorker] = {}
        """Workers that were lost and still run: they hung, or their network did."""
        self.forsaken: list[SimClient] = []
        """Clients that were given up and still run: they were stopped, or their network was."""

    def call(self, event: e.Event) -> Any:
        """Let the core decide, and return its answer or raise its error."""
        decision = self.handle(event)
        if decision.error is not None:
            raise decision.error
        return decision.reply

    # ---- datasets and jobs

    def register(self, *counts: int, makes: Pipeline | None = None, **changes: Any) -> str:
        """Register a pipeline with a provider of each count; what it `makes` follows from these unless it is told."""
        name, dataset_id = changes.pop("name", f"range{counts}"), changes.pop("dataset_id", "")
        fields: dict[str, Any] = {
            "fingerprint": f"fingerprint of {name}",
            "cardinality": -2,
            "compression": "AUTO",
            "pipeline": name,
            "providers": tuple(SplitProvider(source=f"range({count})", count=count) for count in counts),
            "num_files": -1,
        }
        fields |= changes
        before = len(self.records)
        registered = self.call(
            e.RegisterDataset(dataset_id=dataset_id, definition=f"definition of {name}", info=DatasetInfo(**fields))
        )
        assert isinstance(registered, RegisterReply)
        self.kept = registered.difference
        cardinality = fields["cardinality"]
        length = None if cardinality == -1 else cardinality if cardinality >= 0 else 20
        if any(isinstance(record, r.DatasetRegistered) for record in self.records[before:]):  # else another one stays
            self.pipelines[registered.dataset_id] = makes or Pipeline(counts=counts, length=length)
        return registered.dataset_id

    def countable(self, count: int, **changes: Any) -> str:
        """Register a pipeline that makes one element of each of its splits, and is known to."""
        return self.register(count, cardinality=count, **changes)

    def join(self, dataset_id: str, job_name: str = "", mode: str = "DYNAMIC", **changes: Any) -> SimClient:
        """Let a client join."""
        fields: dict[str, Any] = {
            "dataset_id": dataset_id,
            "job_name": job_name,
            "mode": mode,
            "compression": "AUTO",
            "target_workers": "AUTO",
        }
        joined = self.call(JoinRequest(**{**fields, **changes}))
        return self.clients[joined.client_id]

    def forget(self, job: str) -> None:
        self.call(ForgetRequest(job_name=job))

    def pause(self, job: str) -> str:
        return str(self.call(ControlRequest(action="pause", name=job, requested_by="anna")))

    def resume(self, job: str) -> str:
        return str(self.call(ControlRequest(action="resume", name=job, requested_by="anna")))

    def cancel(self, job: str) -> str:
        return str(self.call(ControlRequest(action="cancel", name=job, requested_by="anna")))

    # ---- workers

    def add_worker(self, uid: str, address: str = "") -> SimWorker:
        """Let a new worker arrive; the one that was at its address before is gone."""
        worker = SimWorker(uid, address or f"host:{uid}")
        for table in (self.workers, self.given_up):
            for other in [other for other in table.values() if other.address == worker.address]:
                self.lose(table.pop(other.uid))
        self.workers[uid] = worker
        self.arrive(worker)
        return worker

    def arrive(self, worker: SimWorker) -> None:
        """Let a worker open its control stream, for the first time or again, with the tasks that it has."""
        if self.given_up.pop(worker.uid, None) is not None:
            worker.draining = worker.leaving = worker.replaced = False  # to the dispatcher it is a new one
        self.workers[worker.uid] = worker
        worker.connected, worker.silence, worker.patience = True, 0.0, self.patience(worker)
        worker.releases.clear()
        worker.reports.clear()
        self.call(worker.arrival())
        worker.write_report()
        self.deliver_reports(worker)

    def restart(self, absent: Callable[[SimWorker | SimClient], bool] = lambda _one: False) -> None:
        """Let the dispatcher die and come back, and then all who were connected, but those who are absent."""
        before = [one for one in (*self.workers.values(), *self.clients.values()) if one.connected]
        super().restart()
        self.call(e.DispatcherStarts(instance="a service"))
        for one in before:
            if not absent(one):
                self.arrive(one) if isinstance(one, SimWorker) else self.hear(one)

    def break_worker(self, worker: SimWorker) -> None:
        """Let the connection of a worker break, which goes on."""
        worker.connected, worker.silence, worker.patience = False, 0.0, self.config.reconnect_ms / 1000
        worker.releases.clear()
        worker.reports.clear()
        self.call(e.WorkerDisconnected(uid=worker.uid))

    def drain(self, worker: SimWorker) -> None:
        worker.leaving = True
        self.call(e.WorkerDrains(uid=worker.uid))

    def hold_new_workers(self) -> None:
        self.call(e.HoldNewWorkers())

    def replace(self, *workers: SimWorker) -> None:
        """Let the workers that were held get all new work; these finish what they have."""
        self.call(e.ReplaceWorkers(uids=tuple(worker.uid for worker in workers)))

    def order_to_drain(self, worker: SimWorker) -> str:
        """Let somebody tell the dispatcher that a worker is to leave when it is done."""
        return str(self.call(ControlRequest(action="drain", name=worker.uid, requested_by="anna")))

    def remove(self, worker: SimWorker) -> str:
        """Let somebody tell the dispatcher to do without a worker."""
        return str(self.call(ControlRequest(action="remove", name=worker.address, requested_by="anna")))

    def stop(self, worker: SimWorker) -> None:
        """Let a worker say goodbye, and with its last report how far its tasks came."""
        self.lose(worker)
        worker.write_report()
        self.deliver_reports(worker)
        del self.workers[worker.uid]
        self.call(e.WorkerLeaves(uid=worker.uid))

    def kill(self, worker: SimWorker, death: str = "killed") -> None:
        """Let a worker die under the eyes of its owner; what it had not reported nobody knows."""
        self.seen.deaths += 1
        self.lose(self.workers.pop(worker.uid))
        self.call(e.WorkerLeaves(uid=worker.uid, exit_reason=death))

    def report(self, worker: SimWorker) -> None:
        """Let a worker do what it was told, and say how far its tasks are."""
        worker.obey()
        worker.write_report()
        self.deliver_reports(worker)

    def deliver_reports(self, worker: SimWorker) -> None:
        """Let all reports of a worker arrive, in the order in which they were written."""
        worker.silence, worker.patience = 0.0, self.patience(worker)
        while worker.reports and worker.uid in self.workers:
            self.call(worker.reports.popleft())

    # ---- tasks

    def task(self, worker: SimWorker, index: int = -1) -> SimTask:
        """A task of a worker, the newest unless another is wanted."""
        return list(worker.tasks.values())[index]

    def ask(self, task: SimTask, provider: int = 0, want: int = 4) -> SplitsReply:
        """Ask for the next splits and make elements of them, as a worker does."""
        known, noted = task.known(provider), len(task.values)
        if known is None:
            known = self._ask_dispatcher(task, provider, want)
        task.take(provider, known)
        self.note_made(task, noted)
        return known

    def _ask_dispatcher(self, task: SimTask, provider: int, want: int) -> SplitsReply:
        place = task.places[provider]
        question, before = (place.repetition, place.cursor), len(self.records)
        place.unanswered = True
        answer = self._ask(task, provider, question, want)
        place.unanswered = False
        if not answer.done and len(self.records) > before:  # else it was given before, and the answer was lost
            assert 0 < answer.end - answer.first <= max(1, want), "an answer of another size than wanted"
        place.asked.append((question, answer))
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
        known = self.core.state.tasks[task.task_id]
        self.passes[known.job, known.iteration].early = True
        self.replay(task)
        task.give_up_repetition()

    def replay(self, task: SimTask) -> None:
        """Let a task make again what an earlier incarnation made: its pipeline stops nowhere else than it did."""
        known = self.core.state.tasks[task.task_id]
        for provider in range(len(task.places)):
            while task.replays(provider):
                self.ask(task, provider)
        if not task.places:
            made = self.passes[known.job, known.iteration].tasks[task.task_id].values
            self.make(task, max(0, len(made) - task.window.head))

    def make(self, task: SimTask, count: int) -> None:
        """Let a task make elements where nothing is split."""
        noted = len(task.values)
        task.make(count)
        self.note_made(task, noted)

    def exhaust(self, task: SimTask) -> None:
        """Let a task ask for all that is left, make of it what it makes, and end."""
        for provider in range(len(task.places)):
            while not self.ask(task, provider).done:
                pass
        if not task.places:
            self.make(task, MOST)
        task.finish()

    def finish(self, worker: SimWorker, task: SimTask, *, consumed: bool = True) -> None:
        """Let a task ask for all that is left, end, be read to its end if `consumed`, and be reported."""
        self.exhaust(task)
        if consumed:
            self.consume(task)
        self.report(worker)

    def consume(self, task: SimTask, count: int = MOST) -> None:
        """Let the readers of a task have so many elements more of what it made, and acknowledge them."""
        known = self.core.state.tasks[task.task_id]
        for client in self.readers(known.job, known.iteration):
            if client.active and count:
                self.open(client, task.task_id)
                hold, got = client.holds[task.task_id], -1
                while count and got:  # a worker gives the next few when it knows that the last were consumed
                    self.send(client, hold, count)
                    client.receive(MOST)
                    got = min(count, len(hold.buffer))
                    self.eat(client, got, task.task_id)
                    client.acknowledge()
                    count -= got

    def _ask(self, task: SimTask, provider: int, question: tuple[int, int], want: int) -> SplitsReply:
        answer = self.call(self._question(task, provider, question, want))
        assert isinstance(answer, SplitsReply)
        return answer

    def _question(self, task: SimTask, provider: int, question: tuple[int, int], want: int) -> SplitsRequest:
        return SplitsRequest(
            task_id=task.task_id,
            incarnation=task.incarnation,
            provider=provider,
            repetition=question[0],
            cursor=question[1],
            want=want,
        )

    # ---- what clients read

    def open(self, client: SimClient, task_id: str = "") -> None:
        """Let a client open the tasks that it does not read yet, or one of them."""
        client.follow()
        for hold in client.holds.values():
            worker = self.workers.get(hold.info.worker_uid)
            task = worker.tasks.get(hold.info.task_id) if worker is not None else None
            if hold.link is None and task is not None and task.incarnation == hold.info.incarnation:
                if task_id in ("", task.task_id):
                    self._open(client, hold, task)

    def _open(self, client: SimClient, hold: SimHold, task: SimTask) -> None:
        book = self.passes[client.job, client.number]
        place = client.trainer, task.task_id, hold.info.sequence_incarnation
        if client.trainer not in task.window.trainers:
            begin = task.window.base
            known = book.starts.setdefault(place, begin)
            late = known == begin > 0 and client.joined.complete_only and client.trainer not in book.excused
            assert not late, "a trainer that wants all of a pass came to one whose beginning is gone"
        task.open(client.client_id, client.trainer, hold.received, hold.consumed, hold.had)
        hold.link, hold.told = task, hold.consumed
        self.is_settled(book, client.trainer, book.tasks[task.task_id], hold.had)

    def send(self, client: SimClient, hold: SimHold, most: int = MOST) -> None:
        """Let a task send a client so many elements at most; they are on their way then."""
        if hold.link is not None:
            hold.wire += hold.link.send(client.client_id, most, hold.consumed)

    def eat(self, client: SimClient, most: int = MOST, task_id: str = "") -> list[Any]:
        """Let a client's user have what the client received; tells nobody."""
        got = []
        for hold in (*client.dropped, *client.holds.values()):
            while hold.buffer and most > 0 and task_id in ("", hold.info.task_id):
                sequence, number, value = hold.consume()
                self.note_consumed(client, hold.info.task_id, sequence, number, value)
                got.append(value)
                most -= 1
        return got

    def read(self, client: SimClient, most: int = MOST, *, tell: bool = True) -> list[Any]:
        """Let a client get and consume so many elements of each of its tasks at most, and `tell` its workers."""
        self.open(client)
        for hold in client.holds.values():
            self.send(client, hold, most)
        client.receive(MOST)
        got = self.eat(client)
        if tell:
            client.acknowledge()
        return got

    def see_end(self, client: SimClient) -> bool:
        """Let a client say which tasks have ended for it, and ask whether that is all."""
        at_end = client.at_end
        over = bool(self.call(EndRequest(client_id=client.client_id, ended=client.ended_tasks())).finished)
        if over and at_end:
            client.over = True
            self.check_over(client)
        return over

    # ---- clients come and go

    def hear(self, client: SimClient) -> None:
        """Let a client give a sign of life, and tell what it has of halted tasks.

        After a break it opens its stream again and is told how things are.
        """
        client.silence, client.patience = 0.0, self.patience(client)
        if not client.connected:
            client.connected = True
            self.show(client)
            self.catch_up(client)
        self.call(ClientReport(client_id=client.client_id, holdings=client.holdings()))

    def break_client(self, client: SimClient) -> None:
        """Let the connection of a client break, which may go on or not."""
        client.connected, client.silence, client.patience = False, 0.0, self.config.reconnect_ms / 1000
        self.call(e.ClientDisconnected(client_id=client.client_id))

    def close(self, client: SimClient) -> None:
        """Let a client leave its tasks and say goodbye."""
        self.vanish(client)
        holdings = client.consumed_holdings(leaving=True)
        for hold in client.holds.values():
            hold.disconnect(client.client_id)
        del self.clients[client.client_id]
        self.call(
            ClientReport(
                client_id=client.client_id,
                leaving=True,
                holdings=holdings,
                elements=client.elements,
                digest=client.digest,
            )
        )

    def kill_client(self, client: SimClient, *, silently: bool = False) -> None:
        """Let a client's process die: its connection breaks, or with its host nobody notices."""
        client.dead = True
        self.fall_silent(client)
        if client.connected and not silently:
            self.break_client(client)

    def suspend(self, client: SimClient) -> None:
        """Let a client's process be stopped for a while; its connections stand."""
        client.suspended = True

    def wake(self, client: SimClient) -> SimClient:
        """Let a suspended client go on: where it was, or as another client of its pass if it was given up.

        Raises:
            NotFoundError: its pass is gone.
        """
        client.suspended = False
        if client not in self.forsaken:
            self.hear(client)
            return client
        self.forsaken.remove(client)
        for hold in client.holds.values():
            hold.disconnect(client.client_id)
        again = replace(
            client.joined,
            job_name=client.job,
            previous_client_id=client.client_id,
            previous_iteration=client.number,
            holdings=client.consumed_holdings(),
        )
        joined = self.call(again)
        self.seen.came_back += 1
        self.silent.pop(client.client_id, None)
        self.clients[joined.client_id].elements = client.elements
        return self.clients[joined.client_id]

    # ---- time

    def tick(self, after: float = INTERVAL) -> None:
        """Let time pass and the clock tick once; silence beyond two intervals is the dispatcher's own absence."""
        self.now += after
        for one in (*self.workers.values(), *self.clients.values()):
            one.silence += min(after, 2 * INTERVAL)
        late = {uid: worker for uid, worker in self.workers.items() if worker.silence > worker.patience}
        for worker in late.values():
            worker.connected = False
            del self.workers[worker.uid]
            if not worker.dead:
                self.given_up[worker.uid] = worker
        for client in [client for client in self.clients.values() if client.silence > client.patience]:
            del self.clients[client.client_id]
            if not client.dead:
                client.connected = False
                client.suspended = True
                self.forsaken.append(client)
                self.fall_silent(client)
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
            if client.connected and client.active and client not in silent:
                self.hear(client)

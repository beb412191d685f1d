"""One simulation: the processes of a service, the faults that its plan names, and the run to the end of the epoch."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from dsnb.transfer import local
from dsnb.wire.ranges import split_ranges
from tests.simulation.client import SimClient, SimTaskServer
from tests.simulation.dispatcher import SimDispatcher
from tests.simulation.plan import Event, Fault, Plan
from tests.simulation.worker import SimWorker
from tests.simulation.world import Member, Process, World

LIMIT_S = 300.0
"""Most simulated seconds that an epoch of the usual pace may take. Each lease is 10 s, others wait up to a minute for a
trainer that is gone, and several faults may follow each other."""

_PACE_OF_LIMIT = 5.0
"""The pace up to which `LIMIT_S` is enough; the limit grows with a slower pace."""

_RESCUE_S = 12.0
"""How long the service stays without a worker, or its data without a client, before another one comes."""

_LAST_REPORTS_S = 2.5
"""How long it runs after the end, so that all counts arrive."""

_MEMORY = "/dev/shm"


_FAULTS_OF_WORKERS = {
    Fault.KILL_WORKER, Fault.SUSPEND_WORKER, Fault.STOP_WORKER, Fault.DRAIN_WORKER, Fault.PARTITION_WORKER,
}  # fmt: skip
_FAULTS_OF_DISPATCHERS = {Fault.KILL_DISPATCHER, Fault.SUSPEND_DISPATCHER, Fault.DISK_FULL}


class Driver(Process):
    """The hand that lets the faults happen."""

    def receive(self, connection: object, message: object) -> None:
        raise AssertionError("nobody sends anything to the driver")

    def lost(self, connection: object) -> None:
        raise AssertionError("the driver has no connection")

    def validate(self) -> None:
        """It has no core."""


class Service:
    """A dispatcher, workers and clients, as a plan wants them.

    Args:
        plan: What happens.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        memory = _MEMORY if os.path.isdir(_MEMORY) else None
        # No "dsnb" in the name: tests that run at the same time look for shared memory of that name that they left.
        self._folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=memory))
        self.world.folder = str(self._folder)
        self._dataset = plan.dataset()
        self.workers: list[SimWorker] = []
        self.clients: list[SimClient] = []
        self.unacknowledged: list[int] = []
        """The elements that killed clients had consumed, and no worker knew it."""
        self._driver = Driver(self.world, "driver")
        self.dispatcher = SimDispatcher(self.world, self._folder, self._dataset)

    def run(self) -> None:
        """Run the epoch to its end.

        Raises:
            AssertionError: an invariant does not hold, or the epoch does not end.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # losses are counted; see `checker`
                self._run()
        finally:
            for worker in self.workers:
                local.withdraw(worker.uid)
                if worker.alive:
                    worker.kill()
            self.dispatcher.service.journal.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        for _ in range(self.plan.workers):
            self._add_worker()
        for _ in range(self.plan.clients):
            self._add_client()
        for event in self.plan.events:
            self.world.at(event.at, self._driver, lambda event=event: self._carry_out(event))
        self._watch()
        limit_s = LIMIT_S * max(1.0, self.plan.pace / _PACE_OF_LIMIT)
        self.world.run(lambda: self._is_over, limit_s)
        until = self.world.now + _LAST_REPORTS_S
        self.world.run(lambda: self.world.now >= until, 2 * limit_s)

    @property
    def _is_over(self) -> bool:
        """Whether all clients have left or are known to be dead, and the iteration is finished."""
        left = all(client.over or not client.alive for client in self.clients)
        dispatcher = self.dispatcher
        if not left or not dispatcher.alive or dispatcher.core.state.clients:
            return False
        return self.plan.cached or dispatcher.iteration_finished

    def _watch(self) -> None:
        """Once in a while, add a worker if there is none, and a client if there is none and the data are not read."""
        if not any(worker.alive and not worker.draining for worker in self.workers):
            self._add_worker()
        gone = all(client.over or not client.alive for client in self.clients)
        if gone and self.dispatcher.alive and not self.dispatcher.core.state.clients:
            if not self.dispatcher.iteration_finished and len(self.clients) < self.plan.clients + 2:
                self._add_client()
        self.world.at(self.world.now + _RESCUE_S, self._driver, self._watch)

    def _add_worker(self) -> None:
        worker = SimWorker(
            self.world,
            f"w{len(self.workers)}",
            self.dispatcher,
            self._dataset,
            self._folder,
            self.plan.window_bytes,
            self.plan.pace,
        )
        self.workers.append(worker)
        SimTaskServer(worker, self.clients).offer()

    def _add_client(self) -> None:
        number = len(self.clients)
        options = self.plan.options(number % self.plan.clients)
        element_s = self.plan.pace * self.plan.element_s[number]
        self.clients.append(SimClient(self.world, f"c{number}", self.dispatcher, options, element_s))

    # ---- faults

    def _carry_out(self, event: Event) -> None:
        workers = [worker for worker in self.workers if worker.alive and not worker.draining]
        clients = [client for client in self.clients if client.alive and not client.over]
        match event.fault:
            case Fault.ADD_WORKER:
                self._add_worker()
            case Fault.CONNECTION:
                connections = self.world.connections
                if connections:
                    connections[event.victim % len(connections)].fail()
            case _ if event.fault in _FAULTS_OF_WORKERS and workers:
                self._attack_worker(event, workers[event.victim % len(workers)])
            case Fault.KILL_CLIENT | Fault.SUSPEND_CLIENT | Fault.PARTITION_CLIENT if clients:
                self._attack_client(event, clients[event.victim % len(clients)])
            case Fault.CLOCK_JUMP:
                processes: Sequence[Process] = [self.dispatcher, *workers, *clients]
                processes[event.victim % len(processes)].clock_offset += event.seconds
            case _ if event.fault in _FAULTS_OF_DISPATCHERS and self.dispatcher.alive:
                self._attack_dispatcher(event)

    def _attack_client(self, event: Event, client: SimClient) -> None:
        match event.fault:
            case Fault.SUSPEND_CLIENT:
                self._suspend(event, client)
            case Fault.PARTITION_CLIENT:
                client.cut_off(event.seconds)
            case _:
                self.unacknowledged += self._unacknowledged_by(client)
                client.kill()

    @staticmethod
    def _suspend(event: Event, member: Member) -> None:
        """Suspend it now or in its next call, as a bit of the event says that does not choose the victim."""
        if event.victim >> 8 & 1:
            member.suspend(event.seconds)
        else:
            member.suspend_in_call(event.seconds)

    def _attack_worker(self, event: Event, worker: SimWorker) -> None:
        match event.fault:
            case Fault.KILL_WORKER:
                worker.kill()
            case Fault.SUSPEND_WORKER:
                self._suspend(event, worker)
            case Fault.PARTITION_WORKER:
                worker.cut_off(event.seconds)
            case Fault.STOP_WORKER:
                worker.draining = True
                worker.leave()
            case _:
                worker.drain()

    def _attack_dispatcher(self, event: Event) -> None:
        dispatcher, until = self.dispatcher, self.world.now + event.seconds
        match event.fault:
            case Fault.KILL_DISPATCHER:
                dispatcher.kill()
                self.world.at(until, self._driver, dispatcher.restart)
            case Fault.SUSPEND_DISPATCHER:
                dispatcher.suspend(event.seconds)
            case Fault.DISK_FULL:
                dispatcher.fill_disk()
                self.world.at(until, self._driver, dispatcher.free_disk)

    def _unacknowledged_by(self, client: SimClient) -> list[int]:
        """The elements that a client consumed, as far as no acknowledgement has reached a worker."""
        tasks = {task_id: task for worker in self.workers for task_id, task in worker.tasks.items()}
        found = []
        for holding in client.tasks.consumed_holdings():
            if holding.task_id not in tasks:
                continue
            task = tasks[holding.task_id]
            consumed = [(part.first, part.end) for part in holding.consumed]
            _, unknown = split_ranges(consumed, task.consumed_by(client.client_id))
            elements = {one.index: one.element for one in client.history if one.task_id == holding.task_id}
            found += [elements[index] for first, end in unknown for index in range(first, end) if index in elements]
        return found

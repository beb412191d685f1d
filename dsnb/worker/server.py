"""`WorkerServer`: the role that runs pipelines and serves elements."""

from __future__ import annotations

import atexit
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import grpc

from dsnb.arguments import checked, instance, number
from dsnb.cache.opened_files import MOST_ON_WORKER, OpenedFiles
from dsnb.errors import DsnbError, FailedPreconditionError, NotFoundError, UnavailableError
from dsnb.pipeline.graph import PYTHON
from dsnb.processes import host_cpus, host_id, idle_ns, usable_cpus
from dsnb.system_limits import nearly_out_of_files, open_files_text
from dsnb.transfer import local
from dsnb.transfer.admission import Admission
from dsnb.transfer.grpc import ReadService
from dsnb.transfer.protocol import LinkStats, ReadHandle, Sink, TaskServer
from dsnb.transfer.shared_memory.server import SharedMemoryServer
from dsnb.transfer.tcp.server import TcpServer
from dsnb.wire import addresses, discovery
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.control_stream import ControlStream
from dsnb.wire.lifecycle import StopOnce, stop_when_idle
from dsnb.wire.messages import (
    ClientRelease,
    ClosedIteration,
    Empty,
    PeekReply,
    ReadRequest,
    TaskOrder,
    TaskReport,
    TaskRequest,
    WorkerOrder,
    WorkerReport,
)
from dsnb.wire.methods import GET_SPLITS, GET_TASK, PEEK, PING, READ, SESSION, Method
from dsnb.wire.security import Guard
from dsnb.wire.server import GrpcServer
from dsnb.wire.threads import OnDemandExecutor
from dsnb.worker.config import WorkerConfig
from dsnb.worker.fair_shares import FairShares
from dsnb.worker.host import LatencyProbe, rss_bytes
from dsnb.worker.host_meter import HOST_METER
from dsnb.worker.peeking import peek
from dsnb.worker.pipeline_loader import DefinitionCache, stage_builder
from dsnb.worker.retry_policy import ATTEMPT_S, RetryPolicy
from dsnb.worker.spill import Spill, SpillLimit
from dsnb.worker.splits import DispatcherFeed
from dsnb.worker.task import Task, keeps_frames

_JOIN_S = 2.0
_REGISTER_S = 10.0
"""How long a new worker tries to reach its dispatcher. Short: a wrong address must not look like a slow start."""
_SIGNALS_S = 0.2
"""How often a wait of the main thread looks for signals."""
_DRAIN_S = 3.0
_POLL_INTERVAL_S = 0.02


class WorkerServer:
    """Runs the pipelines of one dispatcher's jobs and serves their elements.

    Args:
        config: Settings.
        start: Whether to start at once.

    Raises:
        UnavailableError: the dispatcher does not answer within 10 seconds, or `dispatcher_timeout_ms` if that is less.
        PermissionDeniedError: the token is missing or wrong.
        AlreadyExistsError: the port is taken.

    Example:
        >>> from dsnb.dispatcher.server import DispatchServer
        >>> with DispatchServer() as dispatcher:
        ...     config = WorkerConfig(dispatcher_address=dispatcher.target, token=dispatcher.token)
        ...     with WorkerServer(config) as worker:
        ...         worker.name
        'w0'
    """

    @checked(config=instance(WorkerConfig, hint='pass dsnb.WorkerConfig("127.0.0.1:5050")'))
    def __init__(self, config: WorkerConfig, start: bool = True) -> None:
        self.config = config
        self.uid = uuid.uuid4().hex[:12]
        self.name = self._instance = self._reachable_host = ""
        # Readers identify this worker by its uid; the token is that of the service that the worker joined.
        self._guard = Guard(lambda: self._channel.token if self._channel is not None else "", self.uid)
        self._transfer_servers = TransferServers(self, config, self._guard)
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._spill_limit = SpillLimit(config.spill_size_bytes)
        self._stopping_tasks: list[Task] = []  # dropped tasks whose pipelines have not ended yet
        self._fetching: dict[str, int] = {}
        """Tasks that readers opened before the order arrived, with the number of `_fetch` calls under way."""
        self._dropped_while_fetching: dict[str, int] = {}
        """Tasks in `_fetching` for which an order to drop them arrived meanwhile, with the incarnation to drop."""
        self._last_reports: list[TaskReport] = []
        self._notices: list[str] = []
        """Warnings for the events of the service, sent with the next report."""
        self._released = 0
        """The number of the last `ClientRelease` order that was carried out."""
        self._cpus_of_host_workers = 1
        """How many processors the service's workers on this host may use, summed over them."""
        self._latency_probe = LatencyProbe()
        self._fair_shares = FairShares()
        self._definition_cache = DefinitionCache()
        self._background = OnDemandExecutor("dsnb-splits")
        self._server: GrpcServer | None = None
        self._channel: Channel | None = None
        self._control_stream: ControlStream[WorkerReport, WorkerOrder] | None = None
        self._refusal: DsnbError | None = None
        self._drain_deadline: float | None = None
        self._read_at = float("-inf")
        """When a client was connected last, noted while the dispatcher is gone."""
        self._remembered = False
        self._stop_once = StopOnce(self._lock)
        if start:
            self.start()

    # ---- life cycle

    @property
    def address(self) -> str:
        """The address that dispatcher and clients use, as "host:port"."""
        if self._server is None:
            raise FailedPreconditionError("the worker was not started", hint="call start() first")
        advertised = self.config.worker_address or addresses.format_address(self._reachable_host, "%port%")
        return advertised.replace("%port%", str(self._server.port))

    @checked()
    def start(self) -> None:
        """Listen and register; the second call does nothing.

        Raises:
            FailedPreconditionError: the worker was stopped before.
            UnavailableError: the dispatcher does not answer within 10 seconds, or `dispatcher_timeout_ms` if that is
                less.
            PermissionDeniedError: the token is missing or wrong.
            AlreadyExistsError: the port is taken.
        """
        if self.stopped:
            raise FailedPreconditionError(
                "Server cannot be started after it has been stopped", hint="make a new WorkerServer"
            )
        if self._server is not None:
            return
        self._server, host, certificate = self._listen()
        atexit.register(self.stop)
        try:
            self._transfer_servers.open(self.uid, host, self._ports, certificate)
            self._channel = open_channel(self.config.dispatcher_address, self.config.token)
            self._control_stream = ControlStream(
                "dsnb-worker-session",
                open_channel(self.config.dispatcher_address, self.config.token),
                SESSION,
                report=self._report,
                receive=self._handle_order,
                interval_s=self.config.heartbeat_interval_ms / 1000,
                on_failure=self._on_refused,
                should_give_up=self._give_up_after,
            )
            self._control_stream.start()
            local.offer(self.uid, self)
            self._wait_registered(self._control_stream)
        except BaseException:  # also KeyboardInterrupt
            self.stop()
            raise

    @property
    def _ports(self) -> int | str:
        assert not isinstance(self.config.port, range), "`checked` has replaced it by text"
        return self.config.port

    def _listen(self) -> tuple[GrpcServer, str, str]:
        """Listen for readers, with the certificate of the service; returns the server, its host and the certificate.

        Raises:
            AlreadyExistsError: the port is taken.
        """
        config, dispatcher = self.config, addresses.target_address(self.config.dispatcher_address)
        self._reachable_host = addresses.reachable_host(config.host, dispatcher)
        if config.token is not None:
            # The connections of this process find the certificate by the token. And a pipeline may itself read from the
            # service: its pickle holds the address, but not the token.
            discovery.remember_token(
                dispatcher, config.token, config.certificate or discovery.certificate_for(config.token)
            )
            self._remembered = True
        certificate = discovery.certificate_for(discovery.token_for(dispatcher))
        handlers = {**self._transfer_servers.handlers, PEEK: lambda request, _context: self._peek(request.task_id)}
        server = GrpcServer("worker", handlers, self._guard)
        host = self._reachable_host if config.host == addresses.AUTO else config.host
        try:
            _check_encrypted(host, dispatcher, certificate)
            server.start(host, self._ports, certificate)
        except BaseException:
            self._forget_token()
            raise
        return server, host, certificate

    def _forget_token(self) -> None:
        if self._remembered and self.config.token is not None:
            discovery.forget_token(self.config.dispatcher_address, self.config.token)
            self._remembered = False

    def _wait_registered(self, control_stream: ControlStream[WorkerReport, WorkerOrder]) -> None:
        seconds = min(_REGISTER_S, self.config.dispatcher_timeout_ms / 1000)
        until = time.monotonic() + seconds
        # Wake up regularly: if another thread received Ctrl-C's signal, Python handles it only when this one runs.
        while not (connected := control_stream.connected.wait(_SIGNALS_S)) and time.monotonic() < until:
            pass
        if self._refusal is not None:
            raise self._refusal
        if not connected:
            raise UnavailableError(
                f"no dispatcher answers at {addresses.target_address(self.config.dispatcher_address)}",
                did=f"the worker tried for {seconds:g} seconds and was not started",
                hint=f"{open_files_text()}: a connection may need more"
                if nearly_out_of_files()
                else "start the dispatcher first, or check dispatcher_address",
            )

    @checked()
    def drain(self) -> None:
        """Accept no new work: DYNAMIC tasks end after the splits that they hold.

        The worker runs until it is stopped. From 3 s after this call on, `idle` ignores tasks of the other modes.
        """
        self._drain_deadline = self._drain_deadline or time.monotonic() + _DRAIN_S
        self._report_now()

    @checked(timeout=number("pass a number of seconds, 0 or more, at most 1e9", least=0.0, most=1e9))
    def leave(self, timeout: float = 30.0) -> bool:
        """Drain the worker, wait until its readers have consumed what it produced, then stop it.

        Tasks of DYNAMIC jobs end after the splits that they hold. Elements that readers do not consume in time go to
        other workers, as with `stop`.

        Args:
            timeout: Seconds to wait for readers.

        Returns:
            Whether the worker became idle in time.

        Example:
            >>> with DispatchServer() as dispatcher:
            ...     WorkerServer(WorkerConfig(dispatcher.target)).leave(timeout=60.0)
            True
        """
        self.drain()
        deadline = time.monotonic() + timeout
        while not self.idle and not self.stopped and time.monotonic() < deadline:
            self._stop_once.requested.wait(_POLL_INTERVAL_S)
        done = self.idle
        self.stop()
        return done

    @checked(timeout=number("pass a number of seconds, 0 or more, at most 1e9", least=0.0, most=1e9))
    def stop(self, timeout: float = _JOIN_S) -> None:
        """Return all tasks to the dispatcher and stop; a second call waits for the first, as the process may exit next.

        Nothing more is delivered. Other workers continue the tasks after the last consumed elements; use `leave` for
        pipelines that cannot be continued elsewhere.

        User code that is running is not interrupted: its thread continues as a daemon, and its result is dropped.

        Args:
            timeout: Seconds to wait for user code that is running.
        """
        self._stop_once.run(lambda: self._stop(timeout))

    def _stop(self, timeout: float) -> None:
        atexit.unregister(self.stop)
        local.withdraw(self.uid)
        self._forget_token()
        with self._lock:
            tasks = [*self._tasks.values(), *self._stopping_tasks]
        gone = UnavailableError(f"the worker {self.name} was stopped")
        for task in tasks:
            task.stop(gone)
        if self._control_stream is not None:
            self._control_stream.close()  # sends a last report with the tasks' positions, so that others continue them
        with self._lock:
            self._tasks.clear()
        for task in tasks:
            task.drop()
        if self._server is not None:
            self._server.stop(0.2)
        self._transfer_servers.close()
        deadline = time.monotonic() + timeout
        for task in tasks:
            task.join(max(0.0, deadline - time.monotonic()))
        if self._channel is not None:
            self._channel.close()
        self._background.shutdown()

    @checked()
    def join(self) -> None:
        """Wait until the worker is stopped.

        Raises:
            FailedPreconditionError: the worker was never started.
            DsnbError: the dispatcher's reason, if it refused the worker.
        """
        if self._server is None and not self.stopped:
            raise FailedPreconditionError("the worker was not started", hint="call start() first")
        self._stop_once.wait()
        if self._refusal is not None:
            raise self._refusal

    @property
    def stopped(self) -> bool:
        """Whether the worker was stopped, by a call or because its dispatcher refused it or is gone."""
        return self._stop_once.requested.is_set()

    @property
    def idle(self) -> bool:
        """Whether the worker has no task. From 3 s after `drain` on, only DYNAMIC tasks count."""
        over = self._drain_deadline is not None and time.monotonic() > self._drain_deadline
        with self._lock:
            return not any(task.order.mode == "DYNAMIC" or not over for task in self._tasks.values())

    @checked()
    def debug_state(self) -> dict[str, Any]:
        """What the worker keeps, as plain data for bug reports and tests. Its keys may change in any release."""
        with self._lock:
            return {
                "tasks": {task_id: task.debug_state() for task_id, task in self._tasks.items()},
                "cpus_of_host_workers": self._cpus_of_host_workers,
                "remote_readers": self._transfer_servers.admission.active,
                "shared_memory": self._transfer_servers.shared_memory.debug_state(),
                "tcp": self._transfer_servers.tcp.debug_state(),
            }

    def __enter__(self) -> WorkerServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "running" if self._server else "not started"
        return f"WorkerServer({self.name or 'unnamed'}, {state})"

    # ---- readers

    def open(self, request: ReadRequest, sink: Sink, link_stats: LinkStats | None = None) -> ReadHandle:
        """Begin to serve a task to a client; see `transfer.protocol.TaskServer`.

        Args:
            request: The client's request.
            sink: Receives the frame slices, the end and errors.
            link_stats: Statistics of the read, which its transfer updates; None for new ones.

        Raises:
            UnavailableError: the worker is stopping, or its service or the task's incarnation is not the one requested.
            NotFoundError: the dispatcher has no such task on this worker.
        """
        if request.instance not in ("", self._instance):
            raise UnavailableError(f"the worker {self.name} does not know yet that the service was restarted")
        with self._lock:
            task = self._tasks.get(request.task_id)
        if task is None or task.order.incarnation < request.incarnation:  # the client came before the order
            task = self._fetch(request.task_id)
        if request.incarnation not in (0, task.order.incarnation):
            raise UnavailableError(
                f"worker {self.name} has incarnation {task.order.incarnation} of the task {request.task_id}; "
                f"the reader expects incarnation {request.incarnation}"
            )
        reading = task.open(request, sink, link_stats)
        with self._lock:
            self._share_budget()  # a task without readers is not allowed to grow
        return reading

    def _peek(self, task_id: str) -> PeekReply:
        """The newest elements of a task in short; see `peeking.peek`.

        Raises:
            NotFoundError: the worker has no such task.
        """
        with self._lock:
            task = self._tasks.get(task_id)
        if task is None:
            raise NotFoundError(
                f"the worker {self.name} no longer has the task {task_id}",
                did="nothing is shown",
                hint="peek again while the job is read",
            )
        return peek(task)

    def _fetch(self, task_id: str) -> Task:
        """Ask the dispatcher for a task's order, and start the task."""
        if self.stopped or self._channel is None:
            raise UnavailableError(f"the worker {self.name} is stopping")
        # An order to drop the task may arrive before the answer of this call. `_drop` finds no task then, so it leaves
        # a note in `_dropped_while_fetching`; otherwise the task would start after its drop and never end.
        with self._lock:
            self._fetching[task_id] = self._fetching.get(task_id, 0) + 1
        try:
            order = self._channel.call(GET_TASK, TaskRequest(task_id=task_id), timeout=5.0)
            with self._lock:
                if order.incarnation <= self._dropped_while_fetching.get(task_id, -1):
                    raise NotFoundError(f"the task {task_id} was dropped", did="it may have ended")
                return self._start_task(order)
        finally:
            with self._lock:
                self._fetching[task_id] -= 1
                if not self._fetching[task_id]:
                    del self._fetching[task_id]
                    self._dropped_while_fetching.pop(task_id, None)

    # ---- the dispatcher's orders

    def _handle_order(self, order: WorkerOrder) -> None:
        if order.welcome:
            self._on_welcome(order)
        self._cpus_of_host_workers = order.cpus_of_host_workers or self._cpus_of_host_workers
        for start in () if self.stopped else order.start:
            started = self._start_task(start)
            if started.order.incarnation != start.incarnation:
                continue  # a reader brought the worker a later order meanwhile
            started.pause(paused=start.paused)
            if start.leftovers is not None:
                started.divide_leftovers(start.leftovers)
        for dropped in order.drop:
            self._drop(dropped.task_id, dropped.incarnation)
        self._release_clients(order.releases)
        self._close_tasks(order.closed)
        for eviction in order.evict_trainers:
            with self._lock:
                task = self._tasks.get(eviction.task_id)
            if task is not None:
                task.remove_trainer(eviction.trainer_id)
        if order.drain:
            stop_when_idle(self)
        if order.report_seq and self._control_stream is not None:
            self._control_stream.report_now(order.report_seq)

    def _release_clients(self, releases: Sequence[ClientRelease]) -> None:
        """Give what these clients did not consume to the other clients of their tasks, and report that."""
        with self._lock:
            tasks = list(self._tasks.values())
        for release in releases:
            consumed = {(known.task_id, known.incarnation): known.received for known in release.holdings}
            for task in tasks:
                count = consumed.get((task.order.task_id, task.order.incarnation))
                task.leave(release.client_id, count, died=release.died)
            self._released = max(self._released, release.number)
        if releases:
            self._report_soon()  # an iteration may be complete once the dispatcher knows of the release

    def _close_tasks(self, iterations: Sequence[ClosedIteration]) -> None:
        """Let the tasks of closed iterations evict elements."""
        for closed in iterations:
            with self._lock:
                task = self._tasks.get(closed.task_id)
            if task is not None and task.order.incarnation == closed.incarnation:
                task.close_to_new_trainers([(client.client_id, client.trainer_id) for client in closed.clients])

    def _on_welcome(self, order: WorkerOrder) -> None:
        """Adopt the name and service instance that the dispatcher assigned."""
        # A new service instance reuses task ids, so the tasks of the old instance must go.
        if self._instance not in ("", order.instance):
            for task in list(self._tasks.values()):
                self._drop(task.order.task_id, task.order.incarnation)
        self.name, self._instance = order.name, order.instance

    def _start_task(self, order: TaskOrder) -> Task:
        """Start a task, in place of an earlier incarnation of it; returns the task that runs now.

        Orders may overtake each other, because they come in the session's stream and as answers of `GetTask`. An older
        one must not end the task of a later one: that would begin again, and deliver elements that were consumed.
        """
        with self._lock:
            known = self._tasks.get(order.task_id)
            if known is not None and known.order.incarnation >= order.incarnation:
                return known
            if known is not None:
                self._drop(order.task_id, known.order.incarnation)
            if self._channel is None or self.stopped:
                raise UnavailableError(f"the worker {self.name} is stopping")
            channel = self._channel
            retry = RetryPolicy(
                seconds=self.config.dispatcher_timeout_ms / 1000,
                on_overdue=lambda error: self._fail_readers(order, error),
                given_up=lambda: not self._has(order),
                connected=lambda: self._control_stream is not None and self._control_stream.broken_since is None,
            )
            packed = self.config.isolation == "process"
            feed: DispatcherFeed | None = None
            if order.mode == "DYNAMIC":
                feed = DispatcherFeed(
                    order.task_id,
                    order.num_providers,
                    lambda request: retry(lambda: channel.call(GET_SPLITS, request, timeout=ATTEMPT_S)),
                    order.position.splits if order.position else (),
                    order.incarnation,
                    background=self._background,
                )
            opened_files = OpenedFiles(MOST_ON_WORKER)
            task = Task(
                order,
                stage_builder(
                    channel,
                    order,
                    feed,
                    retry,
                    self._definition_cache,
                    copied_later=packed or keeps_frames(order),
                    opened_files=opened_files,
                    cpus=self._cpu_share,
                    notice=self._add_notice,
                ),
                feed,
                read_ahead_bytes=self.config.read_ahead_bytes,
                capacity=self.config.cross_trainer_cache_size_bytes,
                on_change=self._report_now,
                on_end=self._report_soon,
                error_context=f"on worker {self._described()}, job {order.job_name!r}",
                spill=Spill(self.config.spill_dir or tempfile.gettempdir(), self._spill_limit)
                if order.cached
                else None,
                packed=packed,
                opened_files=opened_files,
                pace=self._fair_shares.pace(order.job_name),
            )
            self._tasks[order.task_id] = task
            self._share_budget()
            return task

    def _cpu_share(self) -> float:
        """How many processors a pipeline may keep busy: the workers of a host divide those that they compete for."""
        return usable_cpus() * min(1.0, host_cpus() / self._cpus_of_host_workers)

    def _add_notice(self, text: str) -> None:
        with self._lock:
            self._notices.append(f"worker {self._described()} {text}")

    def _described(self) -> str:
        """The worker's name, with that of its host if the service may have workers on others."""
        dispatcher = addresses.host_of(addresses.target_address(self.config.dispatcher_address))
        return self.name if addresses.is_loopback(dispatcher) else f"{self.name} (host {socket.gethostname()})"

    def _has(self, order: TaskOrder) -> bool:
        task = self._tasks.get(order.task_id)
        return task is not None and task.order is order and not self.stopped

    def _fail_readers(self, order: TaskOrder, error: Exception) -> None:
        """End the present reads of a task with an error that takes no element's place."""
        task = self._tasks.get(order.task_id)
        if task is not None and task.order is order:
            task.fail_readers(error)

    def _drop(self, task_id: str, incarnation: int) -> None:
        """Drop a task, unless it is a later incarnation: a reader may bring it before the order arrives."""
        with self._lock:
            if task_id in self._fetching:
                self._dropped_while_fetching[task_id] = incarnation
            task = self._tasks.get(task_id)
            if task is None or task.order.incarnation > incarnation:
                return
            del self._tasks[task_id]
            self._stopping_tasks.append(task)
            self._share_budget()
        task.stop(UnavailableError(f"the task {task_id} was taken off worker {self.name}"))
        with self._lock:
            self._last_reports.append(task.drop())  # sent with the next periodic report; it is not urgent

    def _share_budget(self) -> None:
        """Divide the cache's bytes among the tasks that keep elements for other trainers."""
        cached = [task for task in self._tasks.values() if task.order.cached]
        shares = fair_share(self.config.cross_trainer_cache_size_bytes, [task.wanted_bytes() for task in cached])
        for task, nbytes in zip(cached, shares, strict=True):
            task.resize(nbytes)

    def _report_now(self) -> None:
        if self._control_stream is not None:
            self._control_stream.report_now()

    def _report_soon(self) -> None:
        if self._control_stream is not None:
            self._control_stream.report_soon()

    def _give_up_after(self, gone_s: float) -> bool:
        """Whether to stop: the dispatcher and all clients have been gone for `dispatcher_gone_ms`.

        A client that was killed while the dispatcher was gone keeps its session, because only the dispatcher declares
        clients dead. So what counts is whether a client is connected.

        Args:
            gone_s: Seconds since the connection broke.
        """
        now = time.monotonic()
        with self._lock:
            if any(task.has_connected_readers for task in self._tasks.values()):
                self._read_at = now
        return min(gone_s, now - self._read_at) * 1000 >= self.config.dispatcher_gone_ms

    def _on_refused(self, error: DsnbError) -> None:
        self._refusal = error
        if self._control_stream is not None:
            self._control_stream.connected.set()  # wakes `_wait_registered`, which raises the refusal
        if self.name:  # it was registered before: without a dispatcher it has nothing left to do
            threading.Thread(target=self.stop, name="dsnb-worker-stop", daemon=True).start()

    def _report(self, number: int, leaving: bool) -> WorkerReport:
        with self._lock:
            tasks = list(self._tasks.values())
            last, self._last_reports = self._last_reports, []
            notices, self._notices = tuple(self._notices), []
            self._stopping_tasks = [task for task in self._stopping_tasks if not task.join(0.0)]
            self._share_budget()
        self._fair_shares.update(tasks, time.monotonic())
        for task in tasks:
            task.tick(time.monotonic())
        if self.config.isolation == "thread":
            self._latency_probe.measure()
        return WorkerReport(
            uid=self.uid,
            name=self.config.name or "",
            address=self.address,
            isolation=self.config.isolation,
            pid=os.getpid(),
            tags=tuple(self.config.worker_tags),
            capacity_bytes=self.config.cross_trainer_cache_size_bytes,
            rss_bytes=rss_bytes(),
            tasks=(*(task.report() for task in tasks), *last),
            ended=tuple(task.order.task_id for task in tasks if task.done),
            seq=number,
            leaving=leaving,
            draining=self._drain_deadline is not None,
            clock_ns=time.monotonic_ns(),
            late_ns=self._latency_probe.late_ns,
            latency_samples=self._latency_probe.samples,
            cpu_ns=time.process_time_ns(),
            cpus=usable_cpus(),
            idle_ns=idle_ns(),
            last_release=self._released,
            host=socket.gethostname(),
            host_id=host_id(),
            python=PYTHON,
            notices=notices,
            host_use=HOST_METER.read(),
            data_port=self._transfer_servers.tcp.port,
        )


def _check_encrypted(host: str, dispatcher: str, certificate: str) -> None:
    """Refuse to listen beyond loopback without encryption, unless the dispatcher does so too (`tls=False`).

    Raises:
        FailedPreconditionError: it would be so.
    """
    if certificate or addresses.is_loopback(host) or not addresses.is_loopback(addresses.host_of(dispatcher)):
        return
    raise FailedPreconditionError(
        f"a worker that listens on {host} needs the certificate of its service, and the service has none",
        did="nothing was started",
        hint='start the dispatcher with host="auto" too: it then makes a certificate',
    )


class TransferServers:
    """The worker's transfer servers, with one limit (`max_readers`) on their concurrent readers.

    Args:
        worker: The worker.
        config: Its settings.
        guard: Authenticates readers.
    """

    def __init__(self, worker: TaskServer, config: WorkerConfig, guard: Guard) -> None:
        self.admission = Admission(config.max_readers)
        self._grpc = ReadService(worker, self.admission)
        self.shared_memory = SharedMemoryServer(worker, guard, config.shared_memory_size, self.admission)
        self.tcp = TcpServer(worker, guard, self.admission)

    @property
    def handlers(self) -> dict[Method[Any, Any], Callable[[Any, grpc.ServicerContext], Any]]:
        """The handlers that the worker's gRPC server must register."""
        return {READ: self._grpc.read, PING: lambda _request, _context: Empty()}

    def open(self, worker_uid: str, host: str, ports: int | str, certificate: str) -> None:
        """Start the servers outside gRPC.

        Args:
            worker_uid: The worker's uid, by which readers on this host find its shared memory.
            host: The address that the worker listens on.
            ports: The port or ports of the worker's gRPC server, see `TcpServer.start`.
            certificate: The service's certificate with its key; empty for plain connections.
        """
        self.shared_memory.start(worker_uid)
        self.tcp.start(host, ports, certificate)

    def close(self) -> None:
        """Stop all transfer servers; present readings are ended."""
        self.shared_memory.stop()
        self.tcp.stop()
        self._grpc.stop()


def fair_share(total: int, wants: Sequence[int | None]) -> list[int]:
    """Divide bytes among tasks: a task that wants less than an equal share gets that, and the others share the rest.

    Args:
        total: Bytes to divide.
        wants: For each task, how many bytes it can use; None for as many as possible.

    Returns:
        Bytes for each task: at least 1 each, and at most `total` in all (unless `total` is less than 1 for each).

    Example:
        >>> fair_share(90, [None, 10, None])
        [40, 10, 40]
    """
    shares = [1] * len(wants)
    left, order = total, sorted(range(len(wants)), key=lambda i: (wants[i] is None, wants[i] or 0))
    for rank, task in enumerate(order):
        equal = left // (len(order) - rank)
        want = wants[task]
        shares[task] = max(1, equal if want is None else min(want, equal))
        left = max(0, left - shares[task])
    return shares

"""`DispatchServer`: starts and stops a dispatcher with its gRPC server and its clock thread."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from dsnb.arguments import checked, instance, optional
from dsnb.dispatcher import events as e
from dsnb.dispatcher.blobs import BlobStore
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.rpc import DispatcherServicer
from dsnb.dispatcher.service import Dispatcher
from dsnb.dispatcher.worker_pool import WorkerPool
from dsnb.errors import AlreadyExistsError, DsnbError, FailedPreconditionError, UnavailableError
from dsnb.monitor.snapshot import Snapshot
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.files import replace_without_sync
from dsnb.transfer import local
from dsnb.wire import discovery
from dsnb.wire.addresses import AUTO, format_address, port_numbers, reachable_host, target_address
from dsnb.wire.certificates import load_or_create_certificate, new_certificate
from dsnb.wire.join_file import JoinFile
from dsnb.wire.lifecycle import StopOnce
from dsnb.wire.security import load_or_create_token, new_token
from dsnb.wire.server import GrpcServer
from dsnb.wire.stopped_services import note_started, note_stopped

_PORT_NAME = Failpoint("port name")


class DispatchServer:
    """A dispatcher: it manages datasets, jobs, workers and splits. It never handles elements or runs user code.

    Args:
        config: Settings; None for the defaults.
        start: Whether to start at once.

    Raises:
        AlreadyExistsError: the port is taken, or another dispatcher uses the `work_dir`.
        DataLossError: the data in the `work_dir` are damaged.
        FailedPreconditionError: another version of dsnb wrote the journal, or the `work_dir` cannot be used.

    Example:
        >>> with DispatchServer() as dispatcher:
        ...     dispatcher.target.partition(":")[0]
        'grpc'
    """

    @checked(config=optional(instance(DispatcherConfig, hint="pass dsnb.DispatcherConfig(port=5050), or leave it out")))
    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        self.config = config or DispatcherConfig()
        self.token, self._dispatcher = _make_dispatcher(self.config)
        try:  # only now: the journal keeps other dispatchers out of the `work_dir`
            self.certificate = _make_certificate(self.config)
            """The certificate that peers must present too, with its key; empty if connections are not encrypted."""
        except BaseException:
            self._dispatcher.close()
            raise
        self._reachable_host = reachable_host(self.config.host)
        self._servicer = DispatcherServicer(self._dispatcher, self.token)
        self._server: GrpcServer | None = None
        self._ticker = threading.Thread(target=self._tick, name="dsnb-dispatcher-tick", daemon=True)
        self._lock = threading.RLock()  # reentrant: `start` calls `stop` when it fails
        self._stop_once = StopOnce(self._lock)
        if start:
            self.start()

    @property
    def target(self) -> str:
        """The address at which workers and clients reach the dispatcher, as in "grpc://127.0.0.1:5050".

        Raises:
            FailedPreconditionError: the dispatcher was not started.
        """
        if self._server is None:
            raise FailedPreconditionError("the dispatcher was not started", hint="call start() first")
        advertised = self.config.dispatcher_address or format_address(self._reachable_host, "%port%")
        return f"grpc://{target_address(advertised.replace('%port%', str(self._server.port)))}"

    @property
    def join_file(self) -> JoinFile:
        """What a machine needs to join this service. Whoever has it may run code on the workers: keep it private.

        Raises:
            FailedPreconditionError: the dispatcher was not started.
        """
        return JoinFile(name=self.config.name, address=self._address, token=self.token, certificate=self.certificate)

    @checked()
    def start(self) -> None:
        """Start to listen; the second call does nothing.

        Raises:
            AlreadyExistsError: the port is taken.
            FailedPreconditionError: the dispatcher was stopped before.
        """
        with self._lock:
            if self.stopped:
                raise FailedPreconditionError(
                    "Server cannot be started after it has been stopped", hint="make a new DispatchServer"
                )
            if self._server is not None:
                return
            try:
                self._server = self._listen()
                self._dispatcher.target = self.target
                local.offer_blobs(self._address, self._dispatcher.blobs.get)
                discovery.remember_token(self.target, self.token, self.certificate)
                note_started(self.target)
                self._ticker.start()
                atexit.register(self.stop)
            except BaseException:  # KeyboardInterrupt too
                self.stop()
                raise

    @checked()
    def drain(self) -> None:
        """Refuse new clients; clients that have joined continue."""
        self._dispatcher.draining = True

    @property
    def idle(self) -> bool:
        """Whether the service has no clients."""
        with self._dispatcher.locked():
            return not self._dispatcher.core.state.clients

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called, by the user or at exit."""
        return self._stop_once.requested.is_set()

    @checked()
    def stop(self) -> None:
        """Stop listening and end all threads. A second call waits for the first, because the process may exit next."""
        self._stop_once.run(self._stop)

    def _stop(self) -> None:
        atexit.unregister(self.stop)
        if self._server is None:
            self._dispatcher.close()
            return
        if self.config.work_dir is None:  # with a work_dir, a new dispatcher may listen at the same address soon
            note_stopped(self.target, self.config.name)
        local.withdraw_blobs(self._address)
        discovery.forget_token(self.target, self.token)
        self._dispatcher.close_streams()
        self._server.stop(0.2)
        self._servicer.stop()
        if self._ticker.ident is not None:
            self._ticker.join(2.0)
        self._dispatcher.close()

    @checked()
    def join(self) -> None:
        """Wait until the dispatcher is stopped.

        Raises:
            FailedPreconditionError: the dispatcher was never started.
        """
        if self._server is None and not self.stopped:
            raise FailedPreconditionError("the dispatcher was not started", hint="call start() first")
        self._stop_once.wait()

    @checked()
    def status(self) -> Snapshot:
        """A snapshot of the service: workers, jobs, trainers and events."""
        return self._dispatcher.status()

    @checked()
    def debug_state(self) -> dict[str, Any]:
        """What the dispatcher keeps, as plain data for bug reports and tests. Its keys may change in any release."""
        return self._dispatcher.debug_state()

    def reported_status(self) -> Snapshot:
        """A snapshot as of the last reports of workers and clients, at most two seconds old; it costs little."""
        return self._dispatcher.status(request_reports=False)

    def worker_died(self, uid: str, exit_reason: str) -> None:
        """Count a worker as lost at once, because its owner saw it die; clients get `exit_reason` with the loss."""
        self._dispatcher.worker_died(uid, exit_reason)

    def hold_new_workers(self) -> None:
        """Give workers that join from now on no work until `replace_workers`."""
        self._dispatcher.handle(e.HoldNewWorkers())

    def replace_workers(self, uids: Sequence[str]) -> None:
        """Give all new work to the workers that were held, and let the ones with these uids finish what they have.

        Without uids, the workers that were held begin to work beside the others.
        """
        self._dispatcher.handle(e.ReplaceWorkers(uids=tuple(uids)))

    def has_tasks(self, uid: str) -> bool:
        """Whether the worker with that uid has any task."""
        with self._dispatcher.locked():
            return bool(self._dispatcher.core.state.tasks_of(uid))

    def announce(self, text: str, level: str = "info") -> None:
        """Add a line to the events of the status; `level` is "info" or "warning"."""
        self._dispatcher.announce(text, level)

    def set_worker_pool(self, worker_pool: WorkerPool) -> None:
        """Set the object that starts and stops this service's workers."""
        self._dispatcher.worker_pool = worker_pool

    def end_autoscaling(self) -> None:
        """Let no further decision change the number of workers, because they are about to be stopped."""
        self._dispatcher.autoscale(0, 0)

    def __enter__(self) -> DispatchServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "running" if self._server else "not started"
        return f"DispatchServer({self.config.name!r}, {state})"

    @property
    def _address(self) -> str:
        return self.target.removeprefix("grpc://")

    def _listen(self) -> GrpcServer:
        """Listen on the configured port, or the last one used with this `work_dir`: workers and clients retry there."""
        ports = _ports(self.config)
        taken: int | str = 0
        while True:
            server = GrpcServer("dispatcher", self._servicer.handlers(), self.token)
            try:
                server.start(_listening_host(self.config.host, self._reachable_host), ports[0], self.certificate)
            except AlreadyExistsError:
                if len(ports) == 1:
                    raise
                taken = ports.pop(0)
            else:
                _save_port(self.config, server.port)
                if taken:
                    self.announce(_port_moved_text(taken, server.port), "warning")
                return server

    def _tick(self) -> None:
        while not self._stop_once.requested.wait(self.config.job_gc_check_interval_ms / 1000):
            try:
                self._dispatcher.tick()
            except UnavailableError:  # the journal cannot be written; callers get this error too
                pass
            except Exception as bug:  # noqa: BLE001 - without this thread no dead worker or client would be noticed
                self._dispatcher.report_bug(bug, "its clock")


def _listening_host(host: str, reachable: str) -> str:
    return reachable if host == AUTO else host


def _ports(config: DispatcherConfig) -> list[int | str]:
    """The ports to try, in order: numbers, 0 for a free port, or ranges."""
    given = config.port
    assert not isinstance(given, range), "`checked` has replaced it by text"
    if config.work_dir is None or (given and not isinstance(given, str)):
        return [given]
    try:
        last = int(Path(config.work_dir, "port").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return [given]
    return [last, given] if last in (port_numbers(given) if given else range(1, 65536)) else [given]


def _port_moved_text(taken: int | str, port: int) -> str:
    return (
        f"port {taken}, where this service listened before, is taken by another process, so it listens on {port}; "
        f"workers and readers that know only the old address wait there in vain"
    )


def _save_port(config: DispatcherConfig, port: int) -> None:
    if config.work_dir is not None and config.fault_tolerant_mode is not False:
        with suppress(OSError):  # a convenience: the service works without the saved port
            replace_without_sync(os.path.join(config.work_dir, "port"), b"%d" % port, _PORT_NAME, mode=0o600)


def _make_certificate(config: DispatcherConfig) -> str:
    """The service's certificate with its key, from its `work_dir` if it has one; empty without TLS."""
    if not config.uses_tls:
        return ""
    return new_certificate() if config.work_dir is None else load_or_create_certificate(config.work_dir)


def _make_dispatcher(config: DispatcherConfig) -> tuple[str, Dispatcher]:
    """The token and the dispatcher of a service, restored from its `work_dir` if it has one."""
    if config.work_dir is None:
        return config.token if config.token is not None else new_token(), Dispatcher(config)
    folder = Path(config.work_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = config.token if config.token is not None else load_or_create_token(folder / "token")
        if config.fault_tolerant_mode is False:
            return token, Dispatcher(config)
        return token, Dispatcher(config, Journal(folder / "journal.sqlite"), BlobStore(folder / "blobs"))
    except OSError as error:
        if isinstance(error, DsnbError):
            raise
        raise FailedPreconditionError(
            f"the work_dir {folder} cannot be used ({error.strerror})",
            did="nothing was started",
            hint="give a folder that you may write to",
        ) from error

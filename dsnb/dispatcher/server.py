"""`DispatchServer`: the dispatcher as an object to start and stop."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dsnb.arguments import checked, instance, optional
from dsnb.dispatcher import events as e
from dsnb.dispatcher.blobs import BlobStore
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.desk import Desk
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.owner import Owner
from dsnb.dispatcher.rpc import DispatcherService
from dsnb.errors import AlreadyExistsError, DsnbError, FailedPreconditionError, UnavailableError
from dsnb.monitor.snapshot import Snapshot
from dsnb.wire import discovery
from dsnb.wire.addresses import address_of
from dsnb.wire.ending import Ending
from dsnb.wire.security import kept_token, new_token
from dsnb.wire.server import GrpcServer
from dsnb.wire.stopped import note_started, note_stopped
from dsnb.wire.transfer import local


class DispatchServer:
    """The role that knows datasets, jobs, workers and splits. It never touches an element or user code.

    Args:
        config: Settings; None for the defaults.
        start: Whether to start at once.

    Raises:
        AlreadyExistsError: the port is taken, or another dispatcher uses the `work_dir`.
        DataLossError: what is in the `work_dir` is damaged.
        FailedPreconditionError: a newer dsnb wrote it.

    Example:
        >>> with DispatchServer() as dispatcher:
        ...     dispatcher.target.partition(":")[0]
        'grpc'
    """

    @checked(config=optional(instance(DispatcherConfig, hint="pass dsnb.DispatcherConfig(port=5050), or leave it out")))
    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        self.config = config or DispatcherConfig()
        self.token, self._desk = _begin(self.config)
        self._service = DispatcherService(self._desk)
        self._server: GrpcServer | None = None
        self._ticker = threading.Thread(target=self._tick, name="dsnb-dispatcher-tick", daemon=True)
        self._lock = threading.RLock()  # what could not be started is stopped at once
        self._ending = Ending(self._lock)
        if start:
            self.start()

    @property
    def target(self) -> str:
        """Where it listens, as in "grpc://127.0.0.1:5050"."""
        if self._server is None:
            raise FailedPreconditionError("the dispatcher was not started", hint="call start() first")
        return f"grpc://{address_of(self.config.host, self._server.port)}"

    @checked()
    def start(self) -> None:
        """Listen; the second call does nothing.

        Raises:
            FailedPreconditionError: it was stopped before.
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
                self._desk.target = self.target
                local.offer_blobs(self._address, self._desk.blobs.get)
                discovery.remember(self.target, self.token)
                note_started(self.target)
                self._ticker.start()
                atexit.register(self.stop)
            except BaseException:  # Ctrl-C among them
                self.stop()
                raise

    @checked()
    def drain(self) -> None:
        """Let nobody begin to read any more; those who read go on."""
        self._desk.draining = True

    @property
    def idle(self) -> bool:
        """Whether nobody reads."""
        with self._desk.locked():
            return not self._desk.core.state.clients

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._ending.begun.is_set()

    @checked()
    def stop(self) -> None:
        """Stop listening and end all threads; a second call only waits for the first, as the process may end next."""
        self._ending.run(self._stop)

    def _stop(self) -> None:
        atexit.unregister(self.stop)
        if self._server is None:
            self._desk.close()
            return
        if self.config.work_dir is None:  # else it may be started again where it was
            note_stopped(self.target, self.config.name)
        local.withdraw_blobs(self._address)
        discovery.forget(self.target, self.token)
        self._desk.hang_up()
        self._server.stop(0.2)
        self._service.stop()
        if self._ticker.ident is not None:
            self._ticker.join(2.0)
        self._desk.close()

    @checked()
    def join(self) -> None:
        """Wait until it is stopped.

        Raises:
            FailedPreconditionError: it was never started.
        """
        if self._server is None and not self.stopped:
            raise FailedPreconditionError("the dispatcher was not started", hint="call start() first")
        self._ending.wait()

    @checked()
    def status(self) -> Snapshot:
        """What the service looks like now."""
        return self._desk.status()

    def worker_died(self, uid: str, how: str) -> None:
        """Count a worker as lost at once, because its owner saw it die; its readers are told how."""
        self._desk.worker_died(uid, how)

    def announce(self, text: str, level: str = "info") -> None:
        """Add a line to the events of the status; `level` is "info" or "warning"."""
        self._desk.announce(text, level)

    def owned_by(self, owner: Owner) -> None:
        """Learn who starts and stops workers here."""
        self._desk.owner = owner

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
        """Listen where it was asked for; else where the last one of its work folder did, for others look there."""
        ports = _ports(self.config)
        taken = 0
        while True:
            server = GrpcServer("dispatcher", self._service.handlers(), self.token)
            try:
                server.start(self.config.host, ports[0])
            except AlreadyExistsError:
                if len(ports) == 1:
                    raise
                taken = ports.pop(0)
            else:
                _note_port(self.config, server.port)
                if taken:
                    self.announce(_moved(taken, server.port), "warning")
                return server

    def _tick(self) -> None:
        while not self._ending.begun.wait(self.config.job_gc_check_interval_ms / 1000):
            try:
                self._desk.handle(e.Tick())
            except UnavailableError:  # the journal could not be written; whoever calls is told
                pass
            except Exception as bug:  # noqa: BLE001 - without this thread nobody is ever found to be gone
                self._desk.stumbled(bug, "its clock")


def _ports(config: DispatcherConfig) -> list[int]:
    """The ports to try, one after the other."""
    if config.port or config.work_dir is None:
        return [config.port]
    try:
        last = int(Path(config.work_dir, "port").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return [0]
    return [last, 0] if 0 < last < 65536 else [0]


def _moved(taken: int, port: int) -> str:
    return (
        f"port {taken}, where this service listened before, is taken by another process, so it listens on {port}; "
        f"workers and readers that know only the old address wait there in vain"
    )


def _note_port(config: DispatcherConfig, port: int) -> None:
    if config.work_dir is not None and config.fault_tolerant_mode is not False:
        with suppress(OSError):  # a convenience; what cannot be done without has been kept
            handle = os.open(Path(config.work_dir, "port"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(str(port))


def _begin(config: DispatcherConfig) -> tuple[str, Desk]:
    """The token of a service and its desk, as its work folder tells where it has one."""
    if config.work_dir is None:
        return config.token if config.token is not None else new_token(), Desk(config)
    folder = Path(config.work_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = config.token if config.token is not None else kept_token(folder / "token")
        if config.fault_tolerant_mode is False:
            return token, Desk(config)
        return token, Desk(config, Journal(folder / "journal.sqlite"), BlobStore(folder / "blobs"))
    except OSError as error:
        if isinstance(error, DsnbError):
            raise
        raise FailedPreconditionError(
            f"the work_dir {folder} cannot be used ({error.strerror})",
            did="nothing was started",
            hint="give a folder that you may write to",
        ) from error

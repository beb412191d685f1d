"""`start`, `connect` and `DataService`: what a cell touches."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any, Literal

from dsnb.errors import (
    DeadlineExceededError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.watch import fetch_snapshot, watch_snapshots
from dsnb.notebook import display
from dsnb.notebook.cluster import Cluster, ClusterSettings
from dsnb.wire import discovery
from dsnb.wire.channel import open_channel, split_target
from dsnb.wire.messages import ForgetRequest
from dsnb.wire.methods import FORGET


class DataService:
    """A data service: one that this process started, or one that it is connected to.

    Made by `dsnb.start` and `dsnb.connect`; usable wherever a `service` is asked for. May be used from any thread.

    Attributes:
        name: The service's name.
        target: Where it listens, as in "grpc://127.0.0.1:5050".
        token: What callers must show; keep it to yourself.
        owned: Whether this object started it; only then `stop` stops it.
    """

    def __init__(self, name: str, target: str, token: str, cluster: Cluster | None = None) -> None:
        self.name = name
        self.target = target
        self.token = token
        self._cluster = cluster
        self._dashboard: Any = None
        self._lock = threading.RLock()

    @property
    def owned(self) -> bool:
        """Whether this object started the service."""
        return self._cluster is not None

    @property
    def settings(self) -> ClusterSettings:
        """What it was started with; the defaults for a service of another process."""
        return self._cluster.settings if self._cluster is not None else ClusterSettings()

    @property
    def workers(self) -> int:
        """The number of workers that it has now."""
        if self._cluster is not None:
            return len(self._cluster.workers)
        return len(self.status().workers)

    def status(self) -> Snapshot:
        """What the service looks like now: workers, jobs, trainers, splits, with counters that only grow.

        Raises:
            UnavailableError: it does not answer.
        """
        self._check_running()
        return fetch_snapshot(self.target, self.token)

    def wait_until(self, condition: Callable[[Snapshot], bool], timeout: float = 30.0) -> Snapshot:
        """Wait until a condition on the status holds, and return that status.

        Args:
            condition: What to wait for.
            timeout: Seconds to wait at the most.

        Raises:
            DeadlineExceededError: it did not come to hold in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            snapshot = self.status()
            if condition(snapshot):
                return snapshot
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"the condition did not hold within {timeout:g} seconds", hint="svc.status() shows what is there"
                )
            time.sleep(0.05)

    def scale(self, workers: int) -> None:
        """Have this many workers. New ones join the jobs that run; DYNAMIC jobs lose nothing when one goes.

        Args:
            workers: 0 or more. A worker that goes finishes the splits it has, for as long as its readers take: this
                call waits for that for 5 seconds, the rest happens in the background. Its pass of an OFF job ends
                early, which its readers are told.

        Raises:
            FailedPreconditionError: another process started the service.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise InvalidArgumentError(f"a service cannot have {workers!r} workers", hint="use 0 or more")
        if self._cluster is None:
            raise FailedPreconditionError(
                f"the service {self.name!r} belongs to another process",
                did="nothing was changed",
                hint=f"call scale() there, or add workers with `dsnb worker --dispatcher {split_target(self.target)}`",
            )
        self._check_running()
        self._cluster.scale(workers)

    def forget(self, job_name: str) -> None:
        """Drop a job that nobody reads, so that its name is free and its passes begin at 0 again.

        Raises:
            NotFoundError: there is no such job.
            FailedPreconditionError: somebody reads it.
        """
        channel = open_channel(self.target, self.token)
        try:
            channel.call(FORGET, ForgetRequest(job_name=job_name))
        finally:
            channel.close()

    def dashboard(self, height: int = 760) -> Any:
        """Show the dashboard: in a notebook as a frame in the page, elsewhere as its address.

        The page is served by a thread of this process and stays live while cells run.

        Args:
            height: Of the frame, in pixels.
        """
        self._check_running()
        return display.dashboard_frame(self.dashboard_url(), height)

    def dashboard_url(self) -> str:
        """The dashboard's address; begins to serve it."""
        from dsnb.dashboard.server import start_in_thread  # panel takes a second to import, and few calls need it

        with self._lock:
            if self._dashboard is None:
                target, token = self.target, self.token
                self._dashboard = start_in_thread(lambda stop: watch_snapshots(target, token, 0.5, stop))
            return str(self._dashboard.url)

    def stop(self) -> None:
        """Stop the service and everything of it; of a service of another process, only what was opened here.

        The second call does nothing.
        """
        with self._lock:
            dashboard, self._dashboard = self._dashboard, None
        if dashboard is not None:
            dashboard.stop()
        if self._cluster is not None:
            self._cluster.stop()

    @property
    def stopped(self) -> bool:
        """Whether the service was stopped here."""
        return self._cluster is not None and self._cluster.stopped

    def _check_running(self) -> None:
        if self.stopped:
            raise FailedPreconditionError(f"the service {self.name!r} was stopped", hint="start it again: dsnb.start()")

    def __enter__(self) -> DataService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        # The token stays here: where the object is unpickled, it is found by the address.
        return (_reconnect, (self.name, self.target))

    def __repr__(self) -> str:
        # Nothing that changes from run to run, so that a notebook's output can be compared.
        workers = f"{self.workers} worker{'' if self.workers == 1 else 's'}" if self.owned else "connected"
        state = "stopped" if self.stopped else workers
        return f"DataService({self.name!r}, {state})"

    def _repr_html_(self) -> str:
        head = display.head(self.name, self.target)
        if self.stopped:
            return f"{head}: stopped"
        try:
            return head + display.tables(self.status())
        except DsnbError as error:
            return head + display.unreachable(error)


def _reconnect(name: str, target: str) -> DataService:
    return DataService(name, target, discovery.token_for(target))


_running: dict[str, DataService] = {}
_start_lock = threading.RLock()


def start(
    workers: int = 2,
    *,
    name: str | None = None,
    isolation: Literal["thread", "process"] = "thread",
    port: int = 0,
    host: str = "127.0.0.1",
    token: str | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    cross_trainer_cache_size_bytes: int | None = None,
) -> DataService:
    """Start a data service: a dispatcher in this process, and workers as its threads or processes.

    Run again, as a cell is, it gives back the service that runs, with the number of workers asked for.

    Args:
        workers: How many.
        name: What it is called; None for this process's own service if it has one, else "default", "default-2", ...
        isolation: Where workers live. "thread": in this process, there at once. "process": in processes of their own
            that end with this one; they take a second to start, are not held up by what this interpreter does, and
            one that dies is explained and replaced.
        port: Of the dispatcher; 0 for a free one.
        host: The address to listen on; loopback only.
        token: What callers must show; None for a random one.
        work_dir: A folder of this service's own, made if it is not there. Jobs, splits and the token are kept in it, so
            that a service that is started there again carries on; None to forget all with the process.
        cross_trainer_cache_size_bytes: Bytes of elements that each worker keeps for other trainers.

    Returns:
        The service. Stop it with `stop()` or by leaving its `with` block.

    Raises:
        AlreadyExistsError: the name is used by another process, the port is taken, or the work_dir is in use.
        DataLossError: what is in the work_dir is damaged.
        InvalidArgumentError: an argument can never be right.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     sorted(int(x) for x in dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", svc)))
        [0, 1, 2]
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise InvalidArgumentError(f"a service cannot have {workers!r} workers", hint="use 0 or more")
    settings = ClusterSettings(
        isolation=isolation,
        port=port,
        host=host,
        token=token,
        work_dir=None if work_dir is None else os.path.abspath(work_dir),
        cross_trainer_cache_size_bytes=cross_trainer_cache_size_bytes,
    )
    with _start_lock:
        known = _running.get(name) if name is not None else next(iter(_running.values()), None)
        if known is not None:
            return _again(known, workers, settings)
        service = _start(discovery.check_name(name) if name is not None else discovery.free_name(), settings)
        try:
            service.scale(workers)
        except BaseException:
            service.stop()
            raise
        return service


def _again(service: DataService, workers: int, settings: ClusterSettings) -> DataService:
    """The service that runs already, scaled; a notice says so."""
    running = service.settings
    asked = {key: value for key, value in asdict(settings).items() if value != getattr(ClusterSettings(), key)}
    differ = [key for key, value in asked.items() if getattr(running, key) != value]
    if differ:
        raise FailedPreconditionError(
            f"the service {service.name!r} runs in this process with another {', '.join(differ)}",
            did="it was left as it is",
            hint="stop it first (svc.stop()), or start another one under a name of its own",
        )
    before = service.workers
    service.scale(workers)
    change = f"; now {workers} worker(s) instead of {before}" if workers != before else ""
    print(f"dsnb: the service {service.name!r} is running already{change}")
    return service


def _start(name: str, settings: ClusterSettings) -> DataService:
    cluster = Cluster(name, settings, lambda: _forget(name))
    service = DataService(name, cluster.dispatcher.target, cluster.dispatcher.token, cluster)
    _running[name] = service
    return service


def _forget(name: str) -> None:
    _running.pop(name, None)


def connect(service: str | DataService | None = None, token: str | None = None) -> DataService:
    """Attach to a service that runs, in this process or another; it is never stopped by this object.

    Args:
        service: Its name or its target; None for the only one of this user on this host.
        token: What to show; None to find it (this user's connection files, then `DSNB_TOKEN`).

    Raises:
        NotFoundError: none runs, none fits, or several run and none was named.
        UnavailableError: nobody answers at the target.
        PermissionDeniedError: the token is missing or wrong.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1, name="shared") as svc:
        ...     dsnb.connect("shared").target == svc.target
        True
    """
    if isinstance(service, DataService):
        service = service.target
    name, target, found = _locate(service)
    shown = token if token is not None else found
    try:
        snapshot = fetch_snapshot(target, shown)
    except PermissionDeniedError as error:
        raise PermissionDeniedError(error.what, did="nothing was opened", hint=error.hint) from None
    return DataService(snapshot.service or name, target, shown)


def _locate(service: str | None) -> tuple[str, str, str]:
    try:
        connection = discovery.find(service)
        return connection.name, connection.target, connection.token
    except NotFoundError:
        if service is None or ":" not in service:
            raise
    address = split_target(service)
    return address, f"grpc://{address}", discovery.token_for(address)

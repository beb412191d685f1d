"""`start`: run a service in this process, or return the one that already runs here."""

from __future__ import annotations

import os
import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Literal

from dsnb.arguments import checked, integer, milliseconds, nbytes, one_of, optional, path, port
from dsnb.errors import FailedPreconditionError
from dsnb.notebook.settings import ClusterSettings, worker_count
from dsnb.notebook.uninterruptible import run_uninterruptible as uninterrupted
from dsnb.wire import discovery, forks
from dsnb.wire.addresses import loopback, token
from dsnb.wire.discovery import service_name
from dsnb.worker.process import WorkerProcess

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService

_ISOLATION = one_of(
    "thread",
    "process",
    hint='use "thread" (starts at once) or "process" (does not compete with this process for the GIL)',
)

_running: dict[str, DataService] = {}
_lock = threading.RLock()


@checked(
    workers=worker_count,
    name=optional(service_name),
    isolation=_ISOLATION,
    port=port,
    host=loopback,
    token=optional(token),
    work_dir=optional(path),
    cross_trainer_cache_size_bytes=optional(nbytes),
    max_readers=optional(integer(1, 1_000_000)),
    shared_memory_bytes=optional(integer(0)),
    consumer_timeout_ms=optional(milliseconds),
)
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
    max_readers: int | None = None,
    shared_memory_bytes: int | None = None,
    consumer_timeout_ms: int | None = None,
    replace: bool = False,
) -> DataService:
    """Start a data service: a dispatcher in this process, and workers as threads or child processes.

    Running the same cell again returns the service that already runs, scaled to `workers`. If other arguments differ,
    a new service replaces it, provided that no client reads from the old one. A printed line says what was done.

    Args:
        workers: The number of workers.
        name: The service's name. None: this process's running service if there is one, else a new service called
            "default", "default-2", ...
        isolation: Where workers run. "thread": in this process; they start immediately. "process": in child processes
            that end with this one; they take a second to start, do not compete for this process's GIL, and if one
            dies, the reason is reported and the worker is replaced.
        port: The dispatcher's port; 0 for a free one.
        host: The address to listen on; loopback only.
        token: The secret that callers must send; None for a random one.
        work_dir: A directory for this service alone, created if missing. It keeps jobs, splits and the token, so that a
            service started there again resumes. None: nothing outlives the process.
        cross_trainer_cache_size_bytes: Bytes of elements that each worker keeps for other trainers.
        max_readers: How many clients of other processes each worker serves at once; 256 by default. A further client
            gets a ResourceExhaustedError.
        shared_memory_bytes: Maximum shared memory of each worker for clients in other processes of this host; by
            default 256 MiB or a quarter of the host's memory, whichever is less; 0 disables it.
        consumer_timeout_ms: How long a consumer of a coordinated read waits for a round before it raises an error that
            names the missing consumers; two minutes by default.
        replace: Whether a service with changed settings may replace one that still has clients.

    Returns:
        The service. Stop it with `stop()`, or by leaving its `with` block if this call started it.

    Raises:
        AlreadyExistsError: another process uses the name, the port is taken, or the work_dir is in use.
        DataLossError: the contents of the work_dir are damaged.
        FailedPreconditionError: the running service differs and has clients, or the process was forked.
        InvalidArgumentError: an argument is invalid.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     sorted(int(x) for x in dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", svc)))
        [0, 1, 2]
    """
    settings = ClusterSettings(
        isolation=isolation,
        port=port,
        host=host,
        token=token,
        work_dir=None if work_dir is None else os.path.abspath(work_dir),
        cross_trainer_cache_size_bytes=cross_trainer_cache_size_bytes,
        max_readers=max_readers,
        shared_memory_bytes=shared_memory_bytes,
        consumer_timeout_ms=consumer_timeout_ms,
    )
    forks.check_grpc()
    with _lock:
        known = _running.get(name) if name is not None else next(iter(_running.values()), None)
        if known is None:
            return _start(name, workers, settings)
        changed = _changed_settings(known.settings, settings)
        return _replace(known, workers, settings, changed, replace) if changed else _reuse(known, workers)


def _start(name: str | None, workers: int, settings: ClusterSettings) -> DataService:
    """Start a new service; on an error or an interrupt, undo everything that was started."""
    prestarted: list[WorkerProcess] = []

    def start_or_undo() -> DataService:
        try:
            if settings.isolation == "process":
                _prestart_workers(prestarted, workers)
            return _start_cluster(name, workers, settings, prestarted)
        except BaseException:
            for process in prestarted:
                process.stop(0.0)
            raise

    return uninterrupted(start_or_undo, undo=lambda service: service.stop())


def _prestart_workers(prestarted: list[WorkerProcess], count: int) -> None:
    """Start worker processes early, so that their imports overlap with those of this process."""
    for _ in range(count):
        prestarted.append(WorkerProcess())
        prestarted[-1].prestart()


def _start_cluster(
    name: str | None, workers: int, settings: ClusterSettings, prestarted: list[WorkerProcess]
) -> DataService:
    from dsnb.notebook.cluster import Cluster
    from dsnb.notebook.service import DataService

    claimed = discovery.claim(name)
    try:
        cluster = Cluster(claimed.name, settings, lambda: _forget(claimed.name), prestarted)
    except BaseException:
        discovery.retract(claimed)
        raise
    try:
        cluster.scale(workers)
    except BaseException:
        cluster.stop()
        raise
    service = DataService(claimed.name, cluster.dispatcher.target, cluster.dispatcher.token, cluster)
    _running[claimed.name] = service
    return service


def _forget(name: str) -> None:
    _running.pop(name, None)


# ---- start again


def _changed_settings(running: ClusterSettings, requested: ClusterSettings) -> list[str]:
    """Names of the settings that differ. A port or token that was not requested matches any."""
    names = [field.name for field in fields(ClusterSettings)]
    given = [name for name in names if name not in {"port", "token"} or getattr(requested, name)]
    return [name for name in given if getattr(requested, name) != getattr(running, name)]


def _reuse(service: DataService, workers: int) -> DataService:
    """Scale the running service to `workers` and return it."""
    before = service.workers
    if workers != before:
        service.scale(workers)
    change = f"; now {workers} worker(s) instead of {before}" if workers != before else ""
    print(f"dsnb: the service {service.name!r} is already running{change}")
    return service.borrowed()


def _replace(
    old: DataService, workers: int, settings: ClusterSettings, changed: list[str], forced: bool
) -> DataService:
    """Replace a running service by one with other settings, unless it has clients and `forced` is false."""
    changed_names = " and ".join(changed)
    readers = {} if forced else {job.name: job.clients for job in old.status().jobs if job.clients}
    if readers:
        jobs = ", ".join(map(repr, readers))
        raise FailedPreconditionError(
            f"the service {old.name!r} runs in this process with another {changed_names}, and {sum(readers.values())} "
            f"reader(s) read from it (job {jobs})",
            did="it was left as it is",
            hint="pass replace=True to stop it and end these reads, or start another service with a different name",
        )
    old.stop()
    service = _start(old.name, workers, settings)
    print(f"dsnb: the service {old.name!r} was restarted with another {changed_names}")
    return service

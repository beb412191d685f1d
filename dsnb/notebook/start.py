"""`start`: run a service in this process, or return the one that already runs here."""

from __future__ import annotations

import os
import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from dsnb.arguments import boolean, checked, integer, milliseconds, nbytes, one_of, optional, path
from dsnb.errors import AlreadyExistsError, DsnbError, FailedPreconditionError
from dsnb.launchers.choice import launcher_for, launcher_or_none
from dsnb.launchers.launcher import Launcher
from dsnb.notebook.settings import ClusterSettings, WorkerCount, worker_count, worker_limits
from dsnb.notebook.uninterruptible import run_uninterruptible as uninterrupted
from dsnb.wire import discovery, forks
from dsnb.wire.addresses import listen_host, ports, token
from dsnb.wire.discovery import service_name

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService

LOOPBACK: Final = "127.0.0.1"
_START_S: Final = 60.0
"""How long to wait for a service that another kernel is starting."""

_ISOLATION = one_of(
    "thread",
    "process",
    "auto",
    hint='use "thread" (starts at once), "process" (does not compete with this process for the GIL), or "auto" '
    "(threads, replaced by processes when the GIL limits a job)",
)

_running: dict[str, DataService] = {}
_lock = threading.RLock()


@checked(
    workers=optional(worker_count),
    name=optional(service_name),
    isolation=_ISOLATION,
    autoscale=optional(worker_limits),
    on=launcher_or_none,
    port=ports,
    host=optional(listen_host, LOOPBACK),
    tls=optional(boolean),
    token=optional(token),
    work_dir=optional(path),
    cross_trainer_cache_size_bytes=optional(nbytes),
    max_readers=optional(integer(1, 1_000_000)),
    shared_memory_bytes=optional(integer(0)),
    consumer_timeout_ms=optional(milliseconds),
    outlive_kernel=boolean,
)
def start(
    workers: int | None = None,
    *,
    name: str | None = None,
    isolation: Literal["thread", "process", "auto"] = "thread",
    on: Any = None,
    autoscale: tuple[int, int] | None = None,
    port: int | range | str = 0,
    host: str | None = None,
    tls: bool | None = None,
    token: str | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    cross_trainer_cache_size_bytes: int | None = None,
    max_readers: int | None = None,
    shared_memory_bytes: int | None = None,
    consumer_timeout_ms: int | None = None,
    outlive_kernel: bool = False,
    replace: bool = False,
) -> DataService:
    """Start a data service: a dispatcher, and workers as threads or processes, in this process or below it.

    Running the same cell again returns the service that already runs, scaled to `workers`. If other arguments differ,
    a new service replaces it, provided that no client reads from the old one. A printed line says what was done.

    Args:
        workers: The number of workers. None: 2, or with Dask one on each Dask worker.
        name: The service's name. None: this process's running service if there is one, else a new service called
            "default", "default-2", ...
        isolation: Where workers run. "thread": in this process; they start immediately. "process": in child processes
            that end with this one; they take a second to start, do not compete for this process's GIL, and if one
            dies, the reason is reported and the worker is replaced. "auto": threads at first; once `explain()` says
            that the GIL limits a job, processes replace them without a restart of the job, and an event says so. What
            a thread has begun stays with it, except DYNAMIC epochs: these move at once. Ignored if `on` is given.
        on: Where else workers run: "ray", a Dask client or cluster, or a launcher of `dsnb.launchers`. None: on this
            host.
        autoscale: The least and the greatest number of workers, if their number is chosen automatically, as
            `DataService.autoscale` does. It begins with `workers`. None: the number stays as it is.
        port: The dispatcher's port; 0 for a free one. A range, as in `range(5100, 5201)` or "5100-5200", stands for
            the first free ports, of the dispatcher and of the workers: for firewalls that let only these through.
        host: The address to listen on. None: 127.0.0.1, so that only this machine can connect. "auto": the address that
            routes to other machines; `svc.join_command()` then says how they join.
        tls: Whether connections are encrypted. None: yes if `host` is not loopback, which needs the extra
            dsnb[cluster]. With False, everybody on the network can read the elements; the status then has a warning.
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
        outlive_kernel: Whether the service runs in processes of its own, also its dispatcher, so that it survives the
            end or a restart of this kernel. `start` with the same name, in any kernel of this user on this host, finds
            it again; without a name, one with the same settings. Its workers are processes. It runs until `stop` is
            called, or `dsnb stop NAME`; other settings replace it only with `replace=True`.
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
        isolation="process" if outlive_kernel else isolation,
        on=on,
        port=cast("int | str", port),  # `ports` has replaced a range by text
        host=host or LOOPBACK,
        tls=tls,
        token=token,
        work_dir=None if work_dir is None else os.path.abspath(work_dir),
        cross_trainer_cache_size_bytes=cross_trainer_cache_size_bytes,
        max_readers=max_readers,
        shared_memory_bytes=shared_memory_bytes,
        consumer_timeout_ms=consumer_timeout_ms,
        outlive_kernel=outlive_kernel,
    )
    forks.check_grpc()
    with _lock:
        if outlive_kernel:
            _check_detached(settings)
        known = _known(name, settings)
        count = WorkerCount(workers, autoscale)
        if known is None:
            return _start(name, count, settings)
        changed = _changed_settings(known.settings, settings)
        return _replace(known, count, settings, changed, replace) if changed else _reuse(known, count)


def _check_detached(settings: ClusterSettings) -> None:
    from dsnb.notebook.detached import check_launcher

    check_launcher(settings.on)


def _known(name: str | None, settings: ClusterSettings) -> DataService | None:
    """The running service that a call of `start` refers to, of this process or one that outlives kernels; else None.

    A call without a name refers to a service that outlives kernels only if the settings are the same: another one may
    be somebody else's.

    Raises:
        FailedPreconditionError: the service of that name outlives kernels, which was not asked for.
    """
    for ended in [known for known, service in _running.items() if service.stopped]:
        _forget(ended)
    if name is None:
        own = [one for one in _running.values() if one.settings.outlive_kernel == settings.outlive_kernel]
        return next(iter(own), None) or (_attach(None, settings) if settings.outlive_kernel else None)
    found = _running.get(name) or (_attach(name, settings) if settings.outlive_kernel else None)
    if found is not None and found.settings.outlive_kernel and not settings.outlive_kernel:
        raise FailedPreconditionError(
            f"the service {name!r} outlives this kernel, and others may use it",
            did="it was left as it is",
            hint="pass outlive_kernel=True to get it, or call its stop() first",
        )
    return found


def _attach(name: str | None, settings: ClusterSettings) -> DataService | None:
    """The service of this user that outlives kernels, under this name or with these settings; None if none runs."""
    from dsnb.notebook.detached import find_detached

    connection = find_detached(name)
    if connection is None:
        return None
    service = _detached_service(connection)
    return None if name is None and _changed_settings(service.settings, settings) else service


def _detached_service(connection: discovery.Connection) -> DataService:
    from dsnb.notebook.detached import DetachedCluster
    from dsnb.notebook.service import DataService

    cluster = DetachedCluster(connection, lambda: _forget(connection.name))
    return DataService(connection.name, connection.target, connection.token, cluster)


def _start(name: str | None, count: WorkerCount, settings: ClusterSettings) -> DataService:
    """Start a new service; on an error or an interrupt, undo everything that was started."""
    if settings.outlive_kernel:
        return uninterrupted(lambda: _start_detached(name, count, settings), undo=lambda service: service.stop())
    return start_here(name, count, settings)


def _start_detached(name: str | None, count: WorkerCount, settings: ClusterSettings) -> DataService:
    from dsnb.notebook.detached import start_detached, wait_for_detached

    try:
        connection = start_detached(name, count, settings)
    except AlreadyExistsError:
        other = wait_for_detached(name, _START_S) if name is not None else None
        if other is None:
            raise
        print(f"dsnb: another kernel has just started the service {name!r}")
        connection = other
    service = _running[connection.name] = _detached_service(connection)
    return service


def start_here(name: str | None, count: WorkerCount, settings: ClusterSettings) -> DataService:
    """Start a new service with its dispatcher in this process."""
    launcher = launcher_for(settings.on, settings.isolation)

    def start_or_undo() -> DataService:
        try:
            launcher.check(settings.host)
            workers = count.first(launcher.default_count())
            launcher.prestart(workers)
            return _start_cluster(name, workers, count.autoscale, settings, launcher)
        except BaseException:
            launcher.close()
            raise

    return uninterrupted(start_or_undo, undo=lambda service: service.stop())


def _start_cluster(
    name: str | None, workers: int, autoscale: tuple[int, int] | None, settings: ClusterSettings, launcher: Launcher
) -> DataService:
    from dsnb.notebook.cluster import Cluster
    from dsnb.notebook.service import DataService

    claimed = discovery.claim(name)
    try:
        cluster = Cluster(claimed.name, settings, launcher, lambda: _forget(claimed.name))
    except BaseException:
        discovery.retract(claimed)
        raise
    try:
        notice = cluster.pool.scale(workers)
        service = DataService(claimed.name, cluster.dispatcher.target, cluster.dispatcher.token, cluster)
        if autoscale is not None:
            service.autoscale(*autoscale)
    except BaseException:
        cluster.stop()
        raise
    if notice:
        print(f"dsnb: {notice}")
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


def _reuse(service: DataService, count: WorkerCount) -> DataService:
    """Give the running service the requested number of workers, or the limits for it, and return it."""
    if service.settings.outlive_kernel:
        _running[service.name] = service
    if service.settings.outlive_kernel and count == WorkerCount(None, None):
        print(f"dsnb: the service {service.name!r} is already running")  # as somebody else may have scaled it
        return service.borrowed()
    before = service.workers
    # A service that autoscales already has moved on from the number in the cell.
    autoscales_already = count.autoscale is not None and service.status().autoscale is not None
    _switch_autoscaling(service, count.autoscale)
    workers = before if autoscales_already else count.first(launcher_for(service.settings.on, "").default_count())
    if workers != before:
        service.scale(workers)
    change = f"; now {workers} worker(s) instead of {before}" if workers != before else ""
    print(f"dsnb: the service {service.name!r} is already running{change}")
    return service.borrowed()


def _switch_autoscaling(service: DataService, limits: tuple[int, int] | None) -> None:
    if limits is not None:
        service.autoscale(*limits)
    elif service.status().autoscale is not None:
        service.autoscale(None)


def _replace(
    old: DataService, count: WorkerCount, settings: ClusterSettings, changed: list[str], forced: bool
) -> DataService:
    """Replace a running service by one with other settings, unless it has clients and `forced` is false."""
    *others, last = (f"`{name}`" for name in changed)
    changed_names = f"{', '.join(others)} and {last}" if others else last
    if old.settings.outlive_kernel and not forced:
        raise FailedPreconditionError(
            f"the service {old.name!r} runs with another {changed_names}, and may be in use by others",
            did="it was left as it is",
            hint="pass replace=True to stop it and end what reads from it, or start another service with another name",
        )
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
    try:
        service = _start(old.name, count, settings)
    except DsnbError as error:
        error.did = f"the service {old.name!r} was stopped, and {error.did or 'nothing was started'}"
        raise
    print(f"dsnb: the service {old.name!r} was restarted with another {changed_names}")
    return service

"""`Dask`: runs a worker in each worker of a Dask cluster.

Theory of operation. A Dask plugin starts and stops the workers, so that a Dask worker that joins, or that its nanny
restarts, gets one by itself. The number of workers is that of the Dask workers: `svc.scale` scales the cluster. Dask
does not know that its workers are busy with dsnb, and an adaptive cluster would retire them, so it is refused.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsnb.arguments import checked, short_repr, text
from dsnb.dispatcher.worker_pool import WorkerPool
from dsnb.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.launchers.engine import check_reachable, connect_engine, engine_text
from dsnb.launchers.launcher import LaunchedWorker, Launcher, OnExit
from dsnb.wire.addresses import host_of
from dsnb.wire.threads import OnDemandExecutor
from dsnb.worker.config import WorkerConfig

if TYPE_CHECKING:
    from dsnb.dispatcher.server import DispatchServer

_RUN_TIMEOUT_S = 10.0
_SCALE_TIMEOUT_S = 60.0
_POLL_S = 0.1


def is_dask(value: Any) -> bool:
    """Whether a value is a client or cluster of Dask; if Dask was not imported, it is not."""
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(value, (distributed.Client, distributed.deploy.Cluster))


def _client_or_cluster(name: str, value: Any) -> Any:
    if not is_dask(value):
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}", hint="pass a dask.distributed.Client, or a cluster such as LocalCluster"
        )
    return value


class Dask(Launcher):
    """Runs a worker in each worker of a Dask cluster, also in those that join or restart later.

    `svc.scale(n)` scales the cluster. It needs the cluster object, or a client that was made of it.

    Args:
        client: A `dask.distributed.Client`, or a cluster such as `LocalCluster` or `SLURMCluster`.

    Raises:
        InvalidArgumentError: the value is neither.

    Example:
        >>> Dask("tcp://127.0.0.1:8786")
        Traceback (most recent call last):
        dsnb.errors.InvalidArgumentError: `client` is 'tcp://127.0.0.1:8786'
          try:  pass a dask.distributed.Client, or a cluster such as LocalCluster
    """

    @checked(client=_client_or_cluster)
    def __init__(self, client: Any) -> None:
        distributed = connect_engine("distributed", "dask")
        own = isinstance(client, distributed.Client)
        self._cluster = client.cluster if own else client
        self._client = client if own else client.get_client()
        self._given = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dask) and other._given is self._given

    def __hash__(self) -> int:
        return id(self._given)

    @checked(host=text)
    def check(self, host: str) -> None:
        """Find out whether the cluster can run workers.

        Args:
            host: The host on which the service is going to listen.

        Raises:
            FailedPreconditionError: the client is asynchronous, the cluster is adaptive, or its workers could not reach
                the service.
        """
        if self._client.asynchronous:
            raise FailedPreconditionError(
                "the Dask client is asynchronous, and dsnb.start is not",
                did="nothing was started",
                hint="pass a client that was made without asynchronous=True",
            )
        refuse_adaptive(self._cluster)
        check_reachable("the Dask cluster", map(_host, self._client.nthreads()), host)

    @checked()
    def default_count(self) -> int:
        """The number of Dask workers at present."""
        return len(self._client.nthreads())

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        """Not used: Dask starts the workers through a plugin.

        Raises:
            FailedPreconditionError: always.
        """
        raise FailedPreconditionError("Dask starts workers through its plugin", hint="use dsnb.start(on=client)")

    def pool(self, dispatcher: DispatchServer, config: WorkerConfig) -> WorkerPool:
        """The workers of one service in this cluster; used by `dsnb.start`."""
        return DaskPool(self._client, self._cluster, dispatcher, config)


class DaskPool:
    """The workers of one service in a Dask cluster.

    Args:
        client: A client of the cluster.
        cluster: The cluster; None if the client was made of an address.
        dispatcher: The service.
        config: The settings of each worker, except its name.
    """

    launcher_name = "Dask"

    def __init__(self, client: Any, cluster: Any, dispatcher: DispatchServer, config: WorkerConfig) -> None:
        self._client = client
        self._cluster = cluster
        self._dispatcher = dispatcher
        self._config = replace(config, isolation="process")
        self._plugin = f"dsnb-{dispatcher.target}"
        self._registered = self._stopped = False
        self._count = 0
        self._executor = OnDemandExecutor("dsnb-dask")
        """For calls that wait for every Dask worker: one of them may be suspended."""

    @property
    def size(self) -> int:
        """The number of Dask workers that were asked for."""
        return self._count

    def capacity(self) -> int | None:
        """None: only the system that starts the Dask workers knows how far the cluster can grow."""
        return None

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        """Nothing: Dask has the output of its workers, see `Client.get_worker_logs`."""
        return ()

    def scale(self, count: int) -> str:
        """Scale the cluster to `count` Dask workers, and wait until they serve or a minute has passed.

        Does nothing once the pool was stopped: the cluster is the user's.
        """
        if self._stopped:
            return ""
        refuse_adaptive(self._cluster)
        here = len(self._client.nthreads())
        if count != here and self._cluster is None:
            raise FailedPreconditionError(
                f"this Dask client was made of an address, so it cannot scale its cluster from {here} to {count} "
                "workers",
                did="nothing was changed",
                hint="scale the cluster where it was started (each new Dask worker gets a worker by itself), or "
                "pass the cluster object: dsnb.start(on=cluster)",
            )
        deadline = time.monotonic() + _SCALE_TIMEOUT_S
        if count != here or (self._cluster is not None and self._count not in (0, count)):
            # Even if `count` run already: an earlier call may have requested more, which are still queued.
            self._cluster.scale(count)
            # A plugin cannot be registered while Dask workers close.
            while len(self._client.nthreads()) > count and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        self._register()
        self._count = count
        while (running := len(self._dispatcher.reported_status().workers)) < count and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if running >= count:
            return ""
        text = f"{running} of {count} workers run; the others join when the Dask cluster has started their workers"
        self._dispatcher.announce(text, level="warning")
        return text

    def _register(self) -> None:
        from dsnb.launchers.dask_plugin import DsnbPlugin

        if self._registered or self._stopped:
            return
        try:
            self._client.register_plugin(DsnbPlugin(self._plugin, self._config))
        except Exception as error:
            message = engine_text(error)
            with suppress(Exception):  # else Dask would send the plugin to new Dask workers
                self._client.unregister_worker_plugin(self._plugin)
            raise UnavailableError(
                f"the Dask workers could not start workers: {message}",
                did="nothing was started",
                hint="install dsnb on the Dask workers, as with dask.distributed.PipInstall(packages=['dsnb'])"
                if "No module named 'dsnb'" in message
                else "look at client.get_worker_logs()",
            ) from error
        self._registered = True

    def release_worker(self, uid: str, *, at_once: bool) -> None:
        """Stop the worker in one Dask worker, which stays. It first finishes its splits, unless `at_once`."""
        from dsnb.launchers.dask_plugin import stop_worker

        try:
            self._executor.submit(self._client.run, stop_worker, self._plugin, uid, not at_once).result(_RUN_TIMEOUT_S)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"not all Dask workers answered within {_RUN_TIMEOUT_S:g} seconds",
                did="the worker stops as soon as its Dask worker goes on",
                hint="look for a Dask worker that is suspended, or whose task holds the interpreter",
            ) from error

    def stop(self) -> None:
        """Stop all workers and take the plugin away from the cluster. A second call does nothing."""
        self._stopped = True
        if not self._registered:
            return
        from dsnb.launchers.dask_plugin import stop_worker

        self._registered, self._count = False, 0
        with suppress(Exception):  # the cluster or the client was closed before, which stopped the workers
            if self._client.status == "running":
                # A worker that does not stop in time does so by itself when its dispatcher is gone.
                self._executor.submit(self._client.run, stop_worker, self._plugin).result(_RUN_TIMEOUT_S)
        with suppress(Exception):
            if self._client.status == "running":
                self._executor.submit(self._client.unregister_worker_plugin, self._plugin).result(_RUN_TIMEOUT_S)
        self._executor.shutdown(wait=False)


def refuse_adaptive(cluster: Any) -> None:
    """Raise an error for an adaptive cluster.

    Raises:
        FailedPreconditionError: `cluster.adapt()` is in effect.
    """
    adaptive = getattr(cluster, "_adaptive", None)
    if adaptive is not None and getattr(adaptive, "periodic_callback", None) is not None:
        raise FailedPreconditionError(
            "the Dask cluster is adaptive: it would retire workers that serve dsnb, which look idle to it",
            did="nothing was changed",
            hint="call stop() of what cluster.adapt() returned, and use svc.autoscale(1, 32) instead",
        )


def _host(address: str) -> str:
    """The host of a Dask address such as "tcp://127.0.0.1:4711"."""
    return "127.0.0.1" if address.startswith("inproc:") else host_of(address.partition("://")[2])

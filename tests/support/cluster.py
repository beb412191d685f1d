"""A dispatcher and workers in this process, on real ports.

Workers report as often as in the original's own test harness. Its worker time-out of 200 ms is not taken over: there it
only hides a worker from the metrics, here it costs the worker its tasks, and a busy machine may be silent for longer.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import dsnb
from dsnb.monitor.snapshot import JobStatus, Snapshot
from dsnb.transfer import local
from tests.support.ports import unused_port

HEARTBEAT_MS = 100


class Cluster:
    """A service made of its parts, so that a test can stop one of them and start it again.

    Args:
        workers: How many to begin with.
        dispatcher: Settings of the dispatcher.
        worker: Settings of all workers.

    Example:
        >>> with Cluster(workers=2) as cluster:
        ...     ds = dsnb.Dataset.range(4).apply(dsnb.distribute("distributed_epoch", cluster.service))
        ...     sorted(int(x) for x in ds)
        [0, 1, 2, 3]
    """

    def __init__(
        self, workers: int = 1, *, dispatcher: dict[str, Any] | None = None, worker: dict[str, Any] | None = None
    ) -> None:
        self._dispatcher_settings = {"port": unused_port(), **(dispatcher or {})}
        self.dispatcher = dsnb.DispatchServer(dsnb.DispatcherConfig(**self._dispatcher_settings))
        self.workers: list[dsnb.WorkerServer] = []
        self._worker_settings = worker or {}
        try:
            self.service = dsnb.connect(self.dispatcher.target, token=self.dispatcher.token)
            for _ in range(workers):
                self.add_worker()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """The dispatcher's "host:port"."""
        return self.dispatcher.target.removeprefix("grpc://")

    def add_worker(self, *, remote: bool = False, **settings: Any) -> dsnb.WorkerServer:
        """Start one more worker, with settings on top of those of all; a remote one is read as from another process."""
        config = {
            "dispatcher_address": self.dispatcher.target,
            "token": self.dispatcher.token,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "port": unused_port(),
            **self._worker_settings,
            **settings,
        }
        # Never offer a remote worker to this process: a reader could find it here before the offer was withdrawn.
        with patch.object(local, "offer") if remote else nullcontext():
            worker = dsnb.WorkerServer(dsnb.WorkerConfig(**config))
        self.workers.append(worker)
        return worker

    def restart_worker(self, index: int = 0, *, same_port: bool) -> dsnb.WorkerServer:
        """Stop a worker and start another one in its place."""
        worker = self.workers.pop(index)
        port = int(worker.address.rpartition(":")[2])
        worker.stop()
        return self.add_worker(port=port if same_port else 0)

    def restart_dispatcher(self) -> dsnb.DispatchServer:
        """Stop the dispatcher and start another one in its place: its port, and its work folder if it has one."""
        port = int(self.address.rpartition(":")[2])
        self.dispatcher.stop()
        config = dsnb.DispatcherConfig(**{**self._dispatcher_settings, "port": port})
        self.dispatcher = dsnb.DispatchServer(config)
        return self.dispatcher

    def status(self) -> Snapshot:
        return self.service.status()

    def job(self, name: str) -> JobStatus:
        """One job of the status."""
        job = self.status().job(name)
        assert job is not None, f"there is no job {name!r}"
        return job

    def stop(self) -> None:
        """Stop everything, workers first; harmless twice."""
        for worker in self.workers:
            worker.stop()
        self.dispatcher.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

"""A dispatcher and thread workers of this process: what `start` starts and `scale` changes."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.server import DispatchServer
from dsnb.wire import discovery
from dsnb.worker.config import WorkerConfig
from dsnb.worker.server import WorkerServer

_DRAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What `start` was asked for, apart from name and number of workers."""

    port: int = 0
    host: str = "127.0.0.1"
    token: str | None = None
    cross_trainer_cache_size_bytes: int | None = None


class Cluster:
    """Runs until `stop`, or until the interpreter ends.

    Args:
        name: The service's name; its connection file is written.
        settings: Addresses and sizes.
        on_stop: Called once when it stops.

    Raises:
        AlreadyExistsError: another process has the name, or the port is taken.
    """

    def __init__(self, name: str, settings: ClusterSettings, on_stop: Callable[[], None]) -> None:
        self.settings = settings
        self.stopped = False
        self.workers: list[WorkerServer] = []
        self._lock = threading.RLock()
        self._on_stop = on_stop
        config = DispatcherConfig(port=settings.port, host=settings.host, token=settings.token, name=name)
        self.dispatcher = DispatchServer(config)
        try:
            self.connection = discovery.publish(name, self.dispatcher.target, self.dispatcher.token)
        except BaseException:
            self.dispatcher.stop()
            raise
        atexit.register(self.stop)

    def scale(self, count: int) -> None:
        """Start or stop workers until there are `count`; those that go are given a moment to finish their splits."""
        with self._lock:
            while len(self.workers) < count:
                self.workers.append(self._start_worker())
            leaving = self.workers[count:]
            del self.workers[count:]
        for worker in leaving:
            worker.drain()
        deadline = time.monotonic() + _DRAIN_S
        for worker in leaving:
            while not worker.idle and time.monotonic() < deadline:
                time.sleep(0.02)
            worker.stop()

    def stop(self) -> None:
        """Stop everything; the second call does nothing."""
        with self._lock:
            if self.stopped:
                return
            self.stopped = True
            workers = list(self.workers)
            self.workers.clear()
        self._on_stop()
        atexit.unregister(self.stop)
        for worker in workers:
            worker.stop()
        self.dispatcher.stop()
        discovery.retract(self.connection)

    def _start_worker(self) -> WorkerServer:
        config = WorkerConfig(
            dispatcher_address=self.dispatcher.target,
            token=self.dispatcher.token,
            host=self.settings.host,
            isolation="thread",
        )
        size = self.settings.cross_trainer_cache_size_bytes
        return WorkerServer(config if size is None else replace(config, cross_trainer_cache_size_bytes=size))

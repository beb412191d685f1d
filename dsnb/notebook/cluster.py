"""`Cluster`: a dispatcher in this process and its workers, wherever they run. `start` and `scale` control it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.server import DispatchServer
from dsnb.launchers.launcher import Launcher
from dsnb.notebook.settings import ClusterSettings
from dsnb.wire import discovery
from dsnb.wire.lifecycle import StopOnce
from dsnb.wire.stopped_services import note_stopped
from dsnb.worker.config import LAUNCHED_WORKER_GONE_MS, WorkerConfig

_WORKER_SETTINGS = ("cross_trainer_cache_size_bytes", "max_readers", "shared_memory_bytes")
_DISPATCHER_SETTINGS = ("port", "host", "tls", "token", "work_dir", "consumer_timeout_ms")


class Cluster:
    """A dispatcher and its workers. Runs until `stop` or until the interpreter exits.

    Args:
        name: The service's name; a connection file is written under it.
        settings: Addresses and sizes.
        launcher: Starts the workers.
        on_stop: Called once, when the cluster stops.

    Raises:
        AlreadyExistsError: another process uses the name, or the port is taken.
    """

    def __init__(self, name: str, settings: ClusterSettings, launcher: Launcher, on_stop: Callable[[], None]) -> None:
        self.settings = settings
        self._stop_once = StopOnce(threading.RLock())
        self._on_stop = on_stop
        self.dispatcher = DispatchServer(DispatcherConfig(name=name, **self._given(_DISPATCHER_SETTINGS)))
        try:
            self.pool = launcher.pool(self.dispatcher, self._worker_config(launcher.isolation))
            self.dispatcher.set_worker_pool(self.pool)
            self.connection = discovery.publish(
                name,
                self.dispatcher.target,
                self.dispatcher.token,
                lasting=settings.work_dir is not None,
                certificate=self.dispatcher.certificate,
                settings=_published(settings),
            )
        except BaseException:
            self.dispatcher.stop()
            raise
        atexit.register(self.stop)

    @property
    def size(self) -> int:
        """The number of workers, without those that are leaving."""
        return self.pool.size

    def scale(self, count: int) -> str:
        """Start or stop workers until there are `count`; returns what could not be placed, as a sentence."""
        return self.pool.scale(count)

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._stop_once.requested.is_set()

    def stop(self) -> None:
        """Stop the workers and the dispatcher; a second call only waits for the first."""
        self._stop_once.run(self._stop)

    def _stop(self) -> None:
        self._on_stop()
        atexit.unregister(self.stop)
        self.dispatcher.end_autoscaling()
        self.pool.stop()
        self.dispatcher.stop()
        note_stopped(self.dispatcher.target, self.connection.name)
        discovery.retract(self.connection)

    def _worker_config(self, isolation: str) -> WorkerConfig:
        return WorkerConfig(
            dispatcher_address=self.dispatcher.target,
            token=self.dispatcher.token,
            certificate=self.dispatcher.certificate or None,
            host=self.settings.host,
            port=self.settings.port if isinstance(self.settings.port, str) else 0,
            isolation=isolation,
            dispatcher_gone_ms=LAUNCHED_WORKER_GONE_MS,
            **self._given(_WORKER_SETTINGS),
        )

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        """The settings of these names that were given; the others keep the defaults of the configurations."""
        values = {name: getattr(self.settings, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def _published(settings: ClusterSettings) -> str:
    """What the connection file says of the settings; nothing unless the service outlives the kernel."""
    if not settings.outlive_kernel:
        return ""
    from dsnb.notebook.detached import settings_to_json

    return settings_to_json(settings)

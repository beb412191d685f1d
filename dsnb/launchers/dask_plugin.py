"""`DsnbPlugin`: runs a worker inside each Dask worker. Dask sends it to new and restarted workers by itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from distributed import WorkerPlugin

from dsnb.code.imports import keep_received_modules
from dsnb.worker.config import WorkerConfig
from dsnb.worker.server import WorkerServer

_LEAVE_S = 3.0
"""How long a worker delivers what is ready when its Dask worker closes. Dask ends the process after about five seconds;
what is left then goes to other workers."""


class DsnbPlugin(WorkerPlugin):  # type: ignore[misc]  # mypy does not follow distributed
    """A plugin of Dask that starts a worker with its Dask worker, and lets it leave when that closes.

    Args:
        name: The name of the plugin; a plugin with a name that exists replaces the other.
        config: The settings of each worker, except its name.
    """

    def __init__(self, name: str, config: WorkerConfig) -> None:
        self.name = name
        self.server: WorkerServer | None = None
        self._config = config

    async def setup(self, worker: Any) -> None:
        """Start the worker, on a thread: Dask takes a worker for dead whose event loop is blocked."""
        name = f"w{worker.name}" if isinstance(worker.name, int) else str(worker.name)
        await asyncio.to_thread(self._start, name)

    def _start(self, name: str) -> None:
        keep_received_modules()
        self.server = WorkerServer(replace(self._config, name=name))

    async def teardown(self, worker: Any) -> None:
        """Deliver what is ready, give the rest to other workers, and stop."""
        if self.server is not None:
            await asyncio.to_thread(self.server.leave, _LEAVE_S)


def stop_worker(plugin: str, uid: str = "", drain: bool = False, dask_worker: Any = None) -> None:
    """Stop the worker of a plugin; runs in the Dask worker.

    Args:
        plugin: The name of the plugin.
        uid: Only the worker with this uid; any if empty.
        drain: Whether it first finishes its splits, in the background.
        dask_worker: The Dask worker, as `Client.run` passes it.
    """
    from dsnb.wire.lifecycle import stop_when_idle

    known = dask_worker.plugins.get(plugin)
    server = known.server if known is not None else None
    if server is None or uid not in ("", server.uid):
        return
    if drain:
        stop_when_idle(server)
    else:
        server.stop()

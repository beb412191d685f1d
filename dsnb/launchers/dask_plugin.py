"""`DsnbPlugin`: runs a worker inside each Dask worker. Dask sends it to new and restarted workers by itself.

A process that is killed leaves its plugin with the scheduler, which goes on sending it. A Dask worker that gets such a
plugin finds that nothing listens at its dispatcher's address, says so, and takes it away from the cluster, unless the
plugin serves in another Dask worker: then only this one cannot reach the dispatcher.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from distributed import WorkerPlugin
from distributed.core import Status
from distributed.protocol.pickle import dumps

from dsnb.code.imports import keep_received_modules
from dsnb.errors import DsnbError, UnavailableError
from dsnb.wire.addresses import host_of, target_address
from dsnb.worker.config import WorkerConfig
from dsnb.worker.server import WorkerServer

_LEAVE_S = 3.0
"""How long a worker delivers what is ready when its Dask worker closes. Dask ends the process after about five seconds;
what is left then goes to other workers."""
_ANSWER_S = 5.0
"""How long a host may take to accept a connection; one on which nothing listens refuses at once."""
_POLL_S = 1.0
_MAX_POLLS = 30


class DsnbPlugin(WorkerPlugin):  # type: ignore[misc]  # mypy does not follow distributed
    """A plugin of Dask that starts a worker with its Dask worker, and lets it leave when that closes.

    Args:
        name: The name of the plugin; a plugin with a name that exists replaces the other.
        config: The settings of each worker, except its name.
    """

    def __init__(self, name: str, config: WorkerConfig) -> None:
        self.name = name
        self.server: WorkerServer | None = None
        self.state = "starting"
        """Or "serving", "failed" (it could not start), "ended"."""
        self._config = config

    async def setup(self, worker: Any) -> None:
        """Start the worker, on a thread: Dask takes a worker for dead whose event loop is blocked.

        Raises:
            UnavailableError: its dispatcher cannot be reached.
            DsnbError: it cannot start, or the dispatcher refuses it.
        """
        name = f"w{worker.name}" if isinstance(worker.name, int) else str(worker.name)
        try:
            await _check_listens(target_address(self._config.dispatcher_address))
            await _in_daemon_thread(lambda: self._start(name))
        except asyncio.CancelledError:
            self.state = "ended"
            if worker.status == Status.running:
                raise
            # Dask would log a traceback, though its worker only closes.
        except Exception as error:
            self.state = "failed"
            if isinstance(error, DsnbError):  # also where another service has got the address of one that has ended
                worker.loop.add_callback(_withdraw, worker, self.name)
            raise

    def _start(self, name: str) -> None:
        keep_received_modules()
        self.server = WorkerServer(replace(self._config, name=name))
        if self.state == "ended":  # the Dask worker closed, or the plugin was taken away meanwhile
            self.server.stop()
        else:
            self.state = "serving"

    async def teardown(self, worker: Any) -> None:
        """Deliver what is ready, give the rest to other workers, and stop."""
        self.state = "ended"
        if self.server is not None:
            await asyncio.to_thread(self.server.leave, _LEAVE_S)


async def _check_listens(address: str) -> None:
    """Find out quickly whether a dispatcher may be at an address; a worker would try for longer.

    Raises:
        UnavailableError: nothing listens there.
    """
    host, port = host_of(address), int(address.rpartition(":")[2])
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # also TimeoutError
        raise UnavailableError(
            f"no dispatcher listens at {address} ({os.strerror(error.errno).lower() if error.errno else 'no answer'})",
            did="this Dask worker goes on without a worker of dsnb",
            hint="if the process of that dispatcher has ended, there is nothing to do; else make its address reachable "
            "from here",
        ) from None
    writer.close()


async def _in_daemon_thread(call: Callable[[], None]) -> None:
    """Wait for a call on a thread that may outlive the event loop, which waits for those of `asyncio.to_thread`."""
    outcome: Future[None] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="dsnb-dask-worker", daemon=True).start()
    await asyncio.wrap_future(outcome)


async def _withdraw(worker: Any, plugin: str) -> None:
    """Take a plugin away from the cluster, unless it serves somewhere.

    If it failed in several Dask workers, only the one with the lowest address does this.
    """
    with suppress(Exception):  # the Dask worker or its scheduler closes; the next Dask worker tries again
        for _ in range(_MAX_POLLS):
            await asyncio.sleep(_POLL_S)  # others may be starting
            states = await _states(worker, plugin)
            if plugin not in worker.plugins or "serving" in states.values():
                return
            if "starting" not in states.values():
                if worker.address == min(address for address, state in states.items() if state == "failed"):
                    await worker.scheduler.unregister_worker_plugin(name=plugin)
                return


async def _states(worker: Any, plugin: str) -> dict[str, str]:
    """The state of a plugin in each Dask worker, by its address."""
    answers = await worker.scheduler.broadcast(
        msg={"op": "run", "function": dumps(plugin_state), "kwargs": dumps({"plugin": plugin})}
    )
    return {address: answer.get("result", "") for address, answer in answers.items()}


def plugin_state(plugin: str, dask_worker: Any = None) -> str:
    """The state of a plugin; runs in the Dask worker.

    Args:
        plugin: The name of the plugin.
        dask_worker: The Dask worker, as Dask passes it.

    Returns:
        One of those of `DsnbPlugin.state`; empty if there is no such plugin.
    """
    known = dask_worker.plugins.get(plugin)
    if known is None:
        return ""
    return "ended" if known.server is not None and known.server.stopped else str(known.state)


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

"""The launchers of this host: `Threads`, `Processes`, and `ThreadsFirst`, which may move from one to the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dsnb.launchers.launcher import LaunchedWorker, Launcher, OnExit
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess

if TYPE_CHECKING:
    from dsnb.dispatcher.server import DispatchServer
    from dsnb.dispatcher.worker_pool import WorkerPool
    from dsnb.launchers.switching import SwitchToProcesses
    from dsnb.worker.server import WorkerServer


class Threads(Launcher):
    """Runs workers as threads of this process. They start at once and compete for its GIL."""

    name = "the service's own process"
    isolation = "thread"
    stop_timeout_s = 2.0

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        from dsnb.worker.server import WorkerServer  # takes long to import, and process workers do not need it here

        return ThreadWorker(WorkerServer(config))


class ThreadsFirst(Threads):
    """Starts threads, and replaces them by processes as soon as the GIL is what limits a job."""

    def __init__(self) -> None:
        self._switch: SwitchToProcesses | None = None

    def pool(self, dispatcher: DispatchServer, config: WorkerConfig) -> WorkerPool:
        from dsnb.launchers.pool import LaunchedPool
        from dsnb.launchers.switching import SwitchToProcesses

        pool = LaunchedPool(self, dispatcher, config)
        self._switch = SwitchToProcesses(dispatcher, pool, replace(config, isolation="process"))
        return pool

    def close(self) -> None:
        if self._switch is not None:
            self._switch.stop()


class ThreadWorker:
    """A worker in this process: it is ready as soon as it exists, and ends only with the process."""

    placed = True
    stderr: tuple[str, ...] = ()

    def __init__(self, server: WorkerServer) -> None:
        self._server = server
        self.uid = server.uid
        self.name = server.name

    @property
    def idle(self) -> bool:
        return self._server.idle

    def wait_ready(self, timeout: float) -> None:
        pass

    def drain(self) -> None:
        self._server.drain()

    def ask_to_stop(self) -> None:
        pass  # `stop` of a thread worker returns as soon as its user code does

    def stop(self, timeout: float) -> None:
        self._server.stop(timeout)

    def exit_reason(self) -> str:
        return "it was stopped"


class Processes(Launcher):
    """Runs workers as child processes, which end with this process."""

    name = "the service's own process"

    def __init__(self) -> None:
        self._prestarted: list[WorkerProcess] = []

    def prestart(self, count: int) -> None:
        """Start processes early, so that their imports overlap with those of this process."""
        for _ in range(count):
            self._prestarted.append(WorkerProcess())
            self._prestarted[-1].prestart()

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        process = self._prestarted.pop(0) if self._prestarted else WorkerProcess()
        process.start(config, on_exit)
        return process

    def close(self) -> None:
        while self._prestarted:
            self._prestarted.pop().stop(0.0)

"""`Cluster`: a dispatcher in this process with its workers, as threads or processes. `start` and `scale` control it."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.server import DispatchServer
from dsnb.notebook.restart_budget import RestartBudget
from dsnb.notebook.settings import ClusterSettings
from dsnb.wire import discovery
from dsnb.wire.lifecycle import StopOnce
from dsnb.wire.stopped_services import note_stopped
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess
from dsnb.worker.server import WorkerServer

_DRAIN_WAIT_S = 5.0
_STOP_TIMEOUT_S = 2.0
_READY_TIMEOUT_S = 60.0
_MAX_RESTARTS = 5
_WORKER_SETTINGS = ("cross_trainer_cache_size_bytes", "max_readers", "shared_memory_bytes")
_RESTART_WINDOW_S = 60.0


class Cluster:
    """A dispatcher and its workers. Runs until `stop` or until the interpreter exits.

    Args:
        name: The service's name; a connection file is written under it.
        settings: Addresses, sizes and the kind of workers.
        on_stop: Called once, when the cluster stops.
        prestarted: Idle worker processes; they become the first workers.

    Raises:
        AlreadyExistsError: another process uses the name, or the port is taken.
    """

    def __init__(
        self,
        name: str,
        settings: ClusterSettings,
        on_stop: Callable[[], None],
        prestarted: Sequence[WorkerProcess] = (),
    ) -> None:
        self.settings = settings
        self.workers: list[WorkerServer | WorkerProcess] = []
        self._draining: list[WorkerServer | WorkerProcess] = []
        self._prestarted = list(prestarted)
        self._lock = threading.RLock()
        self._stop_once = StopOnce(self._lock)
        self._scale_lock = threading.RLock()
        self._restart_budget = RestartBudget(_MAX_RESTARTS, _RESTART_WINDOW_S)
        self._on_stop = on_stop
        config = DispatcherConfig(
            port=settings.port, host=settings.host, token=settings.token, name=name, work_dir=settings.work_dir
        )
        if settings.consumer_timeout_ms is not None:
            config = replace(config, consumer_timeout_ms=settings.consumer_timeout_ms)
        self.dispatcher = DispatchServer(config)
        self.dispatcher.set_worker_pool(self)
        try:
            self.connection = discovery.publish(
                name, self.dispatcher.target, self.dispatcher.token, lasting=settings.work_dir is not None
            )
        except BaseException:
            self.dispatcher.stop()
            raise
        atexit.register(self.stop)

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._stop_once.requested.is_set()

    def scale(self, count: int) -> None:
        """Start or stop workers until there are `count`. A leaving worker finishes its splits first."""
        with self._scale_lock:
            started = self._start_workers(count - len(self.workers))
            with self._lock:
                if self.stopped:  # stop() ran in another thread meanwhile; it did not see the workers started here
                    _stop_workers(started)
                    return
                self.workers += started
                leaving = self.workers[count:]
                del self.workers[count:]
                self._draining += leaving
            if leaving:
                drain_thread = threading.Thread(
                    target=self._drain_and_stop, args=(leaving,), name="dsnb-drain", daemon=True
                )
                drain_thread.start()
                # The calling thread may itself be the client that these workers wait for: do not wait for ever.
                drain_thread.join(_DRAIN_WAIT_S)

    def stop(self) -> None:
        """Stop the workers and the dispatcher; a second call only waits for the first."""
        self._stop_once.run(self._stop)

    def _stop(self) -> None:
        with self._lock:
            workers = [*self.workers, *self._draining]
            self.workers.clear()
        self._on_stop()
        atexit.unregister(self.stop)
        _stop_workers(workers)
        self.dispatcher.stop()
        note_stopped(self.dispatcher.target, self.connection.name)
        discovery.retract(self.connection)

    # ---- workers

    def _start_workers(self, count: int) -> list[WorkerServer | WorkerProcess]:
        """Start `count` workers (processes in parallel) and wait until all serve; on an error, stop them again."""
        started: list[WorkerServer | WorkerProcess] = []
        try:
            while len(started) < count:  # append one at a time, so that the error path stops those already started
                started.append(self._new_process() if self.settings.isolation == "process" else self._new_thread())
            for worker in started:
                if isinstance(worker, WorkerProcess):
                    worker.wait_ready(_READY_TIMEOUT_S)
        except BaseException:
            _stop_workers(started)
            raise
        return started

    def _config(self) -> WorkerConfig:
        config = WorkerConfig(
            dispatcher_address=self.dispatcher.target,
            token=self.dispatcher.token,
            host=self.settings.host,
            isolation=self.settings.isolation,
        )
        sizes = {name: getattr(self.settings, name) for name in _WORKER_SETTINGS}
        return replace(config, **{name: size for name, size in sizes.items() if size is not None})

    def _new_thread(self) -> WorkerServer:
        return WorkerServer(self._config())

    def _new_process(self, name: str | None = None) -> WorkerProcess:
        process = self._prestarted.pop(0) if self._prestarted else WorkerProcess()
        process.start(replace(self._config(), name=name), self._handle_worker_death)
        return process

    def _drain_and_stop(self, workers: Sequence[WorkerServer | WorkerProcess]) -> None:
        """Wait until the workers have delivered what they hold, however long clients take; then stop them."""
        for worker in workers:
            worker.drain()
        while not self.stopped and not all(worker.idle for worker in workers):
            time.sleep(0.02)
        self._stop_and_remove(workers)

    def _stop_and_remove(self, workers: Sequence[WorkerServer | WorkerProcess]) -> None:
        _stop_workers(workers)
        with self._lock:
            self._draining = [worker for worker in self._draining if worker not in workers]

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        """Return the last lines of standard error of the worker process with that uid; empty for a thread worker."""
        with self._lock:
            workers = list(self.workers)
        return next((w.stderr for w in workers if isinstance(w, WorkerProcess) and w.uid == uid), ())

    def release_worker(self, uid: str, *, at_once: bool) -> None:
        """Remove a worker. It first finishes its splits, unless `at_once`. Unknown uids are ignored."""
        with self._lock:
            leaving = [worker for worker in self.workers if worker.uid == uid]
            self.workers = [worker for worker in self.workers if worker.uid != uid]
            self._draining += leaving
        if leaving:
            stop = self._stop_and_remove if at_once else self._drain_and_stop
            threading.Thread(target=stop, args=(leaving,), name="dsnb-drain", daemon=True).start()

    # ---- deaths

    def _handle_worker_death(self, process: WorkerProcess) -> None:
        """Report a dead worker process to the dispatcher, and start a replacement if the restart budget allows it."""
        if self.stopped:
            return
        self.dispatcher.worker_died(process.uid, process.exit_reason())
        # Under the lock, so that stop() either finds the replacement in `workers` or prevents it.
        with self._lock:
            if self.stopped or process not in self.workers:
                return
            index = self.workers.index(process)
            replaced = self._restart_budget.try_spend(time.monotonic())
            # The replacement keeps the dead worker's name: clients treat it as that worker, restarted.
            # A process that died before it reported its name has none.
            self.workers[index : index + 1] = [self._new_process(process.name or None)] if replaced else []
        self._announce_replacement(process.name or "that had just begun", replaced=replaced)

    def _announce_replacement(self, name: str, *, replaced: bool) -> None:
        limit, seconds = self._restart_budget.limit, self._restart_budget.window_s
        if replaced:
            self.dispatcher.announce(f"worker {name} is being replaced ({self._restart_budget.recent} of {limit})")
        else:
            self.dispatcher.announce(
                f"worker {name} is not replaced: {limit} workers died within {seconds:g} s, so the cause is probably "
                f"in the pipeline or the machine; svc.scale(n) starts new workers",
                level="warning",
            )


def _stop_workers(workers: Sequence[WorkerServer | WorkerProcess]) -> None:
    """Stop workers. Thread workers share one deadline for user code that does not return."""
    for worker in workers:
        if isinstance(worker, WorkerProcess):
            worker.ask_to_stop()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for worker in workers:
        if isinstance(worker, WorkerProcess):
            worker.stop()
        else:
            worker.stop(max(0.0, deadline - time.monotonic()))

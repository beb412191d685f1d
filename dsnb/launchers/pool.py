"""`LaunchedPool`: the workers that a launcher starts one by one, and the replacement of those that die."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakSet

from dsnb.dispatcher.server import DispatchServer
from dsnb.errors import DsnbError
from dsnb.launchers.launcher import LaunchedWorker, Launcher
from dsnb.launchers.restart_budget import RestartBudget
from dsnb.worker.config import WorkerConfig

_DRAIN_WAIT_S = 5.0
_FINISH_POLL_S = 0.1
_READY_TIMEOUT_S = 60.0
_MAX_RESTARTS = 5
_RESTART_WINDOW_S = 60.0


class LaunchedPool:
    """The workers of one service.

    Args:
        launcher: Starts them.
        dispatcher: Gets to know when a worker dies, and the events.
        config: The settings of each worker, except its name.
    """

    def __init__(self, launcher: Launcher, dispatcher: DispatchServer, config: WorkerConfig) -> None:
        self._launcher = launcher
        self._dispatcher = dispatcher
        self._config = config
        self._workers: list[LaunchedWorker] = []
        self._leaving: list[LaunchedWorker] = []
        self._died_early: WeakSet[LaunchedWorker] = WeakSet()
        """Workers that died before they were put into the pool. Weak: those whose start failed are never put there."""
        self._lock = threading.RLock()
        self._scale_lock = threading.RLock()
        self._stopped = threading.Event()
        self._restart_budget = RestartBudget(_MAX_RESTARTS, _RESTART_WINDOW_S)

    @property
    def launcher_name(self) -> str:
        """What starts the workers, in words that follow "started by"."""
        return self._launcher.name

    @property
    def size(self) -> int:
        """The number of workers, without those that are leaving."""
        return len(self._workers)

    def capacity(self) -> int | None:
        """How many more workers could be placed now; None if the launcher does not know."""
        return self._launcher.capacity()

    def scale(self, count: int) -> str:
        """Start or stop workers until there are `count`. A leaving worker finishes its splits first.

        Does nothing once the pool was stopped.

        Returns:
            How many of the new workers wait for resources, as a sentence; empty if all run.
        """
        with self._scale_lock:
            if self._stopped.is_set():
                return ""
            started = self._start_workers(count - self.size, self._launcher, self._config)
            with self._lock:
                stopped = self._stopped.is_set()
                if not stopped:
                    self._workers += started
                died_early = [worker for worker in started if worker in self._died_early]
                leaving = self._workers[count:]
                del self._workers[count:]
                self._leaving += leaving
            if stopped:  # stop() ran in another thread meanwhile; it did not see `started`
                self._stop_workers(started)
                return ""
            for worker in died_early:
                self._replace(worker)
            if leaving:
                drain_thread = threading.Thread(
                    target=self._drain_and_stop, args=(leaving,), name="dsnb-drain", daemon=True
                )
                drain_thread.start()
                # The calling thread may itself be the client that these workers wait for: do not wait for ever.
                drain_thread.join(_DRAIN_WAIT_S)
            return self._report_unplaced(started)

    def switch(self, launcher: Launcher, config: WorkerConfig) -> int:
        """Replace all workers by as many that another launcher starts with another configuration.

        The old ones finish the passes that they have begun, however long that takes; the new ones get everything else.
        On an error the old ones stay. Does nothing once the pool was stopped.

        Returns:
            How many workers were replaced.
        """
        with self._scale_lock:
            if self._stopped.is_set():
                return 0
            self._dispatcher.hold_new_workers()
            old: list[LaunchedWorker] = []
            try:
                started = self._start_workers(self.size, launcher, config)
                with self._lock:
                    stopped = self._stopped.is_set()
                    if not stopped:
                        old, self._workers = self._workers, started
                        self._leaving += old
                        self._launcher, self._config = launcher, config
                    died_early = [worker for worker in started if worker in self._died_early]
            finally:  # also after an error: workers that join for other reasons must not be held for ever
                self._dispatcher.replace_workers([worker.uid for worker in old])
            if stopped:  # stop() ran in another thread meanwhile; it did not see `started`
                self._stop_workers(started)
                return 0
            for worker in died_early:
                self._replace(worker)
        threading.Thread(target=self._finish_and_stop, args=(old,), name="dsnb-finish", daemon=True).start()
        return len(old)

    def stop(self) -> None:
        """Stop all workers, also those that are leaving. A second call does nothing."""
        with self._lock:
            self._stopped.set()
            workers = [*self._workers, *self._leaving]
            self._workers.clear()
        self._stop_workers(workers)
        self._launcher.close()

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        """The last lines of standard error of the worker with that uid; empty if they are not collected."""
        with self._lock:
            workers = list(self._workers)
        return next((worker.stderr for worker in workers if worker.uid == uid), ())

    def release_worker(self, uid: str, *, at_once: bool) -> None:
        """Remove a worker. It first finishes its splits, unless `at_once`. Unknown uids are ignored."""
        with self._lock:
            leaving = [worker for worker in self._workers if worker.uid == uid]
            self._workers = [worker for worker in self._workers if worker.uid != uid]
            self._leaving += leaving
        if leaving:
            stop = self._stop_and_remove if at_once else self._drain_and_stop
            threading.Thread(target=stop, args=(leaving,), name="dsnb-drain", daemon=True).start()

    # ---- start and stop

    def _start_workers(self, count: int, launcher: Launcher, config: WorkerConfig) -> list[LaunchedWorker]:
        """Start `count` workers and wait until all serve or wait for resources; on an error, stop them again."""
        started: list[LaunchedWorker] = []
        try:
            while len(started) < count:  # append one at a time, so that the error path stops those already started
                started.append(launcher.launch(config, self._handle_death))
            for worker in started:
                worker.wait_ready(_READY_TIMEOUT_S)
        except BaseException:
            self._stop_workers(started)
            raise
        return started

    def _report_unplaced(self, started: Sequence[LaunchedWorker]) -> str:
        waiting = [worker for worker in started if not worker.placed]
        if not waiting:
            return ""
        text = self._launcher.unplaced_text(waiting, len(started))
        self._dispatcher.announce(text, level="warning")
        return text

    def _drain_and_stop(self, workers: Sequence[LaunchedWorker]) -> None:
        """Wait until the workers have delivered what they hold, however long clients take; then stop them."""
        for worker in workers:
            worker.drain()
        while not self._stopped.is_set() and not all(worker.idle for worker in workers):
            time.sleep(0.02)
        self._stop_and_remove(workers)

    def _finish_and_stop(self, workers: Sequence[LaunchedWorker]) -> None:
        """Stop replaced workers, each as soon as the dispatcher and the worker itself know no task of it any more."""
        left = list(workers)
        while left and not self._stopped.wait(_FINISH_POLL_S):
            done = [worker for worker in left if not self._dispatcher.has_tasks(worker.uid) and worker.idle]
            if done:
                self._stop_and_remove(done)
                left = [worker for worker in left if worker not in done]

    def _stop_and_remove(self, workers: Sequence[LaunchedWorker]) -> None:
        self._stop_workers(workers)
        with self._lock:
            self._leaving = [worker for worker in self._leaving if worker not in workers]

    def _stop_workers(self, workers: Sequence[LaunchedWorker]) -> None:
        """Stop workers. They share one deadline, for user code that does not return."""
        for worker in workers:
            worker.ask_to_stop()
        deadline = time.monotonic() + self._launcher.stop_timeout_s
        for worker in workers:
            worker.stop(max(0.0, deadline - time.monotonic()))

    # ---- deaths

    def _handle_death(self, worker: LaunchedWorker) -> None:
        """Report a dead worker to the dispatcher, and start a replacement if the restart budget allows it."""
        if self._stopped.is_set():
            return
        if worker.uid:
            self._dispatcher.worker_died(worker.uid, worker.exit_reason())
        self._replace(worker)

    def _replace(self, worker: LaunchedWorker) -> None:
        """Start a replacement of a dead worker if the restart budget allows it; without one, the worker is removed."""
        with self._lock:
            if worker not in self._workers and worker not in self._leaving:
                self._died_early.add(worker)
            if self._stopped.is_set() or worker not in self._workers:
                return
            allowed = self._restart_budget.try_spend(time.monotonic())
            if not allowed:
                self._workers.remove(worker)
        if not worker.uid:
            self._dispatcher.announce(f"a worker could not be started: {worker.exit_reason()}", level="warning")
        if allowed:
            self._start_replacement(worker)
        else:
            self._announce_replacement(worker, replaced=False)

    def _start_replacement(self, worker: LaunchedWorker) -> None:
        """Start a replacement of a dead worker, which keeps its place in the pool until then.

        The lock is free during the launch, which may be slow, and during announcements: both may wait for the
        dispatcher, and a status waits for this lock while it has the dispatcher's.
        """
        try:
            # The replacement keeps the dead worker's name: clients treat it as that worker, restarted.
            # A worker that died before it reported its name has none.
            replacement = self._launcher.launch(replace(self._config, name=worker.name or None), self._handle_death)
        except Exception as error:  # noqa: BLE001 - engines raise many classes; a dead worker must not stay in the pool
            self._put_in_place(worker, [])
            what = error.what if isinstance(error, DsnbError) else f"{type(error).__name__}: {error}"
            self._dispatcher.announce(f"worker {_name(worker)} is not replaced: {what}", level="warning")
            return
        if not self._put_in_place(worker, [replacement]):  # meanwhile it was taken away, or the pool was stopped
            self._stop_workers([replacement])
            return
        self._announce_replacement(worker, replaced=True)
        with self._lock:
            died_early = replacement in self._died_early
        if died_early:
            self._replace(replacement)

    def _put_in_place(self, worker: LaunchedWorker, replacement: list[LaunchedWorker]) -> bool:
        """Put a replacement, or nothing, in the place of a dead worker; whether the pool still had that worker."""
        with self._lock:
            if worker not in self._workers:
                return False
            index = self._workers.index(worker)
            self._workers[index : index + 1] = replacement
            return True

    def _announce_replacement(self, worker: LaunchedWorker, *, replaced: bool) -> None:
        name = _name(worker)
        limit, seconds = self._restart_budget.limit, self._restart_budget.window_s
        if replaced:
            self._dispatcher.announce(f"worker {name} is being replaced ({self._restart_budget.recent} of {limit})")
        else:
            self._dispatcher.announce(
                f"worker {name} is not replaced: {limit} workers died within {seconds:g} s, so the cause is probably "
                f"in the pipeline or the machine; svc.scale(n) starts new workers",
                level="warning",
            )


def _name(worker: LaunchedWorker) -> str:
    return worker.name or "that had just begun"

"""A dispatcher of this process and its workers, threads or processes: what `start` starts and `scale` changes."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.server import DispatchServer
from dsnb.notebook.replacing import Replacements
from dsnb.notebook.settings import ClusterSettings
from dsnb.wire import discovery
from dsnb.wire.ending import Ending
from dsnb.wire.stopped import note_stopped
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess
from dsnb.worker.server import WorkerServer

_DRAIN_S = 5.0
_STOP_S = 2.0
_READY_S = 60.0
_REPLACEMENTS = 5
_SIZES = ("cross_trainer_cache_size_bytes", "max_readers", "shared_memory_bytes")
_REPLACED_WITHIN_S = 60.0


class Cluster:
    """Runs until `stop`, or until the interpreter ends.

    Args:
        name: The service's name; its connection file is written.
        settings: Addresses and sizes.
        on_stop: Called once when it stops.
        begun: Processes that wait to become its first workers.

    Raises:
        AlreadyExistsError: another process has the name, or the port is taken.
    """

    def __init__(
        self,
        name: str,
        settings: ClusterSettings,
        on_stop: Callable[[], None],
        begun: Sequence[WorkerProcess] = (),
    ) -> None:
        self.settings = settings
        self.workers: list[WorkerServer | WorkerProcess] = []
        self._leaving: list[WorkerServer | WorkerProcess] = []
        self._begun = list(begun)
        self._lock = threading.RLock()
        self._ending = Ending(self._lock)
        self._scaling = threading.RLock()
        self._replacements = Replacements(_REPLACEMENTS, _REPLACED_WITHIN_S)
        self._on_stop = on_stop
        config = DispatcherConfig(
            port=settings.port, host=settings.host, token=settings.token, name=name, work_dir=settings.work_dir
        )
        if settings.consumer_timeout_ms is not None:
            config = replace(config, consumer_timeout_ms=settings.consumer_timeout_ms)
        self.dispatcher = DispatchServer(config)
        self.dispatcher.owned_by(self)
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
        """Whether it was stopped."""
        return self._ending.begun.is_set()

    def scale(self, count: int) -> None:
        """Start or stop workers until there are `count`; those that go finish what they have."""
        with self._scaling:
            started = self._start_workers(count - len(self.workers))
            with self._lock:
                if self.stopped:  # by another thread, which does not know these
                    _stop(started)
                    return
                self.workers += started
                leaving = self.workers[count:]
                del self.workers[count:]
                self._leaving += leaving
            if leaving:
                farewell = threading.Thread(target=self._see_off, args=(leaving,), name="dsnb-drain", daemon=True)
                farewell.start()
                farewell.join(_DRAIN_S)  # their readers may be in this very thread: it must not wait for ever

    def stop(self) -> None:
        """Stop everything; a second call only waits for the first."""
        self._ending.run(self._stop)

    def _stop(self) -> None:
        with self._lock:
            workers = [*self.workers, *self._leaving]
            self.workers.clear()
        self._on_stop()
        atexit.unregister(self.stop)
        _stop(workers)
        self.dispatcher.stop()
        note_stopped(self.dispatcher.target, self.connection.name)
        discovery.retract(self.connection)

    # ---- workers

    def _start_workers(self, count: int) -> list[WorkerServer | WorkerProcess]:
        """Start so many, all at once where they are processes, and wait until they serve."""
        started: list[WorkerServer | WorkerProcess] = []
        try:
            while len(started) < count:  # one by one, so that what goes wrong finds those before it
                started.append(self._new_process() if self.settings.isolation == "process" else self._new_thread())
            for worker in started:
                if isinstance(worker, WorkerProcess):
                    worker.wait_ready(_READY_S)
        except BaseException:
            _stop(started)
            raise
        return started

    def _config(self) -> WorkerConfig:
        config = WorkerConfig(
            dispatcher_address=self.dispatcher.target,
            token=self.dispatcher.token,
            host=self.settings.host,
            isolation=self.settings.isolation,
        )
        sizes = {name: getattr(self.settings, name) for name in _SIZES}
        return replace(config, **{name: size for name, size in sizes.items() if size is not None})

    def _new_thread(self) -> WorkerServer:
        return WorkerServer(self._config())

    def _new_process(self, name: str | None = None) -> WorkerProcess:
        process = self._begun.pop(0) if self._begun else WorkerProcess()
        process.start(replace(self._config(), name=name), self._died)
        return process

    def _see_off(self, workers: Sequence[WorkerServer | WorkerProcess]) -> None:
        """Let workers finish what they have, however long their readers take, and stop them."""
        for worker in workers:
            worker.drain()
        while not self.stopped and not all(worker.idle for worker in workers):
            time.sleep(0.02)
        self._send_off(workers)

    def _send_off(self, workers: Sequence[WorkerServer | WorkerProcess]) -> None:
        _stop(workers)
        with self._lock:
            self._leaving = [worker for worker in self._leaving if worker not in workers]

    def stderr_of(self, uid: str) -> tuple[str, ...]:
        """The last lines that a worker of that uid wrote to its standard error; none of one that is no process."""
        with self._lock:
            workers = list(self.workers)
        return next((w.stderr for w in workers if isinstance(w, WorkerProcess) and w.uid == uid), ())

    def let_go(self, uid: str, *, at_once: bool) -> None:
        """Do without a worker, which is to finish what it has unless it goes `at_once`."""
        with self._lock:
            leaving = [worker for worker in self.workers if worker.uid == uid]
            self.workers = [worker for worker in self.workers if worker.uid != uid]
            self._leaving += leaving
        if leaving:
            act = self._send_off if at_once else self._see_off
            threading.Thread(target=act, args=(leaving,), name="dsnb-drain", daemon=True).start()

    # ---- deaths

    def _died(self, process: WorkerProcess) -> None:
        """Tell the readers of a worker that died, and put another in its place, unless too many died of late."""
        if self.stopped:
            return
        self.dispatcher.worker_died(process.uid, process.obituary())
        with self._lock:
            if self.stopped or process not in self.workers:
                return
            place = self.workers.index(process)
            replaced = self._replacements.allow(time.monotonic())
            # The next one has the name of the one that died: to its readers it is that worker, come back.
            # A process that died before it told its name has none.
            self.workers[place : place + 1] = [self._new_process(process.name or None)] if replaced else []
        self._tell_of_replacement(process.name or "that had just begun", replaced=replaced)

    def _tell_of_replacement(self, name: str, *, replaced: bool) -> None:
        limit, seconds = self._replacements.limit, self._replacements.within_s
        if replaced:
            self.dispatcher.announce(f"worker {name} is being replaced ({self._replacements.recent} of {limit})")
        else:
            self.dispatcher.announce(
                f"worker {name} is not replaced: {limit} workers died within {seconds:g} s, so the cause lies in the "
                f"pipeline or the machine; svc.scale(n) starts new ones",
                level="warning",
            )


def _stop(workers: Sequence[WorkerServer | WorkerProcess]) -> None:
    """Stop workers; all together wait no longer than one for user code that does not return."""
    for worker in workers:
        if isinstance(worker, WorkerProcess):
            worker.ask_to_stop()
    deadline = time.monotonic() + _STOP_S
    for worker in workers:
        if isinstance(worker, WorkerProcess):
            worker.stop()
        else:
            worker.stop(max(0.0, deadline - time.monotonic()))

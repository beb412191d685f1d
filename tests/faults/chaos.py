"""Scenes of faults: a dispatcher, worker processes and reader processes, of which a test kills and suspends some.

What readers got is read from their logs, element by element. What is missing or came twice is compared with what was
reported.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dsnb
from dsnb.storage.failpoints import FAULT_VARIABLE
from tests.faults.reader_process import RECORD
from tests.support.cluster import Cluster
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for
from tests.support.workers import address_of, started_worker

TIMES: dict[str, Any] = {
    "reconnect_ms": 300,
    "worker_timeout_ms": 2_000,
    "client_timeout_ms": 2_000,
    "job_gc_check_interval_ms": 50,
}
END_S = 60.0


@dataclass
class Reader:
    """A reader's process, and what it got."""

    process: PythonProcess
    log: Path
    trainer: str
    killed: float = 0.0
    """When; 0 if it lives."""
    suspensions: list[float] = field(default_factory=list)
    """When it was suspended, each time."""
    transfer: str = ""
    in_hand: int = 1
    """Elements that one `next` gives."""
    pauses: bool = False
    """Whether its loop is slow enough for each element to be counted as consumed at once."""

    @property
    def suspended(self) -> float:
        """When it was suspended last, or the first time since its last element; 0 if it never was.

        A process that is suspended twice in a row may have had no time in between to report what it consumed.
        """
        last = self.logged[-1][1] if self.logged else 0.0
        return min((at for at in self.suspensions if at >= last), default=max(self.suspensions, default=0.0))

    @property
    def got(self) -> list[int]:
        """The elements that its loop got, in order."""
        return [number for number, _time in self.logged]

    @property
    def logged(self) -> list[tuple[int, float]]:
        """Its elements, with when it got them."""
        whole = self.log.read_bytes()
        return list(RECORD.iter_unpack(whole[: len(whole) // RECORD.size * RECORD.size]))

    def kill(self) -> None:
        self.killed = time.monotonic()
        self.process.kill()

    def suspend(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> dict[str, Any]:
        """What it printed at its end."""
        line = self.process.wait_for_line("END", timeout=END_S)
        return dict(json.loads(line.removeprefix("END ")))


class Scene:
    """A service with worker processes, and readers of one job.

    Args:
        folder: For logs.
        workers: How many processes.
        cluster: A dispatcher without workers; None for one of this process.
        dispatcher: Settings of the latter.
    """

    def __init__(self, folder: Path, workers: int = 2, cluster: Cluster | None = None, **dispatcher: Any) -> None:
        self.folder = folder
        self.gate = str(folder / "gate")
        """A file for which readers wait that are to begin at once."""
        self.leaving: list[PythonProcess] = []
        """Workers that were told to leave."""
        self._stack = ExitStack()
        self.readers: list[Reader] = []
        self._numbers = itertools.count()
        self.workers: list[PythonProcess] = []
        self._suspended: list[threading.Timer] = []
        try:
            self.cluster = self._stack.enter_context(cluster or Cluster(workers=0, dispatcher={**TIMES, **dispatcher}))
            for _ in range(workers):
                self.add_worker(ready=False)
            for worker in self.workers:
                worker.wait_for_line("{")
            names = [worker.address for worker in self.cluster.status().workers]  # w0, w1, ...
            self.workers.sort(key=lambda worker: names.index(address_of(worker)))
        except BaseException:
            self._stack.close()
            raise

    @property
    def living(self) -> list[PythonProcess]:
        """The workers whose processes have not ended."""
        return [worker for worker in self.workers if worker.popen.poll() is None]

    def target(self) -> str:
        """Where the next process is to look for the dispatcher."""
        return self.cluster.dispatcher.target

    def add_worker(self, port: int = 0, *more: str, fault: str = "", ready: bool = True) -> PythonProcess:
        """Start one more worker, and wait until it is ready, or don't."""
        token = self.cluster.dispatcher.token
        worker = self._stack.enter_context(started_worker(self.target(), token, port, *more, fault=fault))
        self.workers.append(worker)
        if ready:
            worker.wait_for_line("{")
        return worker

    def register(self, dataset: dsnb.Dataset) -> None:
        self.dataset_id = dsnb.register_dataset(self.cluster.service, dataset)

    def read(
        self,
        *,
        mode: str = "distributed_epoch",
        trainer: str = "",
        pause_s: float = 0.0,
        fault: str = "",
        **more: Any,
    ) -> Reader:
        """Start a reader of the registered dataset, and wait until it begins, or would but for a `gate`."""
        log = self.folder / f"reader{next(self._numbers)}"
        settings = {
            "target": self.target(),
            "dataset_id": self.dataset_id,
            "mode": mode,
            "job_name": "train",
            "trainer": trainer,
            "pause_s": pause_s,
            "log": str(log),
            **more,
        }
        arguments = ["-m", "tests.faults.reader_process", json.dumps(settings)]
        process = PythonProcess(arguments, env={"DSNB_TOKEN": self.cluster.dispatcher.token, FAULT_VARIABLE: fault})
        log.touch()
        reader = Reader(self._stack.enter_context(process), log, trainer)
        reader.transfer, reader.in_hand = more.get("transfer", ""), more.get("batch") or 1
        reader.pauses = pause_s > 0
        self.readers.append(reader)
        process.wait_for_line("READY", timeout=END_S)
        return reader

    def open_gate(self) -> None:
        """Let readers begin that were started with `gate=scene.gate`."""
        Path(self.gate).touch()

    def wait_for(self, reader: Reader, count: int) -> None:
        """Wait until a reader has got so many elements."""
        wait_for(lambda: len(reader.got) >= count, what=f"{count} elements", timeout=END_S)

    @property
    def events(self) -> list[str]:
        return [event.text for event in self.cluster.status().events]

    def suspend(self, pid: int, seconds: float) -> None:
        """Suspend a process for a while."""
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(seconds, _go_on, (pid,))
        timer.start()
        self._suspended.append(timer)

    def go_on(self) -> None:
        """Wait until all that is suspended for a while goes on."""
        while self._suspended:
            self._suspended.pop().join()

    def ended(self) -> list[dict[str, Any]]:
        """What the readers that live printed at their end; none of them may have met an error."""
        ends = [reader.end() for reader in self.readers if not reader.killed]
        met = [error for end in ends for error in end["errors"]]
        assert not met, met
        return ends

    def end_readers(self, *, killed: bool = True) -> None:
        """Let all readers go on that are suspended, and kill them if that is wanted."""
        self.go_on()
        for reader in self.readers:
            _go_on(reader.process.pid)
            if killed:
                reader.kill()

    def counts(self, trainer: str = "") -> Counter[int]:
        """How often each element came to the readers of a trainer."""
        return Counter(number for reader in self.readers if reader.trainer == trainer for number in reader.got)

    def check_each_once(self, count: int, trainer: str = "", *, in_hand: int = 0, again: int = 0) -> None:
        """Check that each element came once.

        Args:
            count: How many there are.
            trainer: To whose readers.
            in_hand: Elements that killed readers may have had in hand and not logged yet.
            again: Elements that may have come twice.
        """
        seen = self.counts(trainer)
        missing = sorted(set(range(count)) - set(seen))
        twice = sorted(number for number, times in seen.items() if times > 1)
        story = f"missing {len(missing)}: {missing[:20]}; twice {len(twice)}: {twice[:20]}\n" + "\n".join(self.events)
        assert len(missing) <= in_hand, story
        assert len(twice) <= again, story
        assert not set(seen) - set(range(count)), "elements that there are not"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end_readers(killed=False)
        if error is not None:
            with suppress(Exception):
                error.add_note("\n".join(self.events))
        self._stack.__exit__(kind, error, at)


class Watch:
    """Waits for a process to meet its failpoint, in a thread, and lets it go on if that suspended it.

    Args:
        process: The process.
        struck: Called when it was killed or suspended.
        seconds: How long it stays suspended.
    """

    def __init__(self, process: PythonProcess, struck: Callable[..., None], seconds: float) -> None:
        self._process, self._struck, self._seconds = process, struck, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            code = self._process.popen.poll()
            if code is not None:
                if code == -signal.SIGKILL:
                    self._struck(killed=True)
                return
            if is_suspended(self._process.pid):
                self._struck(killed=False)
                self._stopped.wait(self._seconds)
                _go_on(self._process.pid)

    def join(self) -> None:
        """Wait until the process has ended."""
        self._thread.join()

    def stop(self) -> None:
        """Watch no longer, and kill the process: nobody would let it go on."""
        self._stopped.set()
        self._thread.join()
        self._process.popen.kill()


def is_suspended(pid: int) -> bool:
    """Whether a process stands still (SIGSTOP)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def paced(seconds: float) -> Any:
    """A function that takes a while for each number."""

    def wait(number: int) -> int:
        time.sleep(seconds)
        return number

    return wait

"""Kills or suspends a process of a service at a failpoint, lets the pass go on, and looks at its elements.

Run as a program, in an interpreter of its own: it forks a dispatcher, two workers and a client for each case, which is
quicker than starting them, and so must itself have neither threads nor connections.

    python -m tests.faults.service_at_points client|dispatcher|worker kill|suspend|fail
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

import dsnb
from dsnb.dispatcher.handlers.reassignment import MAX_WORKER_DEATHS
from dsnb.errors import DeadlineExceededError, DsnbError, ResourceExhaustedError, UnavailableError
from dsnb.monitor import controls
from dsnb.storage.failpoints import FAILPOINTS, When, failpoint_hook
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import Empty, WorkerOrder
from dsnb.wire.methods import PING
from tests.faults.chaos import paced
from tests.faults.points import ROLES, NotedFault
from tests.support.ports import unused_port

COUNT = 200
LEASE_MS = {"short": 800, "long": 20_000}
TOKEN = "for this test only"
AGAIN = 40
"""Elements that a client has at most, and that its successor gets when it was killed."""
CASE_S = 120.0
IMPORTED = (dsnb.DispatchServer, dsnb.WorkerServer, dsnb.connect, dsnb.register_dataset, dsnb.from_dataset_id)
"""Before processes are forked, once for all of them."""
JOB = "numbers"
"""The name of the dataset and of its job."""
ROW = 4096


class Service:
    """The processes of one case.

    Args:
        folder: For what they leave.
        victim: The role of the process to which something is done.
        faults: What, as `DSNB_FAULT` says it; several only if they suspend.
    """

    def __init__(self, folder: Path, victim: str, faults: Sequence[str]) -> None:
        self.folder, self.victim, self.faults = folder, victim, faults
        self.port = unused_port()
        self.target = f"grpc://127.0.0.1:{self.port}"
        texts = " ".join(faults)
        self.late = "GetTask" in texts
        """Whether workers get the order to begin a task late, and so ask for it when a reader comes."""
        self.lagging = "spill write" in texts
        self.workers = 1 if victim == "worker" and "answer " in texts else 2
        """One, where a client asks a certain worker."""
        self.killed = ":kill" in texts
        brief = victim == "client" and not self.killed
        self.lease_ms = LEASE_MS["long" if brief else "short"]
        self.client_lease_ms = LEASE_MS["short" if victim == "client" and self.killed else "long"]
        """A client that is only slow, on a busy machine, must not be lost beside the victim."""
        self.suspended_s = 0.1 if brief else 1.0
        """For others than clients, past the lease."""
        self.roles: dict[int, str] = {}
        self.deaths = 0

    def play(self) -> None:
        """Until a client has read all that there is."""
        acts = {"dispatcher": self.dispatch, "worker": self.work, "client": self.read}
        for role in ("dispatcher", *["worker"] * self.workers, "client"):
            doomed = role == self.victim and role not in self.roles.values()
            self.roles[self._fork(acts[role], self.faults if doomed else ())] = role
        deadline, resume = time.monotonic() + CASE_S + 2 * len(self.faults), dict[int, float]()
        while "client" in self.roles.values():
            for pid in [pid for pid, at in resume.items() if at < time.monotonic()]:
                del resume[pid]
                os.kill(pid, signal.SIGCONT)
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                assert time.monotonic() < deadline, "the pass does not end"
                time.sleep(0.005)
            elif os.WIFSTOPPED(status):
                resume[pid] = time.monotonic() + self.suspended_s
            else:
                self._ended(self.roles.pop(pid), os.waitstatus_to_exitcode(status), acts)
        missed = {fault.partition(":")[0] for fault in self.faults} - set(lines_of(self.folder / "reached"))
        assert not missed, f"not reached: {sorted(missed)}"

    def _ended(self, role: str, code: int, acts: dict[str, Callable[[], None]]) -> None:
        if code == -signal.SIGKILL and role == self.victim and not self.deaths:
            self.deaths += 1
            self.roles[self._fork(acts[role], ())] = role
        else:
            assert (role, code) == ("client", 0), f"the {role} ended with {code}"

    def close(self) -> None:
        for pid in self.roles:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    # ---- what the processes do

    def dispatch(self) -> None:
        config = dsnb.DispatcherConfig(
            port=self.port, work_dir=self.folder / "work", token=TOKEN, reconnect_ms=300,
            worker_timeout_ms=self.lease_ms, client_timeout_ms=self.client_lease_ms, job_gc_check_interval_ms=50,
        )  # fmt: skip
        server = dsnb.DispatchServer(config)
        server.join()

    def work(self) -> None:
        more: dict[str, Any] = {}
        if self.lagging:
            more = {"spill_dir": str(self.folder), "cross_trainer_cache_size_bytes": 1 << 20}
        config = dsnb.WorkerConfig(self.target, token=TOKEN, host="127.0.0.1", heartbeat_interval_ms=100, **more)
        really = vars(dsnb.WorkerServer)["_handle_order"]
        delayed, in_turn = deque[WorkerOrder](), threading.Lock()

        def handle_next(worker: dsnb.WorkerServer) -> None:
            with in_turn:  # the timers run in threads of their own, and a resume must not overtake its pause
                really(worker, delayed.popleft())

        def delay_tasks(worker: dsnb.WorkerServer, order: WorkerOrder) -> None:
            if self.late and order.start:
                delayed.append(WorkerOrder(start=order.start))  # it has what other clients left, too
                threading.Timer(0.3, handle_next, (worker,)).start()
                order = msgspec.structs.replace(order, start=())
            really(worker, order)

        with patch.object(dsnb.WorkerServer, "_handle_order", delay_tasks):
            answered(lambda: dsnb.WorkerServer(config)).join()

    def read(self) -> None:
        """Do all that a client can do, and read meanwhile."""
        service = answered(lambda: dsnb.connect(self.target, token=TOKEN))
        for name in (JOB, "others", "forgotten"):
            made = numbers(rows=self.lagging) if name == JOB else dsnb.Dataset.range(3)
            answered(lambda made=made, name=name: dsnb.register_dataset(service, made, dataset_id=name))
        answered(lambda: service.resume(JOB))  # a client may have died while the job was paused
        answered(lambda: service.wait_until(lambda status: not any(job.clients for job in status.jobs)))
        if self.lagging:
            self.read_with_a_lag(service)
        elif len(set(self.got)) < COUNT:  # else the pass is over, and this would be the next one
            self.read_alone(service)

    def read_alone(self, service: Any) -> None:
        elements = reader(service, JOB)
        for seen, element in enumerate(elements):
            self.note(element)
            if seen == COUNT // 10:
                self.do_errands(service, elements)

    def read_with_a_lag(self, service: Any) -> None:
        """Two trainers of a small cache, of which one reads when the other has read all: what is evicted is spilled."""
        slow, fast = (
            reader(service, JOB, cross_trainer_cache=dsnb.CrossTrainerCache(name, on_lag="spill"))
            for name in ("slow", "fast")
        )
        self.note(next(slow)[0] // ROW)
        for element in fast:
            self.note(COUNT + element[0] // ROW)
        for element in slow:
            self.note(element[0] // ROW)

    def do_errands(self, service: Any, elements: Any) -> None:
        """Each call that a client can make."""
        answered(elements.state_dict)
        answered(lambda: service.receipt(JOB))
        control = controls.Controls(self.target, TOKEN, requested_by="a test")
        answered(lambda: control.peek(JOB))
        answered(lambda: service.pause(JOB))
        answered(lambda: service.resume(JOB))
        answered(lambda: service.forget(dataset_id="forgotten"))
        evicted = reader(service, "others", cross_trainer_cache=dsnb.CrossTrainerCache("evicted"))
        next(evicted)
        answered(lambda: service.evict("others", "evicted"))
        evicted.close()
        worker = answered(service.status).workers[-1]
        channel = open_channel(worker.address, TOKEN, worker.uid)
        with suppress(DsnbError):
            channel.call(PING, Empty(), timeout=1.0)  # as a reader does that is in doubt whether its worker lives
        channel.close()

    def note(self, number: int) -> None:
        with open(self.folder / "log", "ab", buffering=0) as log:
            log.write(b"%d\n" % number)

    def _fork(self, act: Callable[[], None], faults: Sequence[str]) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            warnings.simplefilter("ignore")
            noted = [NotedFault(fault, self.folder / "reached") for fault in faults]

            def hook(name: str, when: When) -> None:
                for fault in noted:
                    fault(name, when)

            with failpoint_hook(hook):
                act()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent sees the status, a person the traceback
            traceback.print_exc()
        os._exit(code)

    # ---- what came

    @property
    def got(self) -> list[int]:
        return list(map(int, lines_of(self.folder / "log")))

    def check(self) -> None:
        """Each element came once; only what a client had that was killed may come again."""
        seen, wanted = Counter(self.got), Counter(range(COUNT * (1 + self.lagging)))
        of_client = self.victim == "client" and self.killed
        assert (wanted - seen).total() <= of_client, f"missing: {sorted(wanted - seen)}"
        assert (seen - wanted).total() <= AGAIN * of_client, f"too often: {seen - wanted}"


def numbers(*, rows: bool) -> dsnb.Dataset:
    """Slow numbers, from an array that is uploaded as a blob; or its rows, of which 32 are a MiB."""
    array = np.arange(COUNT * ROW).reshape(COUNT, ROW)
    dataset = dsnb.Dataset.from_tensor_slices(array).map(paced(0.001))
    return dataset if rows else dataset.map(lambda row: row[0] // ROW)


def reader(service: Any, name: str, **more: Any) -> Any:
    """A reader of a job that has the name of its dataset."""
    return iter(dsnb.from_dataset_id("distributed_epoch", service, name, job_name=name, **more))


def answered(call: Callable[[], Any]) -> Any:
    """Call until there is an answer, as a user would: the other side may be about to start again."""
    until = time.monotonic() + CASE_S / 2
    while True:
        try:
            return call()
        except (UnavailableError, DeadlineExceededError, ResourceExhaustedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        except DsnbError as refused:
            sys.stderr.write(f"refused: {refused}\n")
            return None


def lines_of(path: Path) -> list[str]:
    """The lines of a file, if there is one."""
    return path.read_text().splitlines() if path.exists() else []


def problem(victim: str, faults: Sequence[str]) -> str:
    """What is wrong after faults; nothing if all is well."""
    with tempfile.TemporaryDirectory(prefix="at-point-", ignore_cleanup_errors=True) as folder:
        service = Service(Path(folder), victim, faults)
        try:
            service.play()
            service.check()
        except AssertionError as error:
            return str(error)
        finally:
            service.close()
        return ""


def cases(role: str, action: str) -> Iterator[list[str]]:
    """What is done to a process of a role: what ends it or fails, once in each case; what suspends it, one by one."""
    names = [name for name in ROLES[role] if action != "fail" or FAILPOINTS[name].error]
    whens = ("before",) if action == "fail" else ("before", "after")
    text = f"{action}:4" if action == "fail" else action  # the first ones are part of a dispatcher's start
    faults = [f"{name}/{when}:{text}" for name in names for when in whens]
    if action == "suspend":
        # A suspended worker counts as lost, and the dispatcher gives a part up when several in a row are lost with it.
        most = MAX_WORKER_DEATHS - 1
        for _, found in groupby(faults, key=lambda fault: ROLES[role][fault.partition("/")[0]] or fault):
            group = list(found)
            yield from (group[first : first + most] for first in range(0, len(group), most))
    else:
        yield from ([fault] for fault in faults)


def main(role: str, action: str) -> None:
    """Print what each case found: empty where nothing is wrong."""
    found = {}
    for faults in cases(role, action):
        begun = time.monotonic()
        found.update(dict.fromkeys(faults, problem(role, faults)))
        sys.stderr.write(f"{faults}: {time.monotonic() - begun:.1f} s: {found[faults[0]]}\n")
    sys.stdout.write(f"FOUND {json.dumps(found)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

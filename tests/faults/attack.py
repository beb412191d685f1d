"""Attacks drawn at random: readers, workers and the dispatcher are killed, suspended and stopped while elements travel.

Everything is drawn from one seed, and what readers got is compared element by element with what the service reported.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import dsnb
from tests.faults.chaos import END_S, Reader, Scene, Watch, paced
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for
from tests.support.workers import address_of

TOLD_WITHIN_S: Final = 0.25
"""A reader over gRPC tells what it consumed every 10 ms; on a busy machine somewhat later."""

COUNTED_WITHIN_S: Final = 0.02
"""A loop of a few microseconds is counted in runs of about a millisecond; on a busy machine somewhat longer."""

REPORTED_WITHIN_S: Final = 1.0
"""A worker reports every half second what was consumed of its tasks; on a busy machine somewhat later."""

WORKER_FAULT_S: Final = 6.0
"""How long a worker may be silent before its part is another's."""

_FILES: Final = 12


@dataclass(frozen=True)
class Plan:
    """What is read, how, and what is done to it; all of it follows from a seed."""

    seed: int
    mode: str
    pipeline: str
    transfer: str
    elements: int
    workers: int
    readers: int
    batch: int
    pause_s: float
    on_lag: str
    """How trainers share a cache; empty for readers without one."""
    faults: tuple[str, ...]
    doomed: str
    """Which process has a failpoint that ends or suspends it: "worker", one more than planned, or "reader"."""
    failpoint: str
    """What `DSNB_FAULT` says in that process."""

    @property
    def trainers(self) -> list[str]:
        return [f"trainer{number}" if self.on_lag else "" for number in range(self.readers)]


STATIC: Final = ("DATA", "FILE", "HINT")
MODES: Final = ("DYNAMIC", "DYNAMIC", "DYNAMIC", "OFF", *STATIC)
PIPELINES: Final = ("plain", "shuffled", "flat", "batched", "interleaved", "unordered", "repeated")
FAULTS: Final = (
    "kill a worker",
    "stop a worker",
    "replace a worker",
    "suspend a worker",
    "kill a reader",
    "suspend a reader",
    "add a reader",
    "restart the dispatcher",
)
FAILPOINTS: Final = {
    "worker": ("call GetSplits", "elements send"),
    "reader": ("call Join", "credit send", "call ConfirmEnd"),
}


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random_ = random.Random(seed)
    mode = random_.choice(MODES)
    pipeline = random_.choice(PIPELINES) if mode == "DYNAMIC" else "hinted" if mode == "HINT" else "plain"
    if mode == "FILE":
        pipeline = "files"
    shared = mode == "DYNAMIC" and random_.random() < 0.3
    faults = [fault for fault in FAULTS if mode == "DYNAMIC" or "worker" not in fault or mode == "OFF"]
    faults += ["kill a worker", "stop a worker"] if mode in STATIC else []
    plan = Plan(
        seed=seed,
        mode=mode,
        pipeline=pipeline,
        transfer=random_.choice(("grpc", "tcp", "shared_memory")),
        elements=random_.choice((600, 1_500, 3_000)),
        workers=random_.randint(1, 3),
        readers=random_.randint(1, 3),
        batch=0 if pipeline == "batched" else random_.choice((0, 0, 0, 16)),
        pause_s=random_.choice((0.0, 0.001, 0.004)),
        on_lag=random_.choice(("wait", "spill")) if shared else "",
        faults=tuple(random_.choices(faults, k=random_.randint(1, 3))),
        doomed="reader",
        failpoint="",
    )
    doomed = "reader" if mode in STATIC else random_.choice(("worker", "reader"))
    name, when = random_.choice(FAILPOINTS[doomed]), random_.choice(("before", "after"))
    nth = random_.choice((1, 3, 10)) if name in {"elements send", "credit send"} else 1
    failpoint = f"{name}/{when}:{random_.choice(('kill', 'suspend'))}:{nth}"
    return replace(plan, doomed=doomed, failpoint=failpoint)


# ---- what is read


def dataset(plan: Plan, folder: Path) -> dsnb.Dataset:
    """Numbers from 0, each once (or for each worker once), through a pipeline of the plan's kind."""
    count = plan.elements
    slow = paced(0.0005)
    numbers = dsnb.Dataset.range(count)
    chunk = 10
    made: dict[str, Callable[[], dsnb.Dataset]] = {
        "plain": lambda: numbers.map(slow),
        "shuffled": lambda: numbers.shuffle(200, seed=3).map(slow),
        "flat": lambda: dsnb.Dataset.range(count // chunk).flat_map(_chunk).map(slow),
        "batched": lambda: numbers.map(slow).batch(4),
        "interleaved": lambda: dsnb.Dataset.range(count // chunk).interleave(_chunk, cycle_length=3).map(slow),
        "unordered": lambda: numbers.map(slow, num_parallel_calls=2, deterministic=False),
        "repeated": lambda: dsnb.Dataset.range(count // 4).map(slow).repeat(4),
        "hinted": lambda: numbers.shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT).map(slow),
        "files": lambda: _files(folder, count).map(slow),
    }
    return made[plan.pipeline]()


def _chunk(number: int) -> dsnb.Dataset:
    return dsnb.Dataset.range(10 * number, 10 * number + 10)


def _files(folder: Path, count: int) -> dsnb.Dataset:
    names = []
    for file in range(_FILES):
        names.append(str(folder / f"part{file}"))
        Path(names[-1]).write_text("".join(f"{number}\n" for number in range(file, count, _FILES)))
    return dsnb.TextLineDataset(names).map(int)


# ---- the attack


class Attack:
    """One plan, carried out on a service.

    Args:
        plan: What to do.
        folder: For logs, files and the dispatcher's work folder.
        job: The name of the job that is read.
    """

    def __init__(self, plan: Plan, folder: Path, job: str = "train") -> None:
        self.plan = plan
        self._folder = folder
        self._job = job
        self._random = random.Random(plan.seed + 1)
        self._events: list[str] = []
        self._worker_faults: list[float] = []
        self._readers: list[Reader] = []
        self.came = plan.workers
        self._watch: Watch | None = None

    def run(self) -> None:
        """Carry it out on a service of its own."""
        settings: dict[str, Any] = {"work_dir": self._folder / "work"}
        if self.plan.mode in STATIC:
            settings["worker_addresses"] = ["localhost:%port%"] * self.plan.workers
        with Scene(self._folder, workers=self.plan.workers, **settings) as scene:
            try:
                self.carry_out(scene)
            except BaseException as error:
                error.add_note(str(self.plan))
                raise

    def carry_out(self, scene: Scene) -> None:
        """Attack a service that has as many workers as planned, and compare what came with what was reported."""
        try:
            self._attack(scene)
        finally:
            if self._watch is not None:
                self._watch.stop()
        self._compare(scene)

    def _attack(self, scene: Scene) -> None:
        scene.register(dataset(self.plan, self._folder))
        if self.plan.doomed == "worker":
            self._watch_worker(scene, scene.add_worker(fault=self.plan.failpoint))
        for number, trainer in enumerate(self.plan.trainers):
            doomed = self.plan.doomed == "reader" and not number
            reader = self._read(scene, trainer, self.plan.failpoint if doomed else "")
            if doomed:
                self._watch_reader(reader)
        for fault in self.plan.faults:
            self._wait_a_while(scene)
            self._strike(scene, fault)
        self._end(scene)

    def _watch_worker(self, scene: Scene, worker: PythonProcess) -> None:
        self.came += 1

        def struck(*, killed: bool) -> None:
            self._worker_faults.append(time.monotonic())
            self.came += not killed  # if it was given up, it comes back as another one

        self._watch = Watch(worker, struck, self._random.choice((0.5, 3.0)))

    def _watch_reader(self, reader: Reader) -> None:
        def struck(*, killed: bool) -> None:
            at = reader.logged[-1][1] if reader.logged else time.monotonic()  # it consumed nothing since
            if not killed:
                reader.suspensions.append(at)
            elif not reader.killed:
                reader.killed = at

        self._watch = Watch(reader.process, struck, self._random.choice((0.5, 1.7, 5.0)))

    def _read(self, scene: Scene, trainer: str, failpoint: str = "") -> Reader:
        plan = self.plan
        more: dict[str, Any] = {"cache": {"on_lag": plan.on_lag}} if trainer else {}
        return scene.read(
            mode=plan.mode, job_name=self._job, trainer=trainer, transfer=plan.transfer, batch=plan.batch,
            pause_s=plan.pause_s, fault=failpoint, **more,
        )  # fmt: skip

    def _wait_a_while(self, scene: Scene) -> None:
        """Until some more elements have come, or the pass is over."""
        goal = len(self._all(scene)) + self._random.randint(1, max(2, self.plan.elements // 3))
        until = time.monotonic() + 5.0
        wait_for(
            lambda: len(self._all(scene)) >= goal or time.monotonic() > until or self._over(scene),
            what="elements",
            timeout=30,
        )

    @staticmethod
    def _all(scene: Scene) -> list[int]:
        return [number for reader in scene.readers for number in reader.got]

    @staticmethod
    def _over(scene: Scene) -> bool:
        return all(reader.killed or reader.process.popen.poll() is not None for reader in scene.readers)

    def _strike(self, scene: Scene, fault: str) -> None:
        what, _, whom = fault.partition(" a ")
        if fault == "restart the dispatcher":
            self._events += scene.events  # the next one begins its list anew
            scene.cluster.restart_dispatcher()
        elif whom == "worker":
            self._strike_worker(scene, what)
        else:
            self._strike_reader(scene, what)

    def _strike_worker(self, scene: Scene, what: str) -> None:
        living = [worker for worker in scene.living if worker not in scene.leaving]
        victim = self._random.choice(living)
        self._worker_faults.append(time.monotonic())
        if what == "suspend":
            scene.suspend(victim.pid, self._random.choice((0.5, 3.0)))
            self.came += 1  # if it was given up, it comes back as another one
            return
        port = int(address_of(victim).rpartition(":")[2]) if what == "replace" else 0
        if what == "stop":
            victim.terminate()
            scene.leaving.append(victim)
        else:
            victim.kill()
        if what == "replace" or len(living) == 1 or self._random.random() < 0.5:
            victim.wait_for_exit(timeout=END_S)  # one that leaves may wait half a minute for its readers
            if self.plan.mode in STATIC:  # its successor finds a free place when it is known to be gone
                scene.cluster.service.wait_until(lambda status: len(status.workers) < len(living), END_S)
            scene.add_worker(port)
            self.came += 1

    def _strike_reader(self, scene: Scene, what: str) -> None:
        living = [r for r in scene.readers if not r.killed and r.process.popen.poll() is None]
        if what == "add" or not living:
            if not self._over(scene):
                self._read(scene, self._random.choice(self.plan.trainers))
            return
        victim = self._random.choice(living)
        if what == "suspend":
            victim.suspensions.append(time.monotonic())
            # Unnoticed; long enough for the reader to suspect that it was given up, but not given up; given up.
            scene.suspend(victim.process.pid, self._random.choice((0.5, 1.7, 5.0)))
            return
        victim.kill()
        if not any(other is not victim and other.trainer == victim.trainer for other in living):
            self._read(scene, victim.trainer)  # else nobody would read what this trainer has not

    def _end(self, scene: Scene) -> None:
        scene.go_on()
        assert self._watch is not None
        if self.plan.doomed == "reader":
            self._watch.join()
        elif not scene.living:
            scene.add_worker()  # the last one met its failpoint
            self.came += 1
        scene.ended()
        self._await_losses(scene)
        for trainer in sorted({reader.trainer for reader in scene.readers if reader.killed}):
            self._read(scene, trainer)  # the others may have ended when they were killed, and then their rest waits
        for end in scene.ended():
            for text in end["warnings"]:
                assert "error" not in text.lower(), text

    def _await_losses(self, scene: Scene) -> None:
        """Wait until the dispatcher knows that killed readers are gone; without a stream, only a time-out tells it."""
        scene.cluster.service.wait_until(
            lambda status: not any(job.clients for job in status.jobs if job.name.endswith(self._job)), END_S
        )

    # ---- what came, and what was reported

    def _compare(self, scene: Scene) -> None:
        self._events += scene.events
        self._readers = scene.readers
        with_trainers = sorted(set(self.plan.trainers))
        for trainer in with_trainers:
            readers = [reader for reader in scene.readers if reader.trainer == trainer]
            if self.plan.mode == "OFF":
                self._compare_whole_passes(readers)
            else:
                self._compare_once(readers, trainer)

    def _compare_once(self, readers: list[Reader], trainer: str) -> None:
        seen = Counter(number for reader in readers for number in reader.got)
        expected = Counter(self._whole_passes(seen.total() + self._lost(trainer)[0]) * self._expected())
        assert not set(seen) - set(expected), self._story("elements that there are not", seen - expected)
        missing, twice = (expected - seen), (seen - expected)
        in_hand = sum(reader.in_hand for reader in readers if reader.killed) * self._unit
        lost, exactly = self._lost(trainer)
        came_untold = untold(readers, self._worker_faults)
        more = f"{lost} reported as lost, more than"
        assert not exactly or lost <= missing.total() + len(came_untold), self._story(more, missing)
        less = f"{lost} reported as lost, less than"
        exactly &= not self._died_with_the_only_copy(readers)
        assert not exactly or missing.total() <= lost + in_hand, self._story(less, missing)
        told = self._repeated()
        for number in came_untold:
            twice[number] = 0
        assert (+twice).total() <= told, self._story(f"{told} reported as repeated, less than", +twice)

    def _died_with_the_only_copy(self, readers: list[Reader]) -> bool:
        """Whether a reader was killed that may have had elements of a dead worker which cannot be made again."""
        killed = [reader.killed for reader in readers if reader.killed]
        never_again = self.plan.pipeline == "unordered" or self.plan.mode == "OFF"
        return never_again and any(at < max(killed, default=0.0) for at in self._worker_faults)

    def _compare_whole_passes(self, readers: list[Reader]) -> None:
        """In mode OFF each worker gives a whole pass: all elements are there as often as there were workers."""
        total = sum(len(reader.got) for reader in readers)
        lost, _ = self._lost("")
        in_hand = sum(reader.in_hand for reader in readers if reader.killed)
        if self._died_with_the_only_copy(readers):
            return  # how much of a pass went with them nobody knows, so no sum could be wrong
        spare = len(untold(readers, self._worker_faults)) + self._repeated()
        passes = [
            passes
            for passes in range(1, len(readers) * self.came + 1)
            if -spare <= passes * self.plan.elements - total - lost <= in_hand
        ]
        told = f"{total} came and {lost} were reported as lost, of at most {self.came} workers' passes"
        assert passes, self._story(told, Counter())

    @property
    def _unit(self) -> int:
        return 4 if self.plan.pipeline == "batched" else 1

    def _expected(self) -> list[int]:
        count = self.plan.elements
        return 4 * list(range(count // 4)) if self.plan.pipeline == "repeated" else list(range(count))

    def _whole_passes(self, elements: int) -> int:
        """How many passes so many elements are: a reader that comes after the end of one begins the next."""
        return max(1, round(elements / self.plan.elements))

    def _lost(self, trainer: str) -> tuple[int, bool]:
        """Elements that were reported as lost to a trainer, and whether that is how many there are."""
        whom = re.escape(f"trainer '{trainer}'" if trainer else "its readers")
        what = r"(?:an unknown number of |([\d,]+) )?elements? (?:of ([\d,]+) splits? )?"
        found = [re.search(rf"{self._of_job}{what}.*did not reach {whom}", event) for event in self._events]
        counts = [match[1] for match in found if match]
        known = [int(count.replace(",", "")) for count in counts if count]
        return sum(known) * self._unit, len(known) == len(counts)

    @property
    def _of_job(self) -> str:
        """How an event begins that tells of the job: with its dataset, where several jobs have its name."""
        return rf"'(?:\d+/)?{self._job}': "

    def _repeated(self) -> int:
        found = [re.search(rf"{self._of_job}([\d,]+) elements? reached two readers", event) for event in self._events]
        return sum(int(match[1].replace(",", "")) for match in found if match) * self._unit

    def _story(self, what: str, elements: Counter[int]) -> str:
        listed = f"{elements.total()}: {sorted(elements)[:20]}"
        who = [self._who(reader, elements) for reader in self._readers]
        faults = f"worker faults at {[f'{at:.3f}' for at in self._worker_faults]}"
        return "\n".join((f"seed {self.plan.seed}: {what} {listed}", str(self.plan), *self._events, faults, *who))

    @staticmethod
    def _who(reader: Reader, elements: Counter[int]) -> str:
        """What a reader had of these elements, and when; for a failure's text."""
        log = reader.logged
        had = [f"{number} at {at:.3f}" for number, at in log if number in elements]
        times = f"killed at {reader.killed:.3f}, suspended at {reader.suspended:.3f}"
        last = f"{log[-1][1]:.3f}" if log else "never"
        got = f"{len(log)} elements, the last at {last}"
        return f"reader {reader.process.pid} {reader.trainer}: {got}, {times}: {had[:20]}"


def untold(readers: list[Reader], worker_faults: list[float]) -> list[int]:
    """What readers that were killed may have consumed without anybody's knowing.

    Over gRPC that is what they consumed in their last moment; elsewhere too, for a loop that is counted in runs. Where
    their worker failed just before, or before it could report what it knew of them, it is what they consumed since it
    last reported. So it is with readers that were suspended while their worker failed.
    """
    found = []
    for reader in readers:
        last = reader.killed
        if last and reader.logged and reader.logged[-1][1] <= reader.suspended:  # it never went on
            last = reader.suspended
        faults = [at for at in worker_faults if last - WORKER_FAULT_S < at < reader.killed + REPORTED_WITHIN_S]
        if reader.suspended and not last:
            near = [at for at in worker_faults if abs(at - reader.suspended) < WORKER_FAULT_S]
            last, faults = (reader.suspended if near else 0.0), near
        before = TOLD_WITHIN_S if reader.transfer in {"grpc", "tcp"} else 0.0 if reader.pauses else COUNTED_WITHIN_S
        since = min([last, *faults]) - (REPORTED_WITHIN_S if faults else before)
        found += [number for number, at in reader.logged if last and at >= since]
    return found

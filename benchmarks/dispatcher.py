"""The dispatcher alone, with simulated workers: how many splits it assigns in a second, and what each worker costs it.

In this process, without gRPC: workers join, a job gives each of them a task, and the tasks report and ask for splits in
turn. The decisions are those of the service, with its journal on disk. Over gRPC: a dispatcher in a process of its own,
and this process calls it as the control streams and tasks of its workers would. No pipeline runs, and no element moves.

    python -m benchmarks.dispatcher [--seconds 2] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

from benchmarks.many_readers import ProcessUsage
from benchmarks.metrics import cpu_of
from benchmarks.sections import machine, table, write_section
from benchmarks.servers import command, first_line
from dsnb.dispatcher import events as e
from dsnb.dispatcher.config import DispatcherConfig
from dsnb.dispatcher.handlers import orders
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.service import Dispatcher, Outbox
from dsnb.wire import messages as m
from dsnb.wire import methods
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.codec import encode

WORKERS = (100, 1_000, 10_000)
GRPC_WORKERS = 200
GRPC_CALLERS = 8
WANT = 64
"""How many splits a request wants where a task asks for more than one at a time."""
GROUP = 100
"""How many decisions share one transaction of the journal, where that is tried."""
_LATE_WORKERS = 20
"""How many workers join when the job runs."""
_HEARTBEAT_S = 0.5
"""The default interval of a worker's heartbeats."""
_SPLITS_S = 0.5
"""A task asks for as many splits as it reads in that time; see `dsnb/worker/splits.py`."""
_SAMPLE_S = 0.001
_SPLITS = 10**12
_INFO = m.DatasetInfo(fingerprint="f", cardinality=-1, providers=(m.SplitProvider(source="range", count=_SPLITS),))
_JOIN = m.JoinRequest(dataset_id="numbers", job_name="train", mode="DYNAMIC", compression="AUTO", target_workers="AUTO")
_PARTS = {
    "Journal._write": "SQLite: the transaction of a decision",
    "Journal.append": "records as JSON, with checksums",
    "Journal.compact": "snapshots of the state",
    "SplitHistory.apply": "the history of splits that the status shows",
    "Dispatcher._forget_gone": "looking for workers that are gone",
    "Core.handle": "the decision",
    "Dispatcher.handle": "locks, and the rest of the dispatcher",
}
"""The functions to which time is counted: the innermost that is running."""


@dataclass
class SimulatedTask:
    """What a worker knows of its task: how many splits it was given."""

    task_id: str
    cursor: int = 0

    def request(self, want: int) -> m.SplitsRequest:
        """The request for the next splits."""
        return m.SplitsRequest(task_id=self.task_id, incarnation=1, cursor=self.cursor, want=want)

    def report(self) -> m.TaskReport:
        """The task's part of a heartbeat."""
        return m.TaskReport(task_id=self.task_id, incarnation=1, state="running", head=self.cursor)

    def take(self, reply: m.SplitsReply) -> int:
        """Note what was given; returns how many splits that is."""
        self.cursor += reply.end - reply.first
        return reply.end - reply.first


@dataclass
class Service:
    """A dispatcher with simulated workers, called as its gRPC methods call it."""

    dispatcher: Dispatcher
    tasks: list[SimulatedTask] = field(default_factory=list)

    def add_worker(self, number: int) -> None:
        """Open a worker's control stream, with its first report."""
        report = worker_report(number)
        self.dispatcher.worker_outboxes[report.uid] = Outbox()
        self.dispatcher.handle(e.WorkerArrives(report=report))
        self.dispatcher.worker_reported(report)

    def start_job(self) -> None:
        """Have a client join a DYNAMIC job: each worker gets a task."""
        self.dispatcher.handle(e.RegisterDataset(dataset_id="numbers", definition="digest", info=_INFO))
        joined: m.JoinReply = self.dispatcher.handle(_JOIN)
        self.dispatcher.client_joined(joined.client_id, joined.job_name, "")
        self.dispatcher.client_outboxes[joined.client_id] = Outbox()
        self.tasks = [SimulatedTask(task.task_id) for task in joined.tasks]

    def heartbeat(self, number: int) -> None:
        """A worker's report, with its task's."""
        self.dispatcher.worker_reported(worker_report(number, self.tasks[number].report()))

    def ask(self, number: int, want: int = 1) -> int:
        """A task's request for splits; returns how many it got."""
        task = self.tasks[number]
        return task.take(self.dispatcher.handle(task.request(want)))


def worker_report(number: int, *tasks: m.TaskReport) -> m.WorkerReport:
    """A report of a simulated worker."""
    return m.WorkerReport(
        uid=f"worker-{number}", address=f"127.0.0.1:{10_000 + number}", isolation="process", pid=number, tasks=tasks
    )


@contextlib.contextmanager
def service(workers: int) -> Iterator[Service]:
    """A dispatcher with its journal on disk and workers that have joined."""
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder:
        config = DispatcherConfig(work_dir=folder)
        dispatcher = Dispatcher(config, Journal(Path(folder, "journal.sqlite")))
        try:
            running = Service(dispatcher)
            for number in range(workers):
                running.add_worker(number)
            yield running
        finally:
            dispatcher.close()


# ---------------------------------------------------------------------------------------------------- without gRPC


@dataclass(kw_only=True)
class Figures:
    """What was measured with one number of workers; times in seconds."""

    join_s: float
    start_s: float
    late_join_s: float
    heartbeat_s: float
    decisions: float
    splits: float
    grouped: float
    update_bytes: int
    status_s: float
    bytes_per_worker: float
    parts: Counter[str]


def measure(workers: int, seconds: float) -> Figures:
    """One row of each table."""
    began = time.perf_counter()
    with service(workers) as running:
        joined = time.perf_counter()
        running.start_job()
        started = time.perf_counter()
        heartbeats = rate(running.heartbeat, workers, seconds / 2)
        decisions = rate(running.ask, workers, seconds)
        splits = rate(lambda number: running.ask(number, WANT), workers, seconds)
        with sampled() as parts:
            rate(running.ask, workers, seconds)
        before_late = time.perf_counter()
        for number in range(workers, workers + _LATE_WORKERS):
            running.add_worker(number)
        late = (time.perf_counter() - before_late) / _LATE_WORKERS
        update = orders.client_update(running.dispatcher.core, "train", 0)
        status_s = min(timed(lambda: running.dispatcher.status(request_reports=False)) for _ in range(3))
    return Figures(
        join_s=joined - began,
        start_s=started - joined,
        late_join_s=late,
        heartbeat_s=1 / heartbeats,
        decisions=decisions,
        splits=splits,
        grouped=grouped_rate(workers, seconds),
        update_bytes=len(encode(update)),
        status_s=status_s,
        bytes_per_worker=memory(workers) / workers,
        parts=parts,
    )


def rate(act: Callable[[int], int | None], workers: int, seconds: float) -> float:
    """How much all workers, one after the other, do in a second: the sum of what `act` returns, None for 1."""
    began, done = time.perf_counter(), 0
    for number in itertools.cycle(range(workers)):
        count = act(number)
        done += 1 if count is None else count
        if (passed := time.perf_counter() - began) >= seconds:
            return done / passed
    raise AssertionError("there are no workers")


def timed(act: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def grouped_rate(workers: int, seconds: float) -> float:
    """Decisions in a second, by core and journal only, if a transaction holds the records of `GROUP` decisions."""
    with service(workers) as running:
        running.start_job()
        core, journal, records = running.dispatcher.core, running.dispatcher.journal, list[Record]()

        def ask(number: int) -> None:
            task = running.tasks[number]
            decision = core.handle(task.request(1), time.monotonic())
            assert isinstance(decision.reply, m.SplitsReply), decision.error
            task.take(decision.reply)
            records.extend(decision.records)
            if len(records) >= GROUP:
                journal.append(records)
                records.clear()
                if journal.needs_compaction:
                    journal.compact(core.state)

        return rate(ask, workers, seconds)


def memory(workers: int) -> float:
    """Bytes of Python that workers add to a dispatcher, each with a task, a grant and a report."""
    with service(0) as running:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(workers):
                running.add_worker(number)
            running.start_job()
            for number in range(workers):
                running.ask(number)
                running.heartbeat(number)
            return tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()


@contextlib.contextmanager
def sampled() -> Iterator[Counter[str]]:
    """Count, at an interval, which of `_PARTS` is running in the main thread."""
    counts: Counter[str] = Counter()

    def count(_signal: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_qualname not in _PARTS:
            frame = frame.f_back
        if frame is not None:  # else the benchmark itself is running
            counts[frame.f_code.co_qualname] += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, _SAMPLE_S, _SAMPLE_S)
    try:
        yield counts
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ------------------------------------------------------------------------------------------------------- over gRPC


@dataclass(kw_only=True)
class GrpcFigures:
    """What was measured of the dispatcher's process."""

    calls: float
    call_cpu_s: float
    heartbeat_cpu_s: float
    rss_per_worker: float
    threads_per_worker: float


def measure_grpc(seconds: float) -> GrpcFigures:
    """The control streams of workers, then requests for splits of their tasks."""
    with tempfile.TemporaryDirectory(prefix="dsnb-bench-") as folder, contextlib.ExitStack() as stack:
        os.environ["DSNB_RUNTIME_DIR"] = folder
        token = Path(folder, "token")
        words = ("--work-dir", folder, "--token-file", str(token), "--json")
        dispatcher = stack.enter_context(command("dispatcher", *words))
        target = str(json.loads(first_line(dispatcher))["target"])
        channel = open_channel(target, token.read_text(encoding="utf-8").strip())
        stack.callback(channel.close)
        before = ProcessUsage.sample(dispatcher.pid)
        workers = [stack.enter_context(control_stream(channel, number)) for number in range(GRPC_WORKERS)]
        after = ProcessUsage.sample(dispatcher.pid)
        tasks = start_job_over_grpc(channel)
        heartbeat_cpu_s = cpu_of_heartbeats(dispatcher.pid, workers, tasks, seconds)
        cpu, began = cpu_of(dispatcher.pid), time.perf_counter()
        calls = ask_over_grpc(channel, tasks, seconds)
        passed = time.perf_counter() - began
        return GrpcFigures(
            calls=calls / passed,
            call_cpu_s=(cpu_of(dispatcher.pid) - cpu) / calls,
            heartbeat_cpu_s=heartbeat_cpu_s,
            rss_per_worker=(after.rss - before.rss) / GRPC_WORKERS,
            threads_per_worker=(after.threads - before.threads) / GRPC_WORKERS,
        )


@contextlib.contextmanager
def control_stream(channel: Channel, number: int) -> Iterator[Callable[[m.WorkerReport], None]]:
    """A worker's control stream, from its welcome on; the function sends a report."""
    reports: SimpleQueue[m.WorkerReport | None] = SimpleQueue()
    reports.put(worker_report(number))
    orders = channel.stream(methods.SESSION, iter(reports.get, None))
    try:
        assert next(orders).welcome
        yield reports.put
    finally:
        reports.put(None)
        orders.cancel()


def cpu_of_heartbeats(
    pid: int, workers: list[Callable[[m.WorkerReport], None]], tasks: list[SimulatedTask], seconds: float
) -> float:
    """The dispatcher's processor time for a heartbeat of a worker, above that of a while without any."""
    rounds = max(1, round(seconds / _HEARTBEAT_S))
    begin = cpu_of(pid)
    time.sleep(rounds * _HEARTBEAT_S)
    quiet = cpu_of(pid)
    for _ in range(rounds):
        for number, send in enumerate(workers):
            send(worker_report(number, tasks[number].report()))
        time.sleep(_HEARTBEAT_S)
    return (cpu_of(pid) - quiet - (quiet - begin)) / (rounds * len(workers))


def start_job_over_grpc(channel: Channel) -> list[SimulatedTask]:
    """Have a client join a DYNAMIC job."""
    channel.upload(methods.REGISTER, lambda: iter([m.RegisterRequest(dataset_id="numbers", info=_INFO)]))
    return [SimulatedTask(task.task_id) for task in channel.call(methods.JOIN, _JOIN).tasks]


def ask_over_grpc(channel: Channel, tasks: list[SimulatedTask], seconds: float) -> int:
    """Have tasks ask for one split at a time, some at once; returns how many calls were made."""
    end = time.perf_counter() + seconds

    def ask(own: list[SimulatedTask]) -> int:
        for count, task in enumerate(itertools.cycle(own)):
            if time.perf_counter() >= end:
                return count
            task.take(channel.call(methods.GET_SPLITS, task.request(1)))
        raise AssertionError("there are no tasks")

    with ThreadPoolExecutor(GRPC_CALLERS) as callers:
        return sum(callers.map(ask, [tasks[first::GRPC_CALLERS] for first in range(GRPC_CALLERS)]))


# ---------------------------------------------------------------------------------------------------------- report


def report(found: dict[int, Figures], grpc: GrpcFigures, seconds: float, load: float) -> str:
    """All tables, and what limits."""
    rates = [
        [f"{workers:,}", f"{one.decisions:,.0f}", f"{one.splits:,.0f}", f"{one.grouped:,.0f}"]
        for workers, one in found.items()
    ]
    costs = [
        [
            f"{workers:,}",
            f"{one.bytes_per_worker / 1024:.1f}",
            f"{1e6 * one.heartbeat_s:.0f}",
            f"{one.join_s:.2f}",
            f"{1e3 * one.late_join_s:.2f}",
            f"{one.update_bytes / 1024:,.0f}",
            f"{1e3 * one.status_s:.1f}",
        ]
        for workers, one in found.items()
    ]
    parts = [
        [title, *(f"{100 * share(one, part):.0f} %" for one in found.values())]
        for part, title in _PARTS.items()
        if any(share(one, part) >= 0.005 for one in found.values())
    ]
    over_grpc = [
        ["requests for a split each second", f"{grpc.calls:,.0f}"],
        ["processor time of a request, us", f"{1e6 * grpc.call_cpu_s:.0f}"],
        ["processor time of a heartbeat, us", f"{1e6 * grpc.heartbeat_cpu_s:.0f}"],
        ["resident memory of a worker, KiB", f"{grpc.rss_per_worker / 1024:.0f}"],
        ["threads of a worker", f"{grpc.threads_per_worker:.1f}"],
    ]
    return "\n\n".join(
        (
            f"{machine()}; {seconds:g} s for each figure; the load average before was {load:.1f}.",
            limits(found, grpc),
            "Splits assigned per second, without gRPC:",
            table(
                [
                    "workers",
                    "one for each request",
                    f"up to {WANT} for each request",
                    f"one for each request, core and journal only, {GROUP} requests in a transaction",
                ],
                rates,
            ),
            "What workers cost, without gRPC. A reader gets the list of all tasks when a worker joins its job:",
            table(
                [
                    "workers",
                    "KiB each",
                    "a heartbeat, us",
                    "all join, s",
                    "one more joins a job, ms",
                    "list of tasks, KiB",
                    "a status, ms",
                ],
                costs,
            ),
            "Where the time of requests for one split goes, by number of workers:",
            table(["part", *(f"{workers:,}" for workers in found)], parts),
            f"The dispatcher's process over gRPC, {GRPC_WORKERS} workers, {GRPC_CALLERS} requests at once:",
            table(["what", "measured"], over_grpc),
        )
    )


def limits(found: dict[int, Figures], grpc: GrpcFigures) -> str:
    """What limits the rate, in words."""
    workers, one = max(found.items())
    largest = max(_PARTS, key=lambda part: one.parts[part])
    part = f"`{largest}` ({_PARTS[largest]}) is {100 * share(one, largest):.0f} %"
    cpu_per_second = grpc.call_cpu_s / _SPLITS_S + grpc.heartbeat_cpu_s / _HEARTBEAT_S
    return (
        f"Without gRPC a request takes {1e6 / one.decisions:.0f} us with {workers:,} workers, of which {part}. Over "
        f"gRPC it takes {1e6 * grpc.call_cpu_s:.0f} us of the dispatcher's processor time: the call is the limit, not "
        f"the decision. By these figures, one core serves {1 / cpu_per_second:,.0f} workers at two requests and two "
        f"heartbeats per second each, or the heartbeats alone of {_HEARTBEAT_S / grpc.heartbeat_cpu_s:,.0f}."
    )


def share(one: Figures, part: str) -> float:
    """The share of a part in the time of requests."""
    return one.parts[part] / max(1, one.parts.total())


def main() -> int:
    """Measure, print, and write the figures into the documentation if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each rate")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/performance.md")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    found = {workers: measure(workers, args.seconds) for workers in WORKERS}
    text = report(found, measure_grpc(args.seconds), args.seconds, load)
    print(text)
    if args.write:
        write_section("performance.md", "dispatcher", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Page, `explain()`, `top` and report say the same verdict on a recorded run, the right one, wherever it is cut."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import dsnb
from dsnb.cli.top import screen_lines
from dsnb.dashboard.page import PageSession
from dsnb.dashboard.replay import Replay
from dsnb.errors import CancelledError, DataLossWarning
from dsnb.monitor.run_file import RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, latest_verdicts
from dsnb.notebook.explaining import explain_over
from dsnb.notebook.reporting import read_recorded_run, write_report
from tests.support.cluster import Cluster
from tests.support.ports import unused_port
from tests.support.proxy import poor_link
from tests.support.transfers import DEPENDS_ON_TRANSFER
from tests.support.waiting import wait_for

CUTS = 30
EVERY_S = 0.25
"""Seconds between two snapshots of a recording."""
EXPLAIN_S = 2.0
HEALTHY_SNAPSHOTS = 1_000
SETTLED_S = 3.0
"""The first cut is so many seconds after the readers began; what is still buffered then says little."""
SMALL_WINDOW, LARGE_WINDOW = ({"cross_trainer_cache_size_bytes": 8_000 * elements} for elements in (50, 2_000))
TWO_PACES = {"slow": 0.05, "fast": 0.001}
QUIET_SHARE = 0.03
"""Readers of the healthy run never wait for a larger share of their time, unless other programs disturb them."""
MOST_LATE_S = 0.3
"""A thread that sleeps wakes up less late than this, unless other programs disturb it."""


class Reader:
    """A thread that reads the job `train`, and pauses after each element.

    Attributes:
        waits: For each element, when it was asked for, and how many seconds it took to come.
    """

    def __init__(
        self, data: dsnb.Dataset, service: Any, pause_s: float = 0.0, name: str | None = None, **options: Any
    ) -> None:
        if name is not None:
            options["cross_trainer_cache"] = dsnb.CrossTrainerCache(trainer_id=name)
        self.waits: list[tuple[float, float]] = []
        self._data = data.repeat().apply(dsnb.distribute("parallel_epochs", service, job_name="train", **options))
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="test-reader", daemon=True)

    def _read(self) -> None:
        with suppress(CancelledError), iter(self._data) as elements:
            while not self._stop.wait(self._pause_s):
                began = time.monotonic()
                with suppress(DataLossWarning):
                    next(elements)
                self.waits.append((began, time.monotonic() - began))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def longest_wait_share(self, seconds: float) -> float:
        """The largest share of its time that it waited in a span of so many seconds."""
        first, most = 0, 0.0
        waited = 0.0
        for at, wait in self.waits:
            waited += wait
            while self.waits[first][0] < at - seconds:
                waited -= self.waits[first][1]
                first += 1
            most = max(most, waited / seconds)
        return most


class Sleeper:
    """A thread that sleeps all the time, and notes how late it wakes up at most."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sleep, name="test-sleeper", daemon=True)

    def _sleep(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            self.late_s = max(self.late_s, time.monotonic() - due)
            due = time.monotonic() + 0.05

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)


Scenario = tuple[dsnb.DataService, Sequence[Reader]]


def sleeping(seconds: float) -> Callable[[Any], Any]:
    def work(x: Any) -> Any:
        time.sleep(seconds)
        return x

    return work


def counting(x: Any) -> Any:
    """Needs the GIL for about 50 ms, and offers it to other threads all the time."""
    for _ in range(1_500_000):
        pass
    return x


@contextmanager
def slow_operation() -> Iterator[Scenario]:
    data = dsnb.Dataset.range(1_000).map(sleeping(0.001)).map(sleeping(0.02))
    with Cluster(workers=1) as cluster:
        yield cluster.service, [Reader(data, cluster.service)]


@contextmanager
def full_link() -> Iterator[Scenario]:
    """The worker is reached as if it were on another machine, over a connection of 4 MB/s."""
    noise = np.random.default_rng(7).integers(0, 255, (64, 50_000), np.uint8)
    data = dsnb.Dataset.from_tensor_slices(noise)
    with poor_link(bytes_s=4e6) as proxy, Cluster(workers=0) as cluster:
        port = unused_port()
        proxy.upstream = ("127.0.0.1", port)
        cluster.add_worker(remote=True, port=port, worker_address=proxy.address)
        yield cluster.service, [Reader(data, cluster.service, data_transfer_protocol="grpc")]


@contextmanager
def busy_threads() -> Iterator[Scenario]:
    with dsnb.start(workers=3, name="busy-threads") as service:
        yield service, [Reader(dsnb.Dataset.range(1_000).map(counting), service)]


@contextmanager
def slow_trainer() -> Iterator[Scenario]:
    """The window holds 50 elements: the fast trainer is 50 ahead of the slow one within a tenth of a second."""
    data = dsnb.Dataset.range(10_000).map(lambda x: np.zeros(1_000) + x)
    with Cluster(workers=1, worker=SMALL_WINDOW) as cluster:
        yield cluster.service, [Reader(data, cluster.service, pause_s, name) for name, pause_s in TWO_PACES.items()]


@contextmanager
def healthy() -> Iterator[Scenario]:
    """Three trainers of about the same pace, and a worker that could do more; the window holds 2,000 elements."""
    data = dsnb.Dataset.range(10_000).map(lambda x: np.zeros(1_000) + x)
    with Cluster(workers=1, worker=LARGE_WINDOW) as cluster:
        yield cluster.service, [Reader(data, cluster.service, 0.1, f"lr={rate}") for rate in (0.1, 0.01, 0.001)]


SCENARIOS: Mapping[str, Callable[[], AbstractContextManager[Scenario]]] = {
    "operation": slow_operation,
    "link": full_link,
    "window": slow_trainer,
    "none": healthy,
    "interpreter": busy_threads,
}
"""By the cause of the verdict. The last one takes the processor time that the others would need."""


@dataclass
class Run:
    """A recorded run: its file, when its readers began and left, and what `explain()` said meanwhile."""

    path: Path
    began: float = 0.0
    ended: float = 0.0
    explained: list[tuple[Verdict, ...]] = field(default_factory=list)


def record(causes: Sequence[str], folder: Path, seconds: float) -> dict[str, Run]:
    """Run scenarios at the same time and record them, until a little after the readers have left.

    Records again, at most twice, if other programs of the machine kept this one, or the healthy scenario's readers,
    waiting.
    """
    runs, quiet = record_once(causes, folder / "0", seconds)
    for attempt in "12":
        if not quiet:
            runs, quiet = record_once(causes, folder / attempt, seconds)
    return runs


def record_once(causes: Sequence[str], folder: Path, seconds: float) -> tuple[dict[str, Run], bool]:
    """The recorded runs, and whether nothing disturbed them: nobody waited in the healthy one, nor slept too long."""
    folder.mkdir()
    runs = {cause: Run(folder / f"{cause}.db") for cause in causes}
    with ExitStack() as services:
        started = {cause: services.enter_context(SCENARIOS[cause]()) for cause in causes}
        for cause, (service, _) in started.items():
            services.enter_context(service.record(runs[cause].path, every=EVERY_S))
        with Sleeper() as sleeper:
            read_and_explain(runs, started, seconds)
        for service, _ in started.values():
            left = service.wait_until(lambda now: not any(job.clients for job in now.jobs), 60).time
            service.wait_until(lambda now, left=left: now.time > left + EXPLAIN_S, 60)
    healthy_readers = started["none"][1] if "none" in started else []
    undisturbed = all(one.longest_wait_share(1.0) < QUIET_SHARE for one in healthy_readers)
    return runs, undisturbed and sleeper.late_s < MOST_LATE_S


def read_and_explain(runs: Mapping[str, Run], started: Mapping[str, Scenario], seconds: float) -> None:
    with ExitStack() as reading, ThreadPoolExecutor() as pool:
        readers = [reading.enter_context(one) for _, readers in started.values() for one in readers]
        wait_for(lambda: all(len(one.waits) > 3 for one in readers), what="the readers to begin", timeout=60)
        began = time.time()
        while time.time() < began + seconds:
            for cause, told in pool.map(lambda item: (item[0], item[1][0].explain(EXPLAIN_S)), started.items()):
                runs[cause].explained.append(told)
        for run in runs.values():
            run.began, run.ended = began, time.time()


def cut(run: Run, at: float) -> list[Snapshot]:
    """What a recording has that ended at that time."""
    path = run.path.with_suffix(".cut.db")
    shutil.copy(run.path, path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM snapshots WHERE time > ?", (at,))
    return read_recorded_run(str(path))


def explained_then(snapshots: Sequence[Snapshot]) -> tuple[Verdict, ...]:
    """What `explain()` said if it was called `EXPLAIN_S` before the end of a recording."""
    last = snapshots[-1]
    before = next(one for one in reversed(snapshots) if one.time <= last.time - EXPLAIN_S)
    status = iter((before, last))
    return explain_over(lambda: next(status), 0.0, lambda: snapshots)


def check(cause: str, run: Run) -> None:
    assert {told[0].cause for told in run.explained[1:]} == {cause}, run.explained
    with RunReader(run.path) as reader:
        replay = Replay(reader)
        replay.play(on=False)
        page = PageSession(replay)
        times = reader.times()
        last = times[-1]
        # `explain()` looks back so far, and the first snapshots of a busy process may come late.
        first = max(run.began + SETTLED_S, next(at for at in times if at - EXPLAIN_S >= times[0]))
        for at in np.linspace(first, last, CUTS):
            check_cut(cause, cut(run, at), page_text(page, replay, at), run.path.with_suffix(".html"))


def page_text(page: PageSession, replay: Replay, at: float) -> str:
    """The panel of verdicts on a page of a recorded run, at that time."""
    replay.seek(at)
    page.tick()
    return unescape(str(page.board.html_verdict))


def check_cut(cause: str, snapshots: Sequence[Snapshot], page: str, path: Path) -> None:
    told = latest_verdicts(snapshots)
    when = f"{len(snapshots)} snapshots"
    assert told[0].cause == cause, (when, told)
    screen = " ".join(line.strip() for line in screen_lines(snapshots, 1000))
    report = unescape(Path(write_report(path, snapshots)).read_text(encoding="utf-8"))
    for verdict in told:
        for place, text in (("page", page), ("top", screen), ("report", report)):
            assert verdict.text in text, (when, place)
    assert f'data-verdict="{cause}"' in page
    explained = explained_then(snapshots)[0]
    assert (explained.cause, explained.subject, explained.level) == (cause, told[0].subject, told[0].level), when


@pytest.mark.slow
@DEPENDS_ON_TRANSFER
@pytest.mark.parametrize(
    "causes", [("operation", "link", "window", "none"), ("interpreter",)], ids=["side by side", "GIL"]
)
def test_all_places_say_the_right_verdict_wherever_a_recorded_run_is_cut(causes: Sequence[str], tmp_path: Path) -> None:
    for cause, run in record(causes, tmp_path, 14.0).items():
        check(cause, run)


@pytest.mark.soak
@pytest.mark.timeout(400)
@DEPENDS_ON_TRANSFER
def test_none_of_a_thousand_recorded_snapshots_of_healthy_runs_predicts_a_loss(tmp_path: Path) -> None:
    """Four services at the same time; what other programs of the machine do to them must not look like a loss."""
    paths = [tmp_path / f"{number}.db" for number in range(4)]
    with ExitStack() as stack:
        for path in paths:
            service, readers = stack.enter_context(healthy())
            stack.enter_context(service.record(path, every=EVERY_S))
            for one in readers:
                stack.enter_context(one)
        opened = [stack.enter_context(RunReader(path)) for path in paths]
        wait_for(
            lambda: all(len(reader.times()) >= HEALTHY_SNAPSHOTS / len(paths) for reader in opened),
            what="a thousand snapshots",
            timeout=300,
            every=1.0,
        )
    count = 0
    for path in paths:
        run = read_recorded_run(str(path))
        for end in range(1, len(run) + 1):
            assert not [one for one in latest_verdicts(run[:end]) if one.cause == "window"], (path, end)
            count += 1
    assert count >= HEALTHY_SNAPSHOTS

"""The demo itself: start a service, train two trainers on one job, add a worker, and return the result."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import dsnb
from dsnb.dashboard.browser import open_in_browser
from dsnb.demo.digits import unpacked
from dsnb.demo.narration import MAX_S, Narrator, Pace
from dsnb.demo.options import DemoOptions
from dsnb.demo.pipeline import BATCH_SIZE, held_out, training_batches
from dsnb.demo.result import DemoResult, result_of
from dsnb.demo.table import progress_line
from dsnb.demo.trainer import Trainer, TrainerSettings
from dsnb.monitor.formatting import plural
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, latest_verdicts

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService
    from dsnb.pipeline.dataset import Dataset

JOB_NAME = "digits"
TRAINERS = (
    TrainerSettings(trainer_id="fast", learning_rate=0.4, hidden=(256,), step_s=0.025),
    # Slower than one worker, so that it lags behind from the first seconds on. What it has not read when it leaves the
    # window is kept on disk for it: the demo may run for hours.
    TrainerSettings(trainer_id="slow", learning_rate=0.3, hidden=(640, 320), step_s=0.05, on_lag="spill"),
)
TARGET_ACCURACY = 0.88
"""Both trainers had it after at most 400 batches in 20 runs. The smaller model took 425 to 750 batches to 0.91."""
WINDOW_BYTES = 3_000_000
"""The window of each worker holds 700 batches: small enough to see the slower trainer move in it."""
SECONDS_BETWEEN_LINES = 2.0
SECONDS_BETWEEN_CHECKS = 0.25
SECONDS_TO_STOP = 5.0
VERDICT_SNAPSHOTS = 16
"""A verdict is about the last four seconds, so that the effect of another worker shows soon."""


def run(options: DemoOptions, on_progress: Callable[[str], None], on_result: Callable[[DemoResult], None]) -> None:
    """Run the demo to its end. The service and the temporary files are removed, however it ends.

    Args:
        options: How to run the demo.
        on_progress: Called with each line of progress.
        on_result: Called with the result when the demo ends by itself or by Ctrl-C.
    """
    # A unique name: two demos may run at once, and neither may reuse (and then stop) a service of the user's.
    name = f"demo-{os.getpid()}"
    with (
        unpacked() as folder,
        dsnb.start(
            options.workers, name=name, isolation=options.isolation, cross_trainer_cache_size_bytes=WINDOW_BYTES
        ) as service,
    ):
        if options.record:
            service.record(options.record)
        url = service.dashboard_url() if options.dashboard else ""
        started = f"{plural(options.workers, 'worker')} started"
        on_progress(f"{started}; dashboard: {url}" if url else started)
        if url and options.open:
            open_in_browser(url)
        on_result(_train(service, folder, options, on_progress))


def _train(service: DataService, folder: Path, options: DemoOptions, on_progress: Callable[[str], None]) -> DemoResult:
    samples = held_out(folder)
    trainers = [Trainer(course, samples) for course in TRAINERS]
    with _training(service, training_batches(folder), trainers):
        watch = _Watch(service, trainers, _pace(options), on_progress)
        with suppress(KeyboardInterrupt):
            watch.until_over()
        return watch.result()


def _pace(options: DemoOptions) -> Pace:
    if options.seconds is not None:
        return Pace(limit_s=options.seconds)
    return Pace(limit_s=None) if sys.stdout.isatty() else Pace(limit_s=MAX_S, ends_when_learned=True)


@contextmanager
def _training(service: DataService, batches: Dataset, trainers: Sequence[Trainer]) -> Iterator[None]:
    """Start all trainers on the same batches through one named job; stop them at the end of the block."""
    try:
        for trainer in trainers:
            cache = dsnb.CrossTrainerCache(trainer.settings.trainer_id, on_lag=trainer.settings.on_lag)
            shared = dsnb.distribute("distributed_epoch", service, job_name=JOB_NAME, cross_trainer_cache=cache)
            trainer.start(batches.apply(shared))
        yield
    finally:
        for trainer in trainers:
            trainer.stop()
        for trainer in trainers:
            trainer.wait(SECONDS_TO_STOP)


class _Watch:
    """Follows the trainers until the demo is over: prints progress and verdicts, and adds workers."""

    def __init__(
        self, service: DataService, trainers: Sequence[Trainer], pace: Pace, on_progress: Callable[[str], None]
    ) -> None:
        self._service = service
        self._trainers = trainers
        self._pace = pace
        self._on_progress = on_progress
        self._narrator = Narrator()
        self._began = time.monotonic()
        self._next_line_s = SECONDS_BETWEEN_LINES
        self._largest_lags: dict[str, int] = {}
        self._snapshots: deque[Snapshot] = deque(maxlen=VERDICT_SNAPSHOTS)

    def until_over(self) -> None:
        """Return when the demo is over; raise the error of a trainer that failed."""
        over = False
        while not over:
            _wait_for_next_check(self._trainers)
            result = self.result()
            self._print(result)
            self._add_worker(result.seconds)
            over = self._pace.is_over(result.seconds, learned=result.reached)

    def result(self) -> DemoResult:
        """The figures up to now."""
        status = self._service.status()
        self._snapshots.append(status)
        job = status.job(JOB_NAME)
        result = result_of(
            job,
            self._trainers,
            self._largest_lags,
            batch_size=BATCH_SIZE,
            target_accuracy=TARGET_ACCURACY,
            seconds=time.monotonic() - self._began,
        )
        self._largest_lags = {trainer.trainer_id: trainer.largest_lag for trainer in result.trainers}
        return result

    def _print(self, result: DemoResult) -> None:
        if result.seconds < self._next_line_s:
            return
        self._next_line_s += SECONDS_BETWEEN_LINES
        self._on_progress(progress_line(result))
        self._tell(latest_verdicts(self._snapshots, JOB_NAME))

    def _tell(self, found: Sequence[Verdict]) -> None:
        line = self._narrator.line_about(found)
        if line is not None:
            self._on_progress(line)

    def _add_worker(self, seconds: float) -> None:
        found = latest_verdicts(self._snapshots, JOB_NAME)
        if not self._pace.adds_worker(seconds, found[0] if found else None):
            return
        self._tell(found)
        workers = len(self._snapshots[-1].workers) + 1
        self._on_progress(f"\nThe demo adds a worker: svc.scale({workers})\n")
        self._service.scale(workers)
        self._snapshots.clear()  # the next verdict is about the time with this worker


def _wait_for_next_check(trainers: Sequence[Trainer]) -> None:
    """Wait until the next check is due. A trainer ends early only by an error; raise it."""
    for trainer in trainers:
        if trainer.wait(SECONDS_BETWEEN_CHECKS / len(trainers)) and trainer.failure is not None:
            raise trainer.failure

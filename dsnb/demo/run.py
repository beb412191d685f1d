"""The demo itself: start a service, train two trainers on one job, and return the result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import dsnb
from dsnb.demo.digits import unpacked
from dsnb.demo.options import DemoOptions
from dsnb.demo.pipeline import BATCH_SIZE, held_out, training_batches
from dsnb.demo.result import DemoResult, result_of
from dsnb.demo.table import progress_line
from dsnb.demo.trainer import Trainer, TrainerSettings
from dsnb.errors import DeadlineExceededError

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService
    from dsnb.pipeline.dataset import Dataset

JOB_NAME = "digits"
TRAINERS = (
    TrainerSettings(trainer_id="lr=0.5", learning_rate=0.5, hidden=(256,)),
    # Has about fifty times as many weights: its steps take longer, so it lags behind in the window.
    TrainerSettings(trainer_id="lr=0.2", learning_rate=0.2, hidden=(1280, 640)),
)
WINDOW_BYTES = 16 << 20
"""The window of each worker holds 2,000 batches, so that the slower trainer need not skip any."""
SECONDS_BETWEEN_LINES = 2.0
SECONDS_BETWEEN_CHECKS = 0.25
SECONDS_TO_STOP = 5.0


def run(options: DemoOptions, on_progress: Callable[[str], None], on_result: Callable[[DemoResult], None]) -> None:
    """Run the demo to its end. The service and the temporary files are removed, however it ends.

    Args:
        options: How to run the demo.
        on_progress: Called with each line of progress.
        on_result: Called with the result when training has ended.

    Raises:
        DeadlineExceededError: a trainer did not reach the accuracy in time.
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
        on_progress(f"{options.workers} workers started" + (f"; dashboard: {url}" if url else ""))
        on_result(_train(service, folder, options, on_progress))
        if options.hold:
            on_progress(f"the service stays open for {options.hold:g} s (Ctrl-C ends it): {url or service.target}")
            time.sleep(options.hold)


def _train(service: DataService, folder: Path, options: DemoOptions, on_progress: Callable[[str], None]) -> DemoResult:
    samples = held_out(folder)
    trainers = [Trainer(course, samples) for course in TRAINERS]
    with _training(service, training_batches(folder), trainers):
        return _watch(service, trainers, options, on_progress)


@contextmanager
def _training(service: DataService, batches: Dataset, trainers: Sequence[Trainer]) -> Iterator[None]:
    """Start all trainers on the same batches through one named job; stop them at the end of the block."""
    try:
        for trainer in trainers:
            cache = dsnb.CrossTrainerCache(trainer.settings.trainer_id)
            shared = dsnb.distribute("distributed_epoch", service, job_name=JOB_NAME, cross_trainer_cache=cache)
            trainer.start(batches.apply(shared))
        yield
    finally:
        for trainer in trainers:
            trainer.stop()
        for trainer in trainers:
            trainer.wait(SECONDS_TO_STOP)


def _watch(
    service: DataService, trainers: Sequence[Trainer], options: DemoOptions, on_progress: Callable[[str], None]
) -> DemoResult:
    """Report progress until all trainers reach the target. None stops earlier, so that they keep sharing batches."""
    began = time.monotonic()
    next_line = SECONDS_BETWEEN_LINES
    largest_lags: dict[str, int] = {}
    while True:
        _wait_for_next_check(trainers)
        job = service.status().job(JOB_NAME)
        if job is None:
            continue
        result = result_of(
            job,
            trainers,
            largest_lags,
            batch_size=BATCH_SIZE,
            target_accuracy=options.accuracy,
            seconds=time.monotonic() - began,
        )
        if result.reached(options.batches):
            return result
        if result.seconds > options.deadline:
            raise _deadline_error(result, options)
        largest_lags = {trainer.trainer_id: trainer.largest_lag for trainer in result.trainers}
        if result.seconds >= next_line:
            next_line += SECONDS_BETWEEN_LINES
            on_progress(progress_line(result))


def _wait_for_next_check(trainers: Sequence[Trainer]) -> None:
    """Wait until the next check is due. A trainer ends early only by an error; raise it."""
    for trainer in trainers:
        if trainer.wait(SECONDS_BETWEEN_CHECKS / len(trainers)) and trainer.failure is not None:
            raise trainer.failure


def _deadline_error(result: DemoResult, options: DemoOptions) -> DeadlineExceededError:
    states = "; ".join(
        f"{trainer.trainer_id} has accuracy {trainer.accuracy:.3f} after {trainer.served.elements:,} batches"
        for trainer in result.trainers
    )
    return DeadlineExceededError(
        f"after {options.deadline:g} s not every trainer has an accuracy of {options.accuracy:g} and"
        f" {options.batches:,} batches: {states}",
        did="the trainers and the service were stopped, and the temporary folder was removed",
        hint="give it more time with --deadline, or ask for less with --accuracy or --batches",
    )

"""The demo itself: a service, one job, two trainers; from the first line of progress to the figures."""

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
from dsnb.demo.table import progress
from dsnb.demo.trainer import Course, Goal, Trainer
from dsnb.errors import DeadlineExceededError
from dsnb.monitor.snapshot import JobStatus

if TYPE_CHECKING:
    from dsnb.notebook.service import DataService
    from dsnb.pipeline.dataset import Dataset

JOB = "digits"
COURSES = (
    Course(trainer_id="lr=0.2", learning_rate=0.2, hidden=(256,)),
    # Some thirty times the work for each batch: so this one is slower, and lags behind in the window.
    Course(trainer_id="lr=0.05", learning_rate=0.05, hidden=(1024, 512)),
)
WINDOW_BYTES = 16 << 20
"""Of each worker: all that the demo produces fits in, so that the slower trainer never skips, however slow it is."""
SECONDS_BETWEEN_LINES = 2.0
SECONDS_BETWEEN_LOOKS = 0.25
SECONDS_TO_STOP = 5.0


def run(options: DemoOptions, say: Callable[[str], None]) -> DemoResult:
    """Run the demo to its end; nothing is left of it, however it ends.

    Args:
        options: How to run it.
        say: Called with each line of progress.

    Returns:
        The figures.

    Raises:
        DeadlineExceededError: a trainer did not reach the accuracy in time.
    """
    # A name of its own: two demos may run at once, and none may take over (and stop) a service of the user's.
    name = f"demo-{os.getpid()}"
    with (
        unpacked() as folder,
        dsnb.start(options.workers, name=name, cross_trainer_cache_size_bytes=WINDOW_BYTES) as service,
    ):
        url = service.dashboard().url if options.dashboard else ""
        say(f"{options.workers} workers started" + (f"; dashboard: {url}" if url else ""))
        result = _train(service, folder, options, say)
        if options.hold:
            say(f"training has ended; the service stays open for {options.hold:.0f} s: {url or service.target}")
            time.sleep(options.hold)
        return result


def _train(service: DataService, folder: Path, options: DemoOptions, say: Callable[[str], None]) -> DemoResult:
    samples = held_out(folder)
    goal = Goal(batches=options.batches, accuracy=options.accuracy)
    trainers = [Trainer(course, goal, samples) for course in COURSES]
    batches = training_batches(folder)
    began = time.monotonic()
    with _reading(service, batches, trainers):
        largest_lags = _watch(service, trainers, began, options.deadline, say)
        seconds = time.monotonic() - began
        return result_of(
            _settled(service, trainers),
            trainers,
            largest_lags,
            batch_size=BATCH_SIZE,
            target_accuracy=options.accuracy,
            seconds=seconds,
        )


@contextmanager
def _reading(service: DataService, batches: Dataset, trainers: Sequence[Trainer]) -> Iterator[None]:
    """All trainers read the same batches through one named job; they are stopped at the end."""
    try:
        for trainer in trainers:
            cache = dsnb.CrossTrainerCache(trainer.course.trainer_id)
            shared = dsnb.distribute("distributed_epoch", service, job_name=JOB, cross_trainer_cache=cache)
            trainer.start(batches.apply(shared))
        yield
    finally:
        for trainer in trainers:
            trainer.stop()
        for trainer in trainers:
            trainer.wait(SECONDS_TO_STOP)


def _watch(
    service: DataService, trainers: Sequence[Trainer], began: float, deadline: float, say: Callable[[str], None]
) -> dict[str, int]:
    """Tell of the progress until all trainers have passed; the largest lag of each that was seen."""
    largest_lags: dict[str, int] = {}
    next_line = began + SECONDS_BETWEEN_LINES
    while not _all_ended(trainers, SECONDS_BETWEEN_LOOKS):
        now = time.monotonic()
        if now - began > deadline:
            raise _too_late(trainers, deadline)
        job = service.status().job(JOB)
        if job is None:
            continue
        for served in job.trainers:
            largest_lags[served.trainer_id] = max(served.lag, largest_lags.get(served.trainer_id, 0))
        if now >= next_line:
            next_line = now + SECONDS_BETWEEN_LINES
            say(progress(now - began, job, trainers))
    return largest_lags


def _all_ended(trainers: Sequence[Trainer], seconds: float) -> bool:
    """Wait so long for the trainers to end; whether they all did. A failure of one is raised at once."""
    waiting = [trainer for trainer in trainers if not trainer.ended]
    if waiting:
        waiting[0].wait(seconds)
    for trainer in trainers:
        if trainer.failure is not None:
            raise trainer.failure
    return all(trainer.ended for trainer in trainers)


def _settled(service: DataService, trainers: Sequence[Trainer]) -> JobStatus:
    """The job's status, once the service has heard of all that was consumed; after a second, as far as it has."""
    deadline = time.monotonic() + 1
    while True:
        job = service.status().job(JOB)
        assert job is not None, "a job is kept for minutes after its last reader"
        heard = {served.trainer_id: served.elements for served in job.trainers}
        if all(heard.get(t.course.trainer_id, 0) >= t.batches for t in trainers) or time.monotonic() > deadline:
            return job
        time.sleep(0.05)


def _too_late(trainers: Sequence[Trainer], deadline: float) -> DeadlineExceededError:
    late = next(trainer for trainer in trainers if not trainer.ended)
    return DeadlineExceededError(
        f"after {deadline:g} s the trainer {late.course.trainer_id} stands at accuracy {late.accuracy:.3f} after"
        f" {late.batches:,} batches; {late.goal.accuracy} after at least {late.goal.batches:,} was asked for",
        did="the trainers and the service were stopped, and the temporary folder was removed",
        hint="give it more time with --deadline, or ask for less with --accuracy or --batches",
    )

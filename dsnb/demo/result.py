"""What a run of the demo measured, in numbers; `table` prints it for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsnb.dataclass import dataclass
from dsnb.demo.trainer import Trainer
from dsnb.monitor.snapshot import JobStatus, TrainerStatus


@dataclass(frozen=True, kw_only=True)
class TrainerResult:
    """One trainer's end of the demo. An element is a batch.

    Attributes:
        widths: Of the model's layers, from the inputs to the classes.
        elements: Batches that it consumed.
        accuracy: On the held-out digits, 0 to 1, at the end.
        hits: Batches that it found in the cache, produced for the other trainer.
        misses: Batches that were produced for it.
        skipped: Batches that had left the window before it came to them.
        lag: Batches produced and not consumed by it, at the end.
        largest_lag: The most that `lag` was seen at while training went on.
    """

    trainer_id: str
    learning_rate: float
    widths: tuple[int, ...]
    elements: int
    accuracy: float
    hits: int
    misses: int
    skipped: int
    lag: int
    largest_lag: int


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo found out.

    Attributes:
        elements_produced: Batches that went through the pipeline.
        batch_size: Samples in a batch.
        target_accuracy: What each trainer had to reach.
        preprocessing_seconds: Time that the workers spent inside the operations of the pipeline, over all of them, by
            the clock on the wall: it includes waiting for a core or for the interpreter.
        seconds: Since the first read.
    """

    elements_produced: int
    batch_size: int
    target_accuracy: float
    preprocessing_seconds: float
    seconds: float
    trainers: tuple[TrainerResult, ...]

    def reached(self, elements: int) -> bool:
        """Whether each trainer has the accuracy, and so many elements at the least."""
        return all(
            trainer.elements >= elements and trainer.accuracy >= self.target_accuracy for trainer in self.trainers
        )

    @property
    def elements_consumed(self) -> int:
        """Batches that all trainers consumed, together."""
        return sum(trainer.elements for trainer in self.trainers)

    @property
    def seconds_saved(self) -> float:
        """Preprocessing that the cache spared: the measured time of one batch, for each that came from the cache."""
        hits = sum(trainer.hits for trainer in self.trainers)
        return hits * self.preprocessing_seconds / max(1, self.elements_produced)


def result_of(
    job: JobStatus,
    trainers: Sequence[Trainer],
    largest_lags: Mapping[str, int],
    *,
    batch_size: int,
    target_accuracy: float,
    seconds: float,
) -> DemoResult:
    """Put together what the service says of the job and what its trainers say of themselves."""
    return DemoResult(
        elements_produced=job.elements_produced,
        batch_size=batch_size,
        target_accuracy=target_accuracy,
        preprocessing_seconds=sum(stage.busy_ns for stage in job.stages) / 1e9,
        seconds=seconds,
        trainers=tuple(_trainer_result(job, trainer, largest_lags) for trainer in trainers),
    )


def _trainer_result(job: JobStatus, trainer: Trainer, largest_lags: Mapping[str, int]) -> TrainerResult:
    settings = trainer.settings
    # The service hears of a trainer with its first report; before that it has consumed nothing.
    served = job.trainer(settings.trainer_id) or TrainerStatus(trainer_id=settings.trainer_id, clients=0, elements=0)
    return TrainerResult(
        trainer_id=settings.trainer_id,
        learning_rate=settings.learning_rate,
        widths=trainer.widths,
        elements=served.elements,
        accuracy=trainer.accuracy,
        hits=served.hits,
        misses=served.misses,
        skipped=served.skipped,
        lag=served.lag,
        largest_lag=max(served.lag, largest_lags.get(settings.trainer_id, 0)),
    )

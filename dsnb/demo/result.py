"""The measurements of a demo run, as numbers; `table` formats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dsnb.demo.trainer import Trainer
from dsnb.monitor.snapshot import JobStatus, TrainerStatus


class TrainerResult(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer's result. An element is a batch.

    Attributes:
        served: The service's counts for this trainer.
        learning_rate: The initial learning rate.
        widths: The widths of the model's layers, from the inputs to the classes.
        accuracy: The best accuracy on the held-out digits, 0 to 1.
        largest_lag: The largest lag observed during training.
    """

    served: TrainerStatus
    learning_rate: float
    widths: tuple[int, ...]
    accuracy: float
    largest_lag: int

    @property
    def trainer_id(self) -> str:
        """The trainer's name in the cross-trainer cache."""
        return self.served.trainer_id


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a demo run.

    Attributes:
        elements_produced: Batches that went through the pipeline.
        batch_size: Samples in a batch.
        target_accuracy: The accuracy that the trainers work towards, 0 to 1.
        preprocessing_seconds: Wall-clock time that all workers together spent inside the pipeline's operations. It
            includes waiting for a core or for the GIL.
        seconds: Seconds since the first read.
        trainers: One result for each trainer.
    """

    elements_produced: int
    batch_size: int
    target_accuracy: float
    preprocessing_seconds: float
    seconds: float
    trainers: tuple[TrainerResult, ...]

    @property
    def reached(self) -> bool:
        """Whether each trainer has the target accuracy."""
        return all(trainer.accuracy >= self.target_accuracy for trainer in self.trainers)

    @property
    def elements_consumed(self) -> int:
        """The number of batches that all trainers consumed, in total."""
        return sum(trainer.served.elements for trainer in self.trainers)

    @property
    def seconds_saved(self) -> float:
        """Preprocessing time saved by the cache: its hits times the average time to produce a batch."""
        hits = sum(trainer.served.hits for trainer in self.trainers)
        return hits * self.preprocessing_seconds / max(1, self.elements_produced)


def result_of(
    job: JobStatus | None,
    trainers: Sequence[Trainer],
    largest_lags: Mapping[str, int],
    *,
    batch_size: int,
    target_accuracy: float,
    seconds: float,
) -> DemoResult:
    """Combine the service's status of the job (None before the first read) with what the trainers measured."""
    return DemoResult(
        elements_produced=job.elements_produced if job else 0,
        batch_size=batch_size,
        target_accuracy=target_accuracy,
        preprocessing_seconds=sum(stage.busy_ns for stage in job.stages) / 1e9 if job else 0.0,
        seconds=seconds,
        trainers=tuple(_trainer_result(job, trainer, largest_lags) for trainer in trainers),
    )


def _trainer_result(job: JobStatus | None, trainer: Trainer, largest_lags: Mapping[str, int]) -> TrainerResult:
    settings = trainer.settings
    # The service lists a trainer from its first report on; before that it has consumed nothing.
    served = (job and job.trainer(settings.trainer_id)) or TrainerStatus(
        trainer_id=settings.trainer_id, clients=0, elements=0
    )
    return TrainerResult(
        served=served,
        learning_rate=settings.learning_rate,
        widths=trainer.widths,
        accuracy=trainer.accuracy,
        largest_lag=max(served.lag, largest_lags.get(settings.trainer_id, 0)),
    )

"""One job between two snapshots, as the rules of the verdict look at it."""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.monitor.processors import Processors, processors
from dsnb.monitor.rates import JobRates, Rates, StageRates, TrainerRates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, Snapshot, StageStatus, TaskStatus, TrainerStatus, WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Stages that the same threads run, one after the other; all workers' together."""

    stages: list[tuple[StageStatus, StageRates]]
    runners: int

    @property
    def busy(self) -> float:
        """The part of the time that those threads are at work."""
        return min(1.0, sum(rates.busy for _, rates in self.stages) / self.runners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of one job, and of its reader that waits most."""

    before: JobStatus
    job: JobStatus
    now: Snapshot
    between: Rates
    waiter: TrainerStatus | None = None

    @property
    def rates(self) -> JobRates:
        return self.between.job(self.job.name)

    def of(self, trainer: TrainerStatus) -> TrainerRates:
        return trainer_rates(self.rates, trainer.trainer_id)

    @property
    def wait(self) -> float:
        return (self.of(self.waiter).wait_share or 0.0) if self.waiter else 0.0

    @property
    def running(self) -> list[TaskStatus]:
        return [task for task in self.job.tasks if task.state == "running"]

    @property
    def workers(self) -> list[WorkerStatus]:
        """Those that produce for this job now."""
        names = {task.worker for task in self.running}
        return [worker for worker in self.now.workers if worker.name in names]

    @property
    def stages(self) -> list[tuple[StageStatus, StageRates]]:
        return list(zip(self.job.stages, self.rates.stages, strict=False))

    @property
    def lanes(self) -> list[Lane]:
        """The stages by who runs them: those with threads of their own alone, the others one after another."""
        alone = [pair for pair in self.stages if pair[0].threads > len(self.workers)]
        serial = [pair for pair in self.stages if pair[0].threads <= len(self.workers)]
        lanes = [Lane(stages=[pair], runners=pair[0].threads) for pair in alone]
        return [Lane(stages=serial, runners=len(self.workers)), *lanes] if serial and self.workers else lanes

    @property
    def busy(self) -> float:
        """The part of the time that the workers of the job work for it, where they have most to do."""
        return max((lane.busy for lane in self.lanes), default=0.0)

    @property
    def processors(self) -> Processors:
        """What the workers of the job have left of their processors."""
        return processors(self.workers, self.between)

    @property
    def demand(self) -> float:
        """Elements a second that its readers would take: of shared ones the fastest, of others all."""
        asked = [self.of(trainer).demand or 0.0 for trainer in self.job.trainers]
        return max(asked, default=0.0) if self.job.cached else sum(asked)


def who(case: Case, trainer: TrainerStatus) -> str:
    return f"{'trainer' if case.job.cached else 'client'} {trainer.trainer_id!r}"

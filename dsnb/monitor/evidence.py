"""One job between two snapshots, as the rules of the verdict look at it."""

from __future__ import annotations

from dsnb.dataclass import dataclass
from dsnb.monitor.processors import CpuCapacity, cpu_capacity
from dsnb.monitor.rates import JobRates, Rates, StageRates, TrainerRates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, Snapshot, StageStatus, TaskStatus, TrainerStatus, WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Stages that the same threads run, one after the other; all workers' together."""

    stages: list[tuple[StageStatus, StageRates]]
    threads: int

    @property
    def busy(self) -> float:
        """The part of the time that those threads are at work."""
        return min(1.0, sum(rates.busy for _, rates in self.stages) / self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one job, and of its reader that waits most."""

    job_before: JobStatus
    job: JobStatus
    snapshot: Snapshot
    rates: Rates
    waiting_reader: TrainerStatus | None = None

    @property
    def job_rates(self) -> JobRates:
        return self.rates.job(self.job.name)

    def trainer_rates(self, trainer: TrainerStatus) -> TrainerRates:
        return trainer_rates(self.job_rates, trainer.trainer_id)

    @property
    def wait_share(self) -> float:
        return (self.trainer_rates(self.waiting_reader).wait_share or 0.0) if self.waiting_reader else 0.0

    @property
    def running(self) -> list[TaskStatus]:
        return [task for task in self.job.tasks if task.state == "running"]

    @property
    def workers(self) -> list[WorkerStatus]:
        """Those that produce for this job now."""
        names = {task.worker for task in self.running}
        return [worker for worker in self.snapshot.workers if worker.name in names]

    @property
    def stages(self) -> list[tuple[StageStatus, StageRates]]:
        return list(zip(self.job.stages, self.job_rates.stages, strict=False))

    @property
    def stage_groups(self) -> list[StageGroup]:
        """The stages by who runs them: those with threads of their own alone, the others one after another."""
        alone = [pair for pair in self.stages if pair[0].threads > len(self.workers)]
        serial = [pair for pair in self.stages if pair[0].threads <= len(self.workers)]
        lanes = [StageGroup(stages=[pair], threads=pair[0].threads) for pair in alone]
        return [StageGroup(stages=serial, threads=len(self.workers)), *lanes] if serial and self.workers else lanes

    @property
    def busy(self) -> float:
        """The part of the time that the workers of the job work for it, where they have most to do."""
        return max((lane.busy for lane in self.stage_groups), default=0.0)

    @property
    def cpu_capacity(self) -> CpuCapacity:
        """What the workers of the job have left of their processors."""
        return cpu_capacity(self.workers, self.rates)

    @property
    def demand(self) -> float:
        """Elements a second that its readers would take: of shared ones the fastest, of others all."""
        demands = [self.trainer_rates(trainer).demand or 0.0 for trainer in self.job.trainers]
        return max(demands, default=0.0) if self.job.cached else sum(demands)


def reader_label(evidence: Evidence, trainer: TrainerStatus) -> str:
    return f"{'trainer' if evidence.job.cached else 'client'} {trainer.trainer_id!r}"

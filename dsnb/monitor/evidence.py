"""The data of one job between two snapshots, as input for the rules of the verdict."""

from __future__ import annotations

import msgspec

from dsnb.monitor.processors import CpuCapacity, cpu_capacity
from dsnb.monitor.rates import JobRates, Rates, StageRates, TrainerRates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, Snapshot, TaskStatus, TrainerStatus, WorkerStatus
from dsnb.wire.messages import StageReport


class StageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Stages that the same threads run one after another, summed over all workers."""

    stages: list[tuple[StageReport, StageRates]]
    threads: int

    @property
    def busy(self) -> float:
        """The share of the time that these threads work."""
        return min(1.0, sum(rates.busy for _, rates in self.stages) / self.threads)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The state and rates of one job, and its reader that waits most (`waiting_reader`)."""

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
        """The workers that produce for this job now."""
        names = {task.worker for task in self.running}
        return [worker for worker in self.snapshot.workers if worker.name in names]

    @property
    def other_jobs(self) -> list[JobStatus]:
        """The other jobs for which these workers produce now."""
        names = {worker.name for worker in self.workers}
        return [
            job
            for job in self.snapshot.jobs
            if job.name != self.job.name and any(t.state == "running" and t.worker in names for t in job.tasks)
        ]

    @property
    def stages(self) -> list[tuple[StageReport, StageRates]]:
        return list(zip(self.job.stages, self.job_rates.stages, strict=False))

    @property
    def stage_groups(self) -> list[StageGroup]:
        """The stages by the threads that run them: one group for each parallel stage, one for all others together."""
        alone = [pair for pair in self.stages if pair[0].threads > len(self.workers)]
        serial = [pair for pair in self.stages if pair[0].threads <= len(self.workers)]
        lanes = [StageGroup(stages=[pair], threads=pair[0].threads) for pair in alone]
        return [StageGroup(stages=serial, threads=len(self.workers)), *lanes] if serial and self.workers else lanes

    @property
    def busy(self) -> float:
        """The share of the time that the busiest stage group of the job works."""
        return max((lane.busy for lane in self.stage_groups), default=0.0)

    @property
    def cpu_capacity(self) -> CpuCapacity:
        """The CPUs of the job's workers, and how many are free."""
        return cpu_capacity(self.workers, self.rates)

    @property
    def demand(self) -> float:
        """Elements per second that the readers could consume: the fastest one if they share elements, else the sum."""
        demands = [self.trainer_rates(trainer).demand or 0.0 for trainer in self.job.trainers]
        return max(demands, default=0.0) if self.job.cached else sum(demands)

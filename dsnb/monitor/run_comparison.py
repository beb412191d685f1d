"""What differs between two recorded runs: the rates, waits and operations of their jobs, pair by pair.

Pure: no clock, no service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dsnb.monitor.formatting import format_bytes, format_count, format_duration, format_rate, format_share
from dsnb.monitor.past_jobs import waited_most
from dsnb.monitor.rates import Rates, rates, trainer_rates
from dsnb.monitor.snapshot import JobStatus, Snapshot, TrainerStatus
from dsnb.wire.messages import StageReport

_SAME, _NOTABLE = 0.015, 0.05
"""Relative differences. Below the first, two numbers count as equal; above the second, a change is judged."""
_NOTABLE_POINTS = 0.02
"""The difference of two shares above which it is judged."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One number of both runs.

    Attributes:
        name: What it is.
        unit: How it is formatted: "count", "rate", "share", "duration", "bytes per second" or "CPUs".
        first: Its value in the first run; None if it has none.
        second: Its value in the second run.
        better: Which change is an improvement: "more", "less", or "" if neither.
    """

    name: str
    unit: str
    first: float | None
    second: float | None
    better: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """Both values as text."""
        return self._text(self.first), self._text(self.second)

    @property
    def difference(self) -> str:
        """How the second run differs, as text; empty if a run has no value."""
        if self.first is None or self.second is None:
            return ""
        if self.unit == "share":
            points = round(100 * self.second) - round(100 * self.first)
            return f"{points:+d} points".replace("-", "−") if points else "the same"
        if self.first == self.second:
            return "the same"
        if not self.first:
            return ""
        ratio = self.second / self.first
        if abs(ratio - 1) < _SAME:
            return "about the same"
        return f"{ratio:,.1f} times" if ratio >= 2 else f"{100 * (ratio - 1):+.0f} %".replace("-", "−")

    @property
    def assessment(self) -> str:
        """Whether the second run is "better" or "worse"; empty if the difference is small or means neither."""
        if self.first is None or self.second is None or not self.better:
            return ""
        change = self.second - self.first
        least = _NOTABLE_POINTS if self.unit == "share" else _NOTABLE * max(abs(self.first), abs(self.second))
        if abs(change) <= least:
            return ""
        return "better" if (change > 0) == (self.better == "more") else "worse"

    def _text(self, value: float | None) -> str:
        return "–" if value is None else _FORMATS[self.unit](value)


_FORMATS: dict[str, Callable[[float], str]] = {
    "count": lambda value: format_count(round(value)),
    "rate": format_rate,
    "share": format_share,
    "duration": format_duration,
    "bytes per second": lambda value: f"{format_bytes(value)}/s",
    "CPUs": lambda value: f"{value:.1f}",
}


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one run.

    Attributes:
        job: Its last state.
        first: The snapshot before it produced or delivered its first element.
        last: The snapshot after it produced or delivered its last one.
    """

    job: JobStatus
    first: Snapshot
    last: Snapshot

    @property
    def rates(self) -> Rates | None:
        """The rates while it was read; None if only one moment of that was recorded."""
        between = rates(self.first, self.last)
        return between if between.span_s else None


def job_runs(snapshots: Sequence[Snapshot]) -> dict[str, JobRun]:
    """The jobs of a run by name, each with the time in which its counters grew."""
    found = {job.name: job for snapshot in snapshots for job in snapshot.jobs}
    return {name: _job_run(job, snapshots) for name, job in found.items()}


def _job_run(job: JobStatus, snapshots: Sequence[Snapshot]) -> JobRun:
    counts = [0 if (then := one.job(job.name)) is None else then.produced + then.consumed for one in snapshots]
    moved = [at for at in range(1, len(counts)) if counts[at] > counts[at - 1]]
    first, last = (moved[0] - 1, moved[-1]) if moved else (len(counts) - 1, len(counts) - 1)
    return JobRun(job=job, first=snapshots[first], last=snapshots[last])


def paired(first: dict[str, JobRun], second: dict[str, JobRun]) -> Iterator[tuple[JobRun, JobRun]]:
    """The jobs that are compared: those of the same name, and the only other one of each run."""
    yield from ((first[name], second[name]) for name in first if name in second)
    one, other = [first[name] for name in first if name not in second], [second[n] for n in second if n not in first]
    if len(one) == len(other) == 1:
        yield one[0], other[0]


def job_quantities(first: JobRun, second: JobRun) -> Iterator[Quantity]:
    """What is compared of two jobs."""

    def both(name: str, unit: str, of: Callable[[JobRun], float | None], better: str = "") -> Quantity:
        return Quantity(name=name, unit=unit, first=of(first), second=of(second), better=better)

    yield both("was read for", "duration", lambda run: run.last.time - run.first.time)
    yield both("workers", "count", lambda run: len(run.last.workers))
    yield both("elements produced", "count", lambda run: run.job.produced)
    yield both("elements consumed", "count", lambda run: run.job.consumed)
    yield both("produced per second", "rate", lambda run: _of_job(run, "produced"), "more")
    yield both("consumed per second", "rate", lambda run: _of_job(run, "consumed"), "more")
    yield both("longest wait of a reader", "share", _longest_wait, "less")
    yield both("sent to readers", "bytes per second", lambda run: _of_workers(run, "sent_bytes"))
    yield both("CPUs that workers use", "CPUs", lambda run: _of_workers(run, "used_cpus"))
    yield both("elements skipped", "count", lambda run: sum(one.skipped for one in run.job.trainers), "less")
    yield both("splits lost", "count", lambda run: run.job.lost_splits, "less")


def _of_job(run: JobRun, field: str) -> float | None:
    between = run.rates
    return float(getattr(between.job(run.job.name), field)) if between is not None else None


def _longest_wait(run: JobRun) -> float | None:
    reader = waited_most(run.job)
    return _wait_share(reader) if reader is not None else None


def _wait_share(trainer: TrainerStatus) -> float | None:
    return min(1.0, trainer.wait_ns / trainer.active_ns) if trainer.active_ns else None


def _of_workers(run: JobRun, field: str) -> float | None:
    """The sum of a rate over the workers; thread workers share a process, whose CPUs count once."""
    between = run.rates
    if between is None:
        return None
    keys = {(worker.pid if field == "used_cpus" else worker.uid): worker.uid for worker in run.last.workers}
    return sum(float(getattr(between.worker(uid), field)) for uid in keys.values())


def trainer_quantities(first: JobRun, second: JobRun) -> Iterator[Quantity]:
    """Rates and waits of the trainers with a name; clients without one have an id that differs from run to run."""
    if not (first.job.cached and second.job.cached):
        return
    ids = dict.fromkeys(one.trainer_id for run in (first, second) for one in run.job.trainers)
    for name in ids:
        yield Quantity(
            name=f"{name} consumes",
            unit="rate",
            first=_trainer_rate(first, name),
            second=_trainer_rate(second, name),
            better="more",
        )
        waits = [_wait_share(one) if (one := run.job.trainer(name)) else None for run in (first, second)]
        yield Quantity(name=f"{name} waits", unit="share", first=waits[0], second=waits[1], better="less")


def _trainer_rate(run: JobRun, name: str) -> float | None:
    if run.rates is None or run.job.trainer(name) is None:
        return None
    return trainer_rates(run.rates.job(run.job.name), name).consumed


def stage_quantities(first: JobRun, second: JobRun) -> Iterator[Quantity]:
    """What each operation takes for one element that leaves it; operations with the same name are numbered."""
    one, other = _numbered(first.job.stages), _numbered(second.job.stages)
    for name in dict.fromkeys((*one, *other)):
        yield Quantity(
            name=name,
            unit="duration",
            first=_time_each(one.get(name)),
            second=_time_each(other.get(name)),
            better="less",
        )


def _numbered(stages: Sequence[StageReport]) -> dict[str, StageReport]:
    found: dict[str, StageReport] = {}
    for stage in stages:
        again = sum(name.split(" #")[0] == stage.name for name in found)
        found[f"{stage.name} #{again + 1}" if again else stage.name] = stage
    return found


def _time_each(stage: StageReport | None) -> float | None:
    return stage.busy_ns / 1e9 / stage.elements if stage is not None and stage.elements else None

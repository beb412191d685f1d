"""Metrics: a snapshot as text in the Prometheus exposition format, version 0.0.4.

Theory of operation. `_FAMILIES` declares each metric once: its name, its meaning, and how its value follows from one
worker, job, trainer, operation and so on. `metrics_text` writes all of them, sorted by their labels. Names that end in
`_total` are counters; all others are gauges. Units are seconds, bytes and elements.

A counter may only decrease when what it counts starts again. The totals of the service break this rule: they decrease
when a job is forgotten. `CounterHistory` follows a service from snapshot to snapshot, and `without_decreases` adds what
disappeared. Without a history, the text is exact for its moment, but these totals may decrease.

The text is written here and not by the library prometheus_client: its registries hold counters that a program
increments, whereas all numbers exist already in a snapshot, and `svc.metrics()` must work without optional libraries.

Pure: no clock, no service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dsnb.monitor.formatting import natural_sort_key
from dsnb.monitor.snapshot import JobStatus, OlderJobs, Snapshot
from dsnb.monitor.verdict import Verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the text."""

_WORKER_STATES = ("running", "draining")
_JOB_STATES = ("running", "paused", "idle", "finished")
_SERVICE_COUNTERS = ("produced", "consumed", "lost_splits")
"""Numbers that decrease, summed over all jobs, when a job is forgotten."""
_TEXT_ARGUMENT = re.compile(r"\(['\"].*", re.DOTALL)
# A NUL ends the input of Prometheus' parser, and one label would make the whole text unreadable.
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\0": "\ufffd"})


class _Family(msgspec.Struct, frozen=True):
    """One metric: its name, its help text, and its value for one thing that it measures."""

    name: str
    help: str
    value: Callable[[Any], float]

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def header(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}"


def metrics_text(snapshot: Snapshot, verdicts: Iterable[Verdict] = (), workers_wanted: int | None = None) -> str:
    """The metrics of a snapshot as Prometheus text.

    Args:
        snapshot: The snapshot; of a followed service, the result of `without_decreases`.
        verdicts: The verdicts on its jobs, for the metric `dsnb_verdict`.
        workers_wanted: How many workers its jobs need; None if unknown.
    """
    measured = _measured(snapshot, verdicts)
    measured["need"] = [(measured["service"][0][0], workers_wanted)] if workers_wanted is not None else []
    lines: list[str] = []
    for subject, families in _FAMILIES.items():
        rows = measured[subject]
        for family in families:
            name, value = family.name, family.value
            lines.append(family.header)
            lines += [f"{name}{labels} {value(one)}" for labels, one in rows]
    return "\n".join(lines) + "\n"


# ---- counters that do not decrease


class CounterHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of the latest snapshot of a service, and how much has disappeared from them.

    Attributes:
        started: When the service started; a service that started again has a new history.
        latest: The sums over all jobs as they were in the latest snapshot, by field.
        disappeared: How much each of them decreased in all.
    """

    started: float
    latest: Mapping[str, int]
    disappeared: Mapping[str, int]


def follow(history: CounterHistory | None, snapshot: Snapshot) -> CounterHistory:
    """The history after one more snapshot; `history` is None before the first."""
    latest = {field: _service_total(snapshot, field) for field in _SERVICE_COUNTERS}
    if history is None or history.started != snapshot.started:
        return CounterHistory(started=snapshot.started, latest=latest, disappeared={})
    disappeared = {
        field: history.disappeared.get(field, 0) + max(0, history.latest[field] - value)
        for field, value in latest.items()
    }
    return CounterHistory(started=snapshot.started, latest=latest, disappeared=disappeared)


def without_decreases(history: CounterHistory, snapshot: Snapshot) -> Snapshot:
    """The snapshot that `history` has followed last, with what disappeared from its counters added again."""
    older = snapshot.older or OlderJobs()
    whole = {field: getattr(older, field) + lost for field, lost in history.disappeared.items()}
    return replace(snapshot, older=replace(older, **whole))


def _service_total(snapshot: Snapshot, field: str) -> int:
    """The sum of a field of all jobs, including those that are no longer shown one by one."""
    total: int = sum(getattr(one, field) for one in (*snapshot.jobs, snapshot.older or OlderJobs()))
    return total


# ---- what is measured, with its labels

_Rows = list[tuple[str, Any]]
"""Things of one kind that are measured, each after its labels as text."""


def _measured(snapshot: Snapshot, verdicts: Iterable[Verdict]) -> dict[str, _Rows]:
    """Everything that the metrics of `snapshot` are about, by the keys of `_FAMILIES`."""
    service = f'service="{_escaped(snapshot.service)}"'
    workers = sorted(snapshot.workers, key=lambda worker: natural_sort_key(worker.name))
    jobs = [
        (f"{service},{_label('job_name', job.name)}", job) for job in sorted(snapshot.jobs, key=lambda job: job.name)
    ]
    trainers = [(job, list(_trainers(labels, job))) for labels, job in jobs]
    return {
        "service": [(f"{{{service}}}", snapshot)],
        "worker state": _by_state(service, _WORKER_STATES, (worker.state for worker in workers)),
        "job state": [
            *_by_state(service, _JOB_STATES, (job.state for job in snapshot.jobs)),
            (f'{{{service},state="archived"}}', snapshot.older.jobs if snapshot.older else 0),
        ],
        "worker": [(f"{{{service},{_label('worker', worker.name)}}}", worker) for worker in workers],
        "job": [(f"{{{labels}}}", job) for labels, job in jobs],
        "splits": [row for labels, job in jobs for row in _splits(labels, job)],
        "stage": [
            (f'{{{labels},{_label("stage", _without_text(stage.name))},position="{position}"}}', stage)
            for labels, job in jobs
            for position, stage in enumerate(job.stages)
        ],
        "trainer": [row for _, rows in trainers for row in rows],
        "cached trainer": [row for job, rows in trainers if job.cached for row in rows],
        "verdict": [(labels, 1) for labels in _verdict_labels(service, verdicts)],
    }


def _by_state(service: str, known: Sequence[str], states: Iterable[str]) -> _Rows:
    """How many things are in each state; known states are there with 0 too, so that an alert can compare with it."""
    counts = dict.fromkeys(known, 0)
    for state in states:
        counts[state] = counts.get(state, 0) + 1
    return [(f"{{{service},{_label('state', state)}}}", count) for state, count in counts.items()]


def _splits(labels: str, job: JobStatus) -> Iterator[tuple[str, int]]:
    """The splits of the newest iteration by state, summed over its split providers."""
    if not job.splits:
        return
    done, assigned = sum(one.done for one in job.splits), sum(one.in_hand for one in job.splits)
    # `lost` counts all repetitions; only in the first one is it certain that these splits belong to it.
    lost = sum(one.lost for one in job.splits if one.repetition == 0)
    total = sum(one.total for one in job.splits)
    counts = {"unassigned": max(0, total - done - assigned - lost), "assigned": assigned, "done": done}
    for state, count in counts.items():
        yield f'{{{labels},state="{state}"}}', count


def _trainers(labels: str, job: JobStatus) -> Iterator[tuple[str, Any]]:
    for trainer in sorted(job.trainers, key=lambda trainer: natural_sort_key(trainer.trainer_id)):
        yield f"{{{labels},{_label('trainer', trainer.trainer_id)}}}", trainer


def _verdict_labels(service: str, verdicts: Iterable[Verdict]) -> list[str]:
    """The labels of the verdicts, each once: several trainers of a job may have the same verdict."""
    found = {(verdict.job, verdict.cause, verdict.level) for verdict in verdicts}
    return [
        f"{{{service},{_label('job_name', job)},{_label('cause', cause)},{_label('level', level)}}}"
        for job, cause, level in sorted(found)
    ]


def _without_text(stage: str) -> str:
    """The name of a stage without text arguments: `cache` of `cache('/data/x')`. Labels never have names of files."""
    return _TEXT_ARGUMENT.sub("", stage)


def _label(name: str, value: str) -> str:
    return f'{name}="{_escaped(value)}"'


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)


# ---- the metrics

_FAMILIES: Mapping[str, tuple[_Family, ...]] = {
    "service": (
        _Family(
            "dsnb_service_start_time_seconds",
            "When the dispatcher started, in seconds since the Unix epoch.",
            lambda now: now.started,
        ),
        _Family(
            "dsnb_elements_produced_total",
            "Elements that workers produced, over all jobs.",
            lambda now: _service_total(now, "produced"),
        ),
        _Family(
            "dsnb_elements_consumed_total",
            "Elements that trainers consumed, over all jobs.",
            lambda now: _service_total(now, "consumed"),
        ),
        _Family(
            "dsnb_splits_lost_total",
            "Splits that were lost with their worker, over all jobs.",
            lambda now: _service_total(now, "lost_splits"),
        ),
    ),
    "need": (
        _Family(
            "dsnb_workers_wanted",
            "Workers that the jobs need so that no trainer waits; with autoscaling, within its limits.",
            lambda number: number,
        ),
    ),
    "worker state": (_Family("dsnb_workers", "Workers, by state.", lambda count: count),),
    "job state": (
        _Family("dsnb_jobs", "Jobs, by state; archived ones have no metrics of their own.", lambda count: count),
    ),
    "worker": (
        _Family(
            "dsnb_worker_busy_seconds_total",
            "Time that the worker's pipelines spent working, summed over their threads.",
            lambda worker: worker.busy_ns / 1e9,
        ),
        _Family(
            "dsnb_worker_cpu_seconds_total",
            "CPU time of the worker's process, which thread workers share with others.",
            lambda worker: worker.cpu_ns / 1e9,
        ),
        _Family("dsnb_worker_sent_bytes_total", "Bytes sent to clients.", lambda worker: worker.sent_bytes),
        _Family(
            "dsnb_worker_errors_total",
            "Elements that were replaced by an error.",
            lambda worker: worker.errors,
        ),
        _Family(
            "dsnb_worker_rss_bytes",
            "Resident memory of the worker's process, which thread workers share with others.",
            lambda worker: worker.rss_bytes,
        ),
        _Family("dsnb_worker_cache_bytes", "Elements in memory, in bytes.", lambda worker: worker.cache_bytes),
        _Family(
            "dsnb_worker_cache_capacity_bytes",
            "Maximum of dsnb_worker_cache_bytes.",
            lambda worker: worker.capacity_bytes,
        ),
        _Family("dsnb_worker_readers", "Connections through which clients read.", lambda worker: worker.readers),
        _Family(
            "dsnb_worker_heartbeat_age_seconds",
            "Time since the worker's last report.",
            lambda worker: round(worker.heartbeat_age_s, 6),
        ),
    ),
    "job": (
        _Family(
            "dsnb_job_elements_produced_total",
            "Elements that workers produced for the job, over all epochs.",
            lambda job: job.produced,
        ),
        _Family(
            "dsnb_job_elements_consumed_total",
            "Elements that all trainers of the job consumed, over all epochs.",
            lambda job: job.consumed,
        ),
        _Family(
            "dsnb_job_splits_lost_total",
            "Splits of the job that were lost with their worker.",
            lambda job: job.lost_splits,
        ),
        _Family("dsnb_job_clients", "Iterators that read the job now.", lambda job: job.clients),
        _Family("dsnb_job_epoch", "The newest epoch of the job; the first is 0.", lambda job: job.iteration),
    ),
    "splits": (
        _Family("dsnb_job_splits", "Splits of the newest epoch of a DYNAMIC job, by state.", lambda count: count),
    ),
    "stage": (
        _Family(
            "dsnb_stage_busy_seconds_total",
            "Time spent in one operation of a job's pipeline, summed over workers and threads.",
            lambda stage: stage.busy_ns / 1e9,
        ),
        _Family(
            "dsnb_stage_wait_seconds_total",
            "Time that the operation waited for its input on another thread, or for splits.",
            lambda stage: stage.wait_ns / 1e9,
        ),
        _Family("dsnb_stage_elements_total", "Elements that left the operation.", lambda stage: stage.elements),
    ),
    "trainer": (
        _Family(
            "dsnb_trainer_elements_consumed_total",
            "Elements that the trainer consumed.",
            lambda trainer: trainer.elements,
        ),
        _Family(
            "dsnb_trainer_wait_seconds_total",
            "Time that the trainer's next() calls waited for data.",
            lambda trainer: trainer.wait_ns / 1e9,
        ),
        _Family(
            "dsnb_trainer_decode_seconds_total",
            "Time that the trainer's next() calls spent building elements from received data.",
            lambda trainer: trainer.decode_ns / 1e9,
        ),
        _Family(
            "dsnb_trainer_convert_seconds_total",
            "Time that the trainer's next() calls spent on making tensors and copying them to a device.",
            lambda trainer: trainer.convert_ns / 1e9,
        ),
        _Family(
            "dsnb_trainer_active_seconds_total",
            "Time that the trainer has been reading; the rest of it, after the times above, is its own loop.",
            lambda trainer: trainer.active_ns / 1e9,
        ),
        _Family(
            "dsnb_trainer_lost_total",
            "Elements reported to the trainer as lost with a worker; a split of unknown length counts as one.",
            lambda trainer: trainer.lost,
        ),
        _Family(
            "dsnb_trainer_lost_parts_total",
            "Parts of lost workers of which an unknown number of elements did not reach the trainer.",
            lambda trainer: trainer.lost_parts,
        ),
        _Family("dsnb_trainer_clients", "Iterators that read for the trainer now.", lambda trainer: trainer.clients),
        _Family(
            "dsnb_trainer_lag_elements",
            "Elements that were produced and that the trainer has not consumed.",
            lambda trainer: trainer.lag,
        ),
        _Family(
            "dsnb_trainer_lag_bytes",
            "Size of the elements that were produced and that the trainer has not consumed.",
            lambda trainer: trainer.lag_bytes,
        ),
    ),
    "cached trainer": (
        _Family(
            "dsnb_trainer_cache_hits_total",
            "Elements that were in the cross-trainer cache when the trainer requested them.",
            lambda trainer: trainer.hits,
        ),
        _Family(
            "dsnb_trainer_cache_misses_total",
            "Elements that were produced for the trainer.",
            lambda trainer: trainer.misses,
        ),
        _Family(
            "dsnb_trainer_skipped_elements_total",
            "Elements that were evicted before the trainer read them.",
            lambda trainer: trainer.skipped,
        ),
        _Family(
            "dsnb_trainer_spilled_elements_total",
            "Elements that were sent to the trainer from a worker's disk.",
            lambda trainer: trainer.spilled,
        ),
    ),
    "verdict": (
        _Family(
            "dsnb_verdict",
            "1 for each present verdict on a job; svc.explain() gives the sentence and the remedy.",
            lambda one: one,
        ),
    ),
}
"""All metrics, by what they measure."""

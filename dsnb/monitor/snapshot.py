"""The state of a service at one moment, as `status()`, the dashboard, the demo and the tests read it.

Counters only grow; rates are computed from two snapshots. Times are seconds since the Unix epoch by the dispatcher's
clock; durations are in nanoseconds or seconds, as the field's name says. All classes are frozen, keyword-only and plain
data without cycles, which the garbage collector need not visit (`gc=False`). `VERSION` goes up when a field changes its
meaning. A snapshot and its jobs print as tables.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import fields

from dsnb.arguments import checked, text
from dsnb.wire.field_groups import CacheCounters, JobParameters, TaskProgress, WorkerUse
from dsnb.wire.job_names import qualified_job_name
from dsnb.wire.messages import ClientOrigin, HostUse, LinkReport, StageReport

VERSION = 1
NOT_ENCRYPTED = "connections are not encrypted (tls=False): everybody on the network can read elements and pipelines"


class StatusRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of all parts of a snapshot: prints without what has its default value, and converts to plain data."""

    @checked()
    def to_dict(self) -> dict[str, Any]:
        """The same data as nested dictionaries and lists, as in `json.dumps` or a table.

        Example:
            >>> EventStatus(time=1.0, level="info", text="worker w0 joined").to_dict()
            {'time': 1.0, 'level': 'info', 'text': 'worker w0 joined'}
        """
        return dict(msgspec.json.decode(msgspec.json.encode(self)))  # `to_builtins` would keep tuples

    def __repr__(self) -> str:
        # What every record has comes first, wherever the field was declared.
        ordered = sorted(fields(self), key=lambda field: not field.required)
        told = ((field, getattr(self, field.name)) for field in ordered)
        shown = (f"{field.name}={value!r}" for field, value in told if field.required or value != field.default)
        return f"{type(self).__name__}({', '.join(shown)})"


class CursorStatus(StatusRecord, frozen=True, kw_only=True):
    """How far one trainer has read in one task's sequence.

    Attributes:
        offset: Index of the first element of the task's sequence that the trainer has not consumed.
        lag: Elements from `offset` up to the newest one produced.
        in_flight_ns: Time in which the trainer had not consumed something already sent to it. If it waited during that
            time, it waited for the transfer.
    """

    task_id: str
    worker: str
    offset: int
    lag: int
    in_flight_ns: int = 0


class TrainerStatus(StatusRecord, CacheCounters, frozen=True, kw_only=True):
    """One trainer (or, without the cross-trainer cache, one client) of a job.

    `CacheCounters` in `dsnb/wire/field_groups.py` describes the other fields.

    Attributes:
        trainer_id: The id given in `CrossTrainerCache`, else the client's own id.
        clients: Iterators that read under this id now.
        elements: Elements consumed so far.
        lost: Elements and splits' worth of data reported as lost to this trainer with a worker.
        lost_parts: Parts of lost workers of which an unknown number of elements did not reach it; not in `lost`.
        wait_ns: Time that its `next()` calls spent waiting for data.
        decode_ns: Time that its `next()` calls spent building elements from received data.
        convert_ns: Time that its `next()` calls spent on making tensors of elements and copying them to a device.
        active_ns: Time since it began to read; the rest of it, after these three, is its own loop.
        cursors: How far it has read, task by task.
        lag_bytes: Bytes of the elements that were produced and that it has not consumed, over all tasks.
        on_lag: What happens when it falls behind: "skip", "wait" or "spill"; empty without the cache.
        rate: Elements per second that it consumes at present.
        eviction_in_s: Seconds until it misses elements, at the present rates; 0 if it will miss none.
        evicted_by: Who evicted it, if nothing has begun to read under this id since; empty if nobody did.
        origin: Where its newest client reads: cell, process and host; None until it has reported.
    """

    trainer_id: str
    clients: int
    elements: int
    lost: int = 0
    wait_ns: int = 0
    active_ns: int = 0
    cursors: tuple[CursorStatus, ...] = ()
    lag_bytes: int = 0
    on_lag: str = ""
    rate: float = 0.0
    eviction_in_s: float = 0.0
    decode_ns: int = 0
    convert_ns: int = 0
    evicted_by: str = ""
    origin: ClientOrigin | None = None
    lost_parts: int = 0

    @property
    def lag(self) -> int:
        """Elements that were produced and that this trainer has not consumed, over all tasks."""
        return sum([cursor.lag for cursor in self.cursors])


class TaskStatus(StatusRecord, TaskProgress, frozen=True, kw_only=True):
    """One worker's part of one iteration.

    `TaskProgress` in `dsnb/wire/field_groups.py` describes the other fields.

    Attributes:
        state: "pending" (not read yet), "running", "paused", "ended" (everything produced), "failed".
    """

    task_id: str
    worker: str
    iteration: int
    incarnation: int
    state: str


class SplitStatus(StatusRecord, frozen=True, kw_only=True):
    """One split provider of a DYNAMIC iteration, in its present repetition.

    Attributes:
        source: The operation that is split, such as `range` or `list_files`.
        total: Splits of one repetition.
        done: Splits whose elements have been consumed.
        in_hand: Splits assigned to a task and not done yet.
        lost: Splits that were lost with their worker, over all repetitions.
    """

    source: str
    repetition: int
    total: int
    done: int
    in_hand: int
    lost: int = 0


class GrantStatus(StatusRecord, frozen=True, kw_only=True):
    """A run of consecutive splits that was assigned to a task at once.

    Attributes:
        provider: The split provider, as an index into `JobStatus.splits`.
        first: Index of the first split of the run.
        end: Index after the last split of the run.
        state: "in hand", "done" (all its elements are consumed), "moved" (another worker takes it over), "lost" (with
            its worker) or "dropped" (its iteration was dropped).
        granted_at: When the splits were assigned, in seconds since the Unix epoch.
        ended_at: When the run was done, moved, lost or dropped; 0 while it is in hand.
        reassigned: Whether some of the splits had been assigned before, and were moved or lost.
    """

    worker: str
    task_id: str
    iteration: int
    provider: int
    repetition: int
    first: int
    end: int
    state: str
    granted_at: float
    ended_at: float = 0.0
    reassigned: bool = False


class ShardStatus(StatusRecord, frozen=True, kw_only=True):
    """One worker's share of an iteration in a static mode (FILE, DATA, FILE_OR_DATA, HINT).

    Attributes:
        state: "never begun" (its worker has not joined), "running", "ended", or "lost" (its worker is gone, and another
            one will take it over).
        worker: The worker that produces it now; empty if none does.
    """

    shard: int
    state: str
    worker: str = ""


class ConsumerStatus(StatusRecord, frozen=True, kw_only=True):
    """One consumer of a coordinated read.

    Attributes:
        state: "reading", "joining" (connected, but its first round is not determined yet), "ended" (it has taken all
            rounds), or "absent".
        client_id: Its present or last client; empty if none has joined.
        round: The next round that it will take, by its last report.
        last_change_age_s: Seconds since it last took a round, joined or left.
    """

    index: int
    client_id: str
    state: str
    round: int
    last_change_age_s: float


class RoundsStatus(StatusRecord, frozen=True, kw_only=True):
    """The progress of a coordinated read.

    Attributes:
        round: The first round that not all consumers have taken.
        workers: The workers whose tasks provide rounds, in this order.
        consumers: All consumers, by index.
        halted: Whether all consumers pause until they agree on the workers that provide the next rounds.
        dropped: Rounds that were lost with a worker after some, but not all, consumers had taken them.
        waits_for: What the next round waits for, in words; empty if it waits for nothing.
    """

    round: int
    workers: tuple[str, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    halted: bool = False
    dropped: int = 0
    waits_for: str = ""


class JobStatus(StatusRecord, JobParameters, frozen=True, kw_only=True):
    """One job and its newest iteration.

    `JobParameters` in `dsnb/wire/field_groups.py` describes the other fields.

    Attributes:
        name: The job's name, such as "train"; "images/train" for a job that is read by dataset id; a generated name
            for an anonymous job.
        pipeline: The operations, such as `list_files | map(decode) | batch(32)`.
        iteration: The number of the newest iteration, counted from 0.
        state: "running", "paused", "finished" (the newest iteration has ended), or "idle" (no readers).
        produced: Elements that all tasks produced, over all iterations.
        consumed: Elements that all readers consumed, over all iterations.
        splits: The split providers of the newest iteration, in the mode DYNAMIC.
        shards: The shards of the newest iteration, in the static modes.
        paused_by: The name of the user or program that paused it; empty while it is not paused.
        grants: The newest runs of splits that were assigned to tasks, in the mode DYNAMIC; the oldest first.
        rounds: The rounds of the newest iteration, in a coordinated read; else None.
        links: The transfer of each client and task.
        guarantee: How often each element comes if workers die: "exactly once", "at least once" or "at most once".
        guarantee_reason: Why it is not "exactly once"; empty if it is.
        receipt: What was delivered of its newest epoch that is over, in one line; empty if there is none.
    """

    name: str
    anonymous: bool
    dataset_id: str
    pipeline: str
    iteration: int
    state: str
    clients: int
    produced: int
    consumed: int
    lost_splits: int = 0
    tasks: tuple[TaskStatus, ...] = ()
    trainers: tuple[TrainerStatus, ...] = ()
    splits: tuple[SplitStatus, ...] = ()
    stages: tuple[StageReport, ...] = ()
    shards: tuple[ShardStatus, ...] = ()
    paused_by: str = ""
    grants: tuple[GrantStatus, ...] = ()
    rounds: RoundsStatus | None = None
    links: tuple[LinkReport, ...] = ()
    guarantee: str = ""
    guarantee_reason: str = ""
    receipt: str = ""

    def __repr__(self) -> str:
        from dsnb.monitor.status_text import job_lines  # the tables that it prints are made of the classes of this file

        return "\n".join(job_lines(self))

    def _repr_html_(self) -> str:
        from dsnb.monitor.status_html import job_html

        return job_html(self)

    @property
    def elements_produced(self) -> int:
        """Elements that the pipeline produced, each counted once; the same as `produced`."""
        return self.produced

    @checked(trainer_id=text)
    def trainer(self, trainer_id: str) -> TrainerStatus | None:
        """The trainer with that id; None if it has not read this job."""
        return next((trainer for trainer in self.trainers if trainer.trainer_id == trainer_id), None)


class WorkerStatus(StatusRecord, WorkerUse, frozen=True, kw_only=True):
    """One worker.

    `WorkerUse` in `dsnb/wire/field_groups.py` describes the other fields.

    Attributes:
        state: "running" or "draining"; lost workers are in the events.
        busy_ns: Time that its pipelines spent working, summed over tasks.
        cache_bytes: Bytes of elements that it holds now, over all tasks.
        heartbeat_age_s: Seconds since its last report.
        stderr: The last lines of its standard error, including the output of user code, if the service started it as a
            process.
    """

    state: str = ""
    tasks: int = 0
    produced: int = 0
    sent_elements: int = 0
    sent_bytes: int = 0
    busy_ns: int = 0
    cache_bytes: int = 0
    errors: int = 0
    readers: int = 0
    heartbeat_age_s: float = 0.0
    stderr: tuple[str, ...] = ()


class HostStatus(StatusRecord, HostUse, frozen=True, kw_only=True):
    """A host of workers, by the newest report of one of them.

    `HostUse` in `dsnb/wire/messages.py` describes the other fields.

    Attributes:
        name: Its name, as in `WorkerStatus.host`.
        host_id: Its id, as in `WorkerStatus.host_id`.
    """

    name: str = ""
    host_id: str = ""


class EventStatus(StatusRecord, frozen=True, kw_only=True):
    """An event of the service, in words; `level` is "info" or "warning"."""

    time: float
    level: str
    text: str


class OlderJobs(StatusRecord, frozen=True, kw_only=True):
    """Totals of the finished jobs that are no longer shown one by one.

    Attributes:
        jobs: The number of these jobs.
        produced: Elements that all of them produced.
        consumed: Elements that their readers consumed.
        lost_splits: Splits that were lost with their workers.
    """

    jobs: int = 0
    produced: int = 0
    consumed: int = 0
    lost_splits: int = 0


class AutoscaleStatus(StatusRecord, frozen=True, kw_only=True):
    """The automatic choice of the number of workers, while it is on.

    Attributes:
        minimum: The least number of workers.
        maximum: The greatest number of workers.
        wanted: The number that the jobs need at present, within these limits.
        reason: The last decision, in words; empty before the first.
    """

    minimum: int
    maximum: int
    wanted: int
    reason: str = ""


class Snapshot(StatusRecord, frozen=True, kw_only=True):
    """The whole service at one moment.

    Attributes:
        seq: Goes up by one with each snapshot of one dispatcher.
        time: Seconds since the Unix epoch, by the dispatcher's clock.
        target: The address of the service, such as `grpc://127.0.0.1:5050`.
        jobs: The jobs with readers, and the newest hundred of those without.
        older: Totals of the finished jobs before these. A job that is read again returns to `jobs`.
        scalable: Whether the service starts its workers itself, so that their number can be changed.
        launcher: What starts them, as in "Ray"; empty if the service does not start its workers itself.
        network: "loopback" if only this machine can connect; otherwise "tls", or "plain" if connections are not
            encrypted.
        autoscale: The automatic choice of their number; None while it is off.
        hosts: The hosts of its workers, and how much of their memory and GPUs is in use.
    """

    version: int
    seq: int
    time: float
    service: str
    target: str
    started: float
    workers: tuple[WorkerStatus, ...] = ()
    jobs: tuple[JobStatus, ...] = ()
    events: tuple[EventStatus, ...] = ()
    scalable: bool = False
    launcher: str = ""
    older: OlderJobs | None = None
    network: str = "loopback"
    autoscale: AutoscaleStatus | None = None
    hosts: tuple[HostStatus, ...] = ()

    def __repr__(self) -> str:
        from dsnb.monitor.status_text import status_text

        return status_text(self)

    def _repr_html_(self) -> str:
        from dsnb.monitor.status_html import status_tables, summary

        return f"<p>{summary(self)}</p>{status_tables(self)}"

    @property
    def job_count(self) -> int:
        """The number of jobs that the service knows, including those that are only in the totals."""
        return len(self.jobs) + (self.older.jobs if self.older is not None else 0)

    @checked(name=text)
    def job(self, name: str) -> JobStatus | None:
        """The job of that name, else the only job that has the name within its dataset id; None if there is none."""
        found = [job for job in self.jobs if job.name == name]
        within = [job for job in self.jobs if job.name == qualified_job_name(job.dataset_id, name)]
        return found[0] if found else within[0] if len(within) == 1 else None

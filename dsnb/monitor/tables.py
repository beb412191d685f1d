"""The tables of workers, jobs and trainers, as data: the same words and numbers everywhere.

`WORKER`, `JOB` and `TRAINER` declare all columns. A place that shows a table selects columns by name, and lays the
table out with `text_table` or `html_table`; the dashboard has a layout of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import msgspec
from msgspec.structs import replace

from dsnb.monitor.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_mode,
    format_rate,
    format_share,
    plural,
    wait_level,
)
from dsnb.monitor.rates import JobRates, Rates, TrainerRates, WorkerRates, trainer_rates
from dsnb.monitor.readers import has_name, reader_label, reader_name
from dsnb.monitor.snapshot import JobStatus, TrainerStatus, WorkerStatus

_STALE_REPORT_S = 5.0
_BAR_WIDTH, _STRIP_WIDTH = 10, 24


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell.

    Attributes:
        text: The displayed contents.
        value: The exact value; None if it is the text.
        level: "", "good", "warn" or "bad".
        bar: A share that may be drawn as a bar; None for no bar.
        title: An explanation, for a tooltip.
    """

    text: str
    value: float | int | str | None = None
    level: str = ""
    bar: float | None = None
    title: str | None = None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column.

    Attributes:
        field: The name under which tests and scripts find its cells.
        title: The heading.
        meaning: An explanation of the heading, for a tooltip.
        numeric: Whether it holds numbers, which are aligned right.
    """

    field: str
    title: str
    meaning: str = ""
    numeric: bool = True


_UNKNOWN = Cell(text="–", value=0.0)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One row: the name of what it is about, and a cell for each column."""

    key: str
    cells: tuple[Cell, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Columns and rows, ready to be laid out."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()

    @classmethod
    def of_text(cls, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
        """A table of plain text, aligned left."""
        columns = tuple(Column(field=title, title=title, numeric=False) for title in titles)
        cells = (tuple(Cell(text=text) for text in row) for row in rows)
        return cls(columns=columns, rows=tuple(Row(key=row[0].text, cells=row) for row in cells))


# ---- workers


class _WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerStatus
    rates: WorkerRates | None


def worker_table(workers: Iterable[WorkerStatus], fields: Iterable[str], rates: Rates | None = None) -> Table:
    """A row for each worker.

    Args:
        workers: The workers.
        fields: Names of columns, of `WORKER`. The column "host" is left out if all workers are on one host.
        rates: The rates of the last seconds; None if they are unknown.
    """
    rows = {
        worker.name: _WorkerRow(worker=worker, rates=rates.worker(worker.uid) if rates else None) for worker in workers
    }
    one_host = len({row.worker.host for row in rows.values()}) < 2
    return _table(WORKER, [field for field in fields if field != "host" or not one_host], rows)


def _busy(row: _WorkerRow) -> Cell:
    if row.rates is None:
        return _UNKNOWN
    return Cell(text=format_share(row.rates.busy), value=round(row.rates.busy, 3), bar=row.rates.busy)


def _sent_rate(row: _WorkerRow) -> Cell:
    if row.rates is None:
        return _UNKNOWN
    return Cell(text=f"{format_bytes(row.rates.sent_bytes)}/s", value=round(row.rates.sent_bytes))


def _cpus(row: _WorkerRow) -> Cell:
    if row.rates is None:
        return _UNKNOWN
    used, idle, cpus = row.rates.used_cpus, row.rates.idle_cpus, row.worker.cpus
    host = f"; its host has {cpus}" + (f", {idle:.1f} of them idle" if idle is not None else "") if cpus else ""
    return Cell(text=f"{used:.1f}", value=round(used, 2), title=f"CPUs that its process uses{host}")


def _cache(row: _WorkerRow) -> Cell:
    used, capacity = row.worker.cache_bytes, row.worker.capacity_bytes
    if not capacity:
        return Cell(text=format_bytes(used), value=used)
    return Cell(text=format_bytes(used), value=used, bar=used / capacity, title=f"of {format_bytes(capacity)}")


def _errors(row: _WorkerRow) -> Cell:
    errors = row.worker.errors
    return Cell(text=format_count(errors), value=errors, level="bad" if errors else "")


def _heard(row: _WorkerRow) -> Cell:
    age_s = row.worker.heartbeat_age_s
    return Cell(text=age_text(age_s), level="bad" if age_s > _STALE_REPORT_S else "")


# ---- jobs


class _JobRow(msgspec.Struct, frozen=True, kw_only=True):
    job: JobStatus
    rates: JobRates | None


def job_table(jobs: Iterable[JobStatus], fields: Iterable[str], rates: Rates | None = None) -> Table:
    """A row for each job; the arguments are like those of `worker_table`."""
    rows = {job.name: _JobRow(job=job, rates=rates.job(job.name) if rates else None) for job in jobs}
    return _table(JOB, fields, rows)


def running_first(jobs: Iterable[JobStatus]) -> list[JobStatus]:
    """Jobs in the order in which people look for them: those that are read, then the others; the order is kept else."""
    return sorted(jobs, key=lambda job: job.state == "finished" or not job.clients)


def _job_state(row: _JobRow) -> Cell:
    return Cell(text=row.job.state, title=f"paused by {row.job.paused_by}" if row.job.paused_by else None)


# ---- trainers


class _TrainerRow(msgspec.Struct, frozen=True, kw_only=True):
    job: JobStatus
    trainer: TrainerStatus
    rates: TrainerRates | None


def listed_trainers(job: JobStatus) -> list[TrainerStatus]:
    """The trainers without those that left and had nothing, such as readers that came when a pass was over."""
    return [one for one in job.trainers if one.clients or one.elements or one.skipped or _has_lost(one)]


def has_lost_elements(job: JobStatus) -> bool:
    """Whether elements did not reach a trainer because their worker was lost."""
    return any(map(_has_lost, job.trainers))


def _has_lost(trainer: TrainerStatus) -> bool:
    return trainer.lost > 0 or trainer.lost_parts > 0


def trainer_table(job: JobStatus, fields: Iterable[str], rates: Rates | None = None) -> Table:
    """A row for each trainer of a job, or for each client if its clients share nothing.

    Args:
        job: The job.
        fields: Names of columns, of `TRAINER`.
        rates: The rates of the last seconds; None if they are unknown.
    """
    of_job = rates.job(job.name) if rates else None
    rows = {
        trainer.trainer_id: _TrainerRow(
            job=job, trainer=trainer, rates=trainer_rates(of_job, trainer.trainer_id) if of_job else None
        )
        for trainer in listed_trainers(job)
    }
    return _table(TRAINER | _reader_column(job), fields, rows)


def _share(now: float | None, ns: int, trainer: TrainerStatus, *, judged: bool = False) -> Cell:
    """A share of a trainer's time: of the last seconds, or of all its time if it does not read now."""
    if now is not None:
        level = wait_level(now) if judged else ""
        return Cell(text=format_share(now), value=round(now, 3), level=level, bar=now, title="of the last seconds")
    ever = min(1.0, ns / trainer.active_ns) if trainer.active_ns else None
    return Cell(text=format_share(ever), value=round(ever or 0.0, 3), bar=ever, title="of all its time")


def _waits(row: _TrainerRow) -> Cell:
    return _share(row.rates.wait_share if row.rates else None, row.trainer.wait_ns, row.trainer, judged=True)


def _decodes(row: _TrainerRow) -> Cell:
    return _share(row.rates.decode_share if row.rates else None, row.trainer.decode_ns, row.trainer)


def _converts(row: _TrainerRow) -> Cell:
    return _share(row.rates.convert_share if row.rates else None, row.trainer.convert_ns, row.trainer)


def _own_loop(row: _TrainerRow) -> Cell:
    one = row.trainer
    rest_ns = max(0, one.active_ns - one.wait_ns - one.decode_ns - one.convert_ns)
    return _share(row.rates.own_loop_share if row.rates else None, rest_ns, one)


def _active(row: _TrainerRow) -> Cell:
    seconds = row.trainer.active_ns / 1e9
    return Cell(text=format_duration(seconds), value=round(seconds, 3))


def _skipped(row: _TrainerRow) -> Cell:
    skipped = row.trainer.skipped
    losing = row.rates and row.rates.skipped > 0 and not row.trainer.evicted_by
    return Cell(text=format_count(skipped), value=skipped, level="bad" if losing else "warn" if skipped else "")


def _trainer_name(row: _TrainerRow) -> Cell:
    name, by = row.trainer.trainer_id, row.trainer.evicted_by
    return Cell(text=f"{name} (evicted)" if by else name, value=name, title=f"evicted by {by}" if by else None)


def _client(row: _TrainerRow) -> Cell:
    label = reader_label(row.job, row.trainer)
    return Cell(text=reader_name(row.job, row.trainer), value=row.trainer.trainer_id, title=label)


def _lost(row: _TrainerRow) -> Cell:
    known, parts = row.trainer.lost, row.trainer.lost_parts
    if not parts:
        return Cell(text=format_count(known), value=known)
    text = f"{format_count(known)} + unknown" if known else "unknown"
    return Cell(text=text, value=known, title=f"of {plural(parts, 'part')} of lost workers the number is unknown")


def _skipped_and_lost(row: _TrainerRow) -> Cell:
    cell, lost = _skipped(row), _lost(row)
    if not _has_lost(row.trainer):
        return cell
    return replace(
        cell, text=f"{cell.text} + {lost.text} lost", title=lost.title or f"and {lost.text} lost with a worker"
    )


def _position(row: _TrainerRow) -> Cell:
    """Where a trainer is in the window of the task where it lags most: the newest element is on the right."""
    held = {task.task_id: task.head - task.tail for task in row.job.tasks}
    behind = [cursor.lag / held[cursor.task_id] for cursor in row.trainer.cursors if held.get(cursor.task_id)]
    if not behind:
        return Cell(text="")
    at = round((1 - min(1.0, max(behind))) * (_STRIP_WIDTH - 1))
    return Cell(text=f"▕{'·' * at}▲{'·' * (_STRIP_WIDTH - 1 - at)}▏")


# ---- columns

_Declared = tuple[Column, Callable[[Any], Cell]]
"""A column, and the function that makes its cell of a row."""


def _table(columns: Mapping[str, _Declared], fields: Iterable[str], rows: Mapping[str, Any]) -> Table:
    chosen = [columns[field] for field in fields]
    return Table(
        columns=tuple(column for column, _ in chosen),
        rows=tuple(Row(key=key, cells=tuple(make(row) for _, make in chosen)) for key, row in rows.items()),
    )


def _by_field(*declared: _Declared) -> dict[str, _Declared]:
    return {column.field: (column, make) for column, make in declared}


def _text(field: str, title: str, get: Callable[[Any], str], meaning: str = "") -> _Declared:
    column = Column(field=field, title=title, meaning=meaning, numeric=False)
    return column, lambda row: Cell(text=get(row))


def _count(field: str, title: str, get: Callable[[Any], int], meaning: str = "") -> _Declared:
    column = Column(field=field, title=title, meaning=meaning)
    return column, lambda row: Cell(text=format_count(get(row)), value=get(row))


def _bytes(field: str, title: str, get: Callable[[Any], int], meaning: str = "") -> _Declared:
    column = Column(field=field, title=title, meaning=meaning)
    return column, lambda row: Cell(text=format_bytes(get(row)), value=get(row))


def _per_second(get: Callable[[Any], float], meaning: str) -> _Declared:
    def make(row: Any) -> Cell:
        return _UNKNOWN if row.rates is None else Cell(text=format_rate(get(row)), value=round(get(row), 1))

    return Column(field="rate", title="per s", meaning=meaning), make


WORKER = _by_field(
    _text("worker", "worker", lambda row: row.worker.name, "in the order in which they joined"),
    _text("address", "address", lambda row: row.worker.address),
    _text("host", "host", lambda row: row.worker.host),
    _text("state", "state", lambda row: row.worker.state),
    _text("isolation", "runs as", lambda row: row.worker.isolation),
    (Column(field="busy", title="busy", meaning="seconds of pipeline work per second, over all its tasks"), _busy),
    _count("produced", "produced", lambda row: row.worker.produced, "elements produced, over all jobs"),
    _per_second(lambda row: row.rates.produced, "elements produced per second"),
    _bytes("sent_bytes", "sent", lambda row: row.worker.sent_bytes, "bytes sent to clients"),
    (Column(field="sent_rate", title="sends", meaning="bytes sent to clients per second"), _sent_rate),
    (Column(field="cache_bytes", title="cache", meaning="bytes of elements in memory"), _cache),
    _bytes("capacity_bytes", "cache limit", lambda row: row.worker.capacity_bytes, "the most that the cache may hold"),
    (Column(field="cpus", title="CPUs", meaning="CPUs that its process uses; thread workers share a process"), _cpus),
    _bytes("rss_bytes", "memory", lambda row: row.worker.rss_bytes, "memory of its process"),
    _count("tasks", "tasks", lambda row: row.worker.tasks),
    _count("readers", "readers", lambda row: row.worker.readers),
    (Column(field="errors", title="errors", meaning="elements that were replaced by an error"), _errors),
    (Column(field="heard", title="heard", meaning="age of its last report"), _heard),
)
"""The columns of workers, by field."""

JOB = _by_field(
    _text("job", "job", lambda row: row.job.name),
    (Column(field="state", title="state", numeric=False), _job_state),
    _text("mode", "mode", lambda row: format_mode(row.job.mode), "as in dsnb.distribute"),
    _count("pass", "pass", lambda row: row.job.iteration + 1, "1 is the first pass over the data"),
    _count("clients", "clients", lambda row: row.job.clients, "iterators that read now"),
    _count("produced", "produced", lambda row: row.job.produced, "elements produced, over all passes"),
    _count("consumed", "consumed", lambda row: row.job.consumed, "elements consumed by all clients"),
    _per_second(lambda row: row.rates.produced, "elements produced per second"),
    _count("lost_splits", "lost splits", lambda row: row.job.lost_splits, "splits lost with a worker"),
    _text("pipeline", "pipeline", lambda row: row.job.pipeline),
)
"""The columns of jobs, by field."""

_SKIPPED = Column(field="skipped", title="skipped", meaning="evicted from the window before this trainer read them")
TRAINER = _by_field(
    (
        Column(field="trainer", title="trainer", meaning="the id given in CrossTrainerCache", numeric=False),
        _trainer_name,
    ),
    _count("elements", "elements", lambda row: row.trainer.elements, "consumed so far"),
    _per_second(lambda row: row.rates.consumed, "elements consumed per second"),
    (Column(field="wait", title="waits", meaning="share of its time spent waiting in next()"), _waits),
    (Column(field="decode", title="decodes", meaning="share of its time spent building elements"), _decodes),
    (Column(field="convert", title="converts", meaning="share of its time spent making tensors"), _converts),
    (Column(field="own_loop", title="own loop", meaning="share of its time spent outside of next()"), _own_loop),
    (Column(field="active", title="reads for", meaning="time since it began to read"), _active),
    _count(
        "offset",
        "offset",
        lambda row: sum(cursor.offset for cursor in row.trainer.cursors),
        "first element not consumed, summed over tasks",
    ),
    _count("lag", "lag", lambda row: row.trainer.lag, "produced and not consumed, summed over all workers"),
    _count("hits", "hits", lambda row: row.trainer.hits, "in the cache because another trainer had requested them"),
    _count("misses", "misses", lambda row: row.trainer.misses, "produced for this trainer"),
    (_SKIPPED, _skipped),
    (Column(field="lost", title="lost", meaning="lost with a worker"), _lost),
    (Column(field="position", title="position in the window", numeric=False), _position),
) | {"skipped_and_lost": (_SKIPPED, _skipped_and_lost)}
"""The columns of trainers, by field; `skipped_and_lost` has both counts in one column."""


def _reader_column(job: JobStatus) -> dict[str, _Declared]:
    """The column "trainer" under the name that the job's readers have."""
    if job.cached:
        return {}
    if has_name(job):
        return _by_field(_text("trainer", "consumer", lambda row: row.trainer.trainer_id))
    column = Column(field="trainer", title="client", meaning="the cell, process or host that reads", numeric=False)
    return _by_field((column, _client))


# ---- layouts


def age_text(seconds: float) -> str:
    """An age as text; anything below one second counts as now."""
    return "now" if seconds < 1 else f"{format_duration(seconds)} ago"


def text_table(table: Table, indent: str = "  ") -> list[str]:
    """The table as lines of text in aligned columns; empty without rows."""
    if not table.rows:
        return []
    lines = [[column.title for column in table.columns], *([cell.text for cell in row.cells] for row in table.rows)]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    return [
        indent
        + "  ".join(
            text.rjust(width) if column.numeric else text.ljust(width)
            for text, width, column in zip(line, widths, table.columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def html_table(table: Table, *, bars: bool = False) -> str:
    """The table as HTML that is readable without style sheets or scripts.

    Args:
        table: The table.
        bars: Whether to draw the shares that have a bar, as text.
    """
    top = "".join(f"<th>{escape(column.title)}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_with_bar(cell) if bars else cell.text)}</td>" for cell in row.cells) + "</tr>"
        for row in table.rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _with_bar(cell: Cell) -> str:
    if cell.bar is None:
        return cell.text
    full = round(min(1.0, cell.bar) * _BAR_WIDTH)
    return f"{'█' * full}{'░' * (_BAR_WIDTH - full)} {cell.text}"

"""A self-contained HTML page that shows two recorded runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

import msgspec

from dsnb.monitor.formatting import format_duration
from dsnb.monitor.html_report import date_time, html_page, rates_over_time, verdict_box
from dsnb.monitor.line_chart import Line, line_chart
from dsnb.monitor.run_comparison import (
    JobRun,
    Quantity,
    job_quantities,
    job_runs,
    paired,
    stage_quantities,
    trainer_quantities,
)
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import latest_verdicts

_KINDS = ("made", "used")


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        name: What the page calls it, such as the name of its file.
        snapshots: Its snapshots, the oldest first; at least one.
    """

    name: str
    snapshots: Sequence[Snapshot]


Runs = tuple[RecordedRun, RecordedRun]


def render_comparison(first: RecordedRun, second: RecordedRun) -> str:
    """The page, as HTML: for each job that both runs have, verdicts, rates, waits and operations side by side."""
    runs = first, second
    found = job_runs(first.snapshots), job_runs(second.snapshots)
    pairs = list(paired(*found))
    title = f"{first.name} and {second.name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _side_by_side(_summary(run) for run in runs),
        *(part for pair in pairs for part in _pair(runs, pair)),
    ]
    if not pairs:
        body.append("<p>The runs have no job in common.</p>")
    shown = {(number, run.job.name) for pair in pairs for number, run in enumerate(pair)}
    for number, run in enumerate(runs):
        alone = [name for name in found[number] if (number, name) not in shown]
        if alone:
            body.append(f'<p class="soft">Only in {escape(run.name)}: {escape(", ".join(alone))}</p>')
    return html_page(f"dsnb: {title}", "".join(body))


def _summary(run: RecordedRun) -> str:
    first, last = run.snapshots[0], run.snapshots[-1]
    return (
        f'<h3>{escape(run.name)}</h3><p class="soft">service {escape(last.service)}, from {date_time(first.time)}, '
        f"{format_duration(last.time - first.time)}</p>"
    )


def _pair(runs: Runs, pair: tuple[JobRun, JobRun]) -> Iterator[str]:
    names = dict.fromkeys(one.job.name for one in pair)
    yield f"<h2>Job {escape(' and '.join(names))}</h2>"
    yield _side_by_side(_verdicts(run, one.job.name) for run, one in zip(runs, pair, strict=True))
    yield _chart(runs, pair)
    yield _table("", runs, job_quantities(*pair))
    yield _table("Trainers", runs, trainer_quantities(*pair))
    yield _table("Time of each operation for one element", runs, stage_quantities(*pair))


def _verdicts(run: RecordedRun, job: str) -> str:
    boxes = "".join(verdict_box(one) for one in latest_verdicts(run.snapshots, job))
    none = '<p class="soft">no verdict: it was read for too short a time</p>'
    return f"<h3>{escape(run.name)}</h3>{boxes or none}"


def _chart(runs: Runs, pair: tuple[JobRun, JobRun]) -> str:
    """What both jobs consumed per second, from when each began to be read."""
    lines = []
    for run, one, kind in zip(runs, pair, _KINDS, strict=True):
        within = [then for then in run.snapshots if one.first.time <= then.time <= one.last.time]
        points = tuple((at - one.first.time, its.consumed) for at, its in rates_over_time(one.job.name, within))
        lines.append(Line(name=f"consumed in {run.name}", kind=kind, points=points))
    if min(len(line.points) for line in lines) < 2:
        return ""
    longest = max(at for line in lines for at, _ in line.points)
    return line_chart(lines, ("when reading began", f"{format_duration(longest)} later"))


def _table(title: str, runs: Runs, quantities: Iterable[Quantity]) -> str:
    rows = "".join(map(_row, quantities))
    if not rows:
        return ""
    heads = "".join(f'<th class="number" scope="col">{escape(name)}</th>' for name in (runs[0].name, runs[1].name))
    caption = f"<p>{title}</p>" if title else ""
    return (
        f'{caption}<div class="wide" tabindex="0"><table class="compared"><tr><th scope="col"></th>{heads}'
        f'<th class="number" scope="col">difference</th></tr>{rows}</table></div>'
    )


def _row(one: Quantity) -> str:
    first, second = one.texts
    told = ", ".join(part for part in (one.difference, one.assessment) if part)
    return (
        f'<tr><td>{escape(one.name)}</td><td class="number">{first}</td><td class="number">{second}</td>'
        f'<td class="number {one.assessment}">{told}</td></tr>'
    )


def _side_by_side(parts: Iterable[str]) -> str:
    return f'<div class="two">{"".join(f"<div>{part}</div>" for part in parts)}</div>'

"""The pipeline panel: where the workers' time goes, as each operation's share of all work."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import empty_message, heading
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_count, format_duration, format_rate, format_share, plural
from dsnb.monitor.rates import StageRates
from dsnb.wire.messages import StageReport

_NEGLIGIBLE_WORK = 0.001
"""Below this much work per second, recent shares would be noise; then use all work since the job started."""


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: its share of all work, and whether that share is the largest."""

    stage: StageReport
    rates: StageRates
    share: float
    heaviest: bool


def stages(view: View) -> Html:
    found = rows(view)
    title = heading("Pipeline", "where the workers' time goes")
    if not found:
        return join(title, empty_message("No worker has run a pipeline yet."))
    return join(title, tag("div", *(_draw(row, at) for at, row in enumerate(found)), class_="stages"))


def rows(view: View) -> Sequence[StageRow]:
    """The stages in the order of the data flow, the source first."""
    job = view.job
    if job is None or not job.stages:
        return ()
    now = view.job_rates.stages or tuple(StageRates() for _ in job.stages)
    recent = sum(rates.busy for rates in now) > _NEGLIGIBLE_WORK
    work = [rates.busy if recent else stage.busy_ns for stage, rates in zip(job.stages, now, strict=True)]
    total, most = sum(work) or 1.0, max(work)
    found = [
        StageRow(stage=stage, rates=rates, share=part / total, heaviest=part == most > 0)
        for stage, rates, part in zip(job.stages, now, work, strict=True)
    ]
    return sorted(found, key=lambda row: -row.stage.depth)


def _draw(row: StageRow, at: int) -> Html:
    return tag(
        "div",
        tag("code", row.stage.name, title=row.stage.name),
        tag("span", tag("i", style=f"width:{row.share:.1%}"), tag("em", format_share(row.share)), class_="meter"),
        tag("span", _cost(row.stage), class_="cost"),
        tag("span", _buffer(row.stage), class_="cost"),
        class_="stage heaviest" if row.heaviest else "stage",
        title=_tooltip(row),
        data_stage=at,
        data_value=round(row.share, 3),
        data_key=at,
    )


def _tooltip(row: StageRow) -> str:
    stage = row.stage
    parts = [f"{format_count(stage.elements)} elements, {format_rate(row.rates.elements)}"]
    if stage.threads:
        parts.append(f"{plural(stage.threads, 'thread')} over all workers")
    if stage.capacity:
        parts.append(f"{format_count(stage.buffered)} elements ready, at most {format_count(stage.capacity)}")
    if stage.wait_ns:
        parts.append(f"waited {format_duration(stage.wait_ns / 1e9)} for its input")
    return "; ".join(parts)


def _cost(stage: StageReport) -> str:
    return f"{format_duration(stage.busy_ns / 1e9 / stage.elements)} each" if stage.elements else "–"


def _buffer(stage: StageReport) -> str:
    """The threads that call its function, and the elements that are ready in it."""
    threads = plural(stage.threads, "thread") if stage.threads else ""
    ready = f"{format_count(stage.buffered)} of {format_count(stage.capacity)} ready" if stage.capacity else ""
    return ", ".join(filter(None, (threads, ready)))

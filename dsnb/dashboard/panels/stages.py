"""Where the workers' time goes: each operation of the pipeline with its share of all work."""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.tables import empty, heading
from dsnb.dashboard.view import View
from dsnb.dataclass import dataclass
from dsnb.monitor.rates import StageRates
from dsnb.monitor.snapshot import StageStatus
from dsnb.monitor.words import count, duration, rate, share

_LITTLE = 0.001
"""Less work a second than this is noise: then the shares are of all work since the job began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One operation: its share of all work, and the largest among its fellows."""

    stage: StageStatus
    rates: StageRates
    share: float
    heaviest: bool


def stages(view: View) -> Html:
    """The panel."""
    found = rows(view)
    title = heading("Pipeline", "where the workers' time goes")
    if not found:
        return join(title, empty("No worker has run a pipeline yet."))
    return join(title, tag("div", *(_draw(row, at) for at, row in enumerate(found)), class_="stages"))


def rows(view: View) -> Sequence[StageRow]:
    """The stages in the order of the data: the source first."""
    job = view.job
    if job is None or not job.stages:
        return ()
    now = view.job_rates.stages or tuple(StageRates() for _ in job.stages)
    recent = sum(rates.busy for rates in now) > _LITTLE
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
        tag("span", tag("i", style=f"width:{row.share:.1%}"), tag("em", share(row.share)), class_="meter"),
        tag("span", _cost(row.stage), class_="cost"),
        tag("span", _buffer(row.stage), class_="cost"),
        class_="stage heaviest" if row.heaviest else "stage",
        title=f"{count(row.stage.elements)} elements, {rate(row.rates.elements)}",
        data_stage=at,
        data_value=round(row.share, 3),
        data_key=at,
    )


def _cost(stage: StageStatus) -> str:
    return f"{duration(stage.busy_ns / 1e9 / stage.elements)} each" if stage.elements else "–"


def _buffer(stage: StageStatus) -> str:
    return f"{count(stage.buffered)} of {count(stage.capacity)} ready" if stage.capacity else ""

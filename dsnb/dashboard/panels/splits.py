"""The splits panel in two parts: which worker had which splits, when; and how much of the source is done."""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.tables import empty_message, heading
from dsnb.dashboard.panels.timeline import GrantBar, WorkerRow, rows, shown_span
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_count, format_duration, format_share, format_time
from dsnb.monitor.snapshot import JobStatus, SplitStatus

ORIGIN_STEP_S = 10.0
"""How often the origin of the timeline moves, in seconds; until then finished bars keep their positions."""


def split_timeline(view: View) -> Html:
    """The heading and the timeline. It is by far the longest markup of the page, so it changes seldom, by itself."""
    job = view.job
    drawn = _picture(view, job) if job is not None and job.mode == "DYNAMIC" else None
    return join(heading("Splits", "which worker had which piece of the source, and when"), drawn)


def splits(view: View) -> Html:
    """How much of each source is done."""
    job = view.job
    if job is None:
        return empty_message("No job yet.")
    if job.mode == "OFF":
        return empty_message('With "parallel_epochs", every worker produces the whole dataset, so nothing is split.')
    if not job.splits:
        return empty_message("No split has been asked for yet.")
    return join(*(_bar(split, at) for at, split in enumerate(job.splits)))


def _picture(view: View, job: JobStatus) -> Html | None:
    """The timeline changes once a second, and shows what was known at the start of that second."""
    if view.snapshot is None:
        return None
    now = float(int(view.snapshot.time))
    known = [moment for moment in view.history if moment.snapshot.time <= now]
    found = rows(known, job.name, now - view.selection.span_s, now)
    if not found:
        return None
    span = shown_span(found, now, view.selection.span_s)
    base = now - span - now % ORIGIN_STEP_S
    lines = [_worker_line(row, base, span, now, job) for row in found]
    return tag(
        "div",
        *lines,
        _time_axis(now, span, live=view.replay_position is None and not view.health.stale),
        _legend(found),
        class_="timeline",
    )


def _worker_line(row: WorkerRow, base: float, span: float, now: float, job: JobStatus) -> Html:
    runs = (_grant_bar(run, row.lanes, base, span, job) for run in row.bars)
    moved = f"transform:translateX({(base + span - now) / span:.2%})"
    # When the origin moves, a new key makes a new canvas; otherwise the transform would visibly slide back.
    canvas = tag("div", *runs, class_="canvas", style=moved, data_key=int(base))
    return tag("div", tag("b", row.worker), tag("div", canvas, class_="rail"), class_="line", data_key=row.worker)


def _grant_bar(bar: GrantBar, lanes: int, base: float, span: float, job: JobStatus) -> Html:
    grant = bar.grant
    kind = grant.state.replace(" ", "-")
    marks = [name for name, so in (("straggles", bar.is_straggler), ("again", grant.reassigned)) if so]
    position_style = f"left:{(bar.begin - base) / span:.2%};width:{(bar.end - bar.begin) / span:.2%}"
    lane = f";top:{bar.lane / lanes:.0%};height:{1 / lanes:.0%}" if lanes > 1 else ""
    odd = ["odd"] if grant.repetition % 2 else []
    return tag(
        "i",
        class_=" ".join([kind, *marks, *odd]),
        style=position_style + lane,
        title=_tooltip(bar, job),
        data_key=bar.key,
    )


def _tooltip(bar: GrantBar, job: JobStatus) -> str:
    grant = bar.grant
    if (
        grant.state == "done" and not bar.is_straggler and not grant.reassigned
    ):  # most bars get this short tooltip, and each is sent every second
        return f"{format_count(grant.first)}: {format_duration(bar.end - bar.begin)}"
    source = job.splits[grant.provider].source if grant.provider < len(job.splits) else ""
    which = (
        f"split {format_count(grant.first)}"
        if grant.end - grant.first == 1
        else f"splits {format_count(grant.first)} to {format_count(grant.end - 1)}"
    )
    slow = ", much longer than others" if bar.is_straggler else ""
    again = ", assigned again after a loss" if grant.reassigned else ""
    took = "" if grant.state == "in hand" else f" after {format_duration(bar.end - bar.begin)}"
    return f"{which} of {source}: {grant.state}{took}{slow}{again}"


def _time_axis(now: float, span: float, *, live: bool) -> Html:
    """Times of day below the timeline, in steps that move with it; "now" at the right end of a live page."""
    every = 15.0 * (span // 60) if span >= 60 else span / 3
    ticks = (
        at
        for at in (now - now % every - every * step for step in range(5))
        if now - span <= at <= now - (0.1 if live else 0.16) * span
    )
    shown = (tag("span", format_time(at), style=f"right:{(now - at) / span:.2%}") for at in ticks)
    return tag(
        "div",
        tag("div", *shown, tag("span", "now" if live else format_time(now), class_="now"), class_="clocks"),
        class_="line",
        data_key="clocks",
    )


def _legend(found: Sequence[WorkerRow]) -> Html:
    """A legend of the bar kinds that occur in the timeline."""
    runs = [run for row in found for run in row.bars]
    there = {run.grant.state for run in runs}
    names = {
        "done": "done",
        "in hand": "in hand",
        "lost": "lost with its worker",
        "dropped": "dropped",
        "moved": "moved to another worker",
    }
    keys = [
        tag("span", words, class_=f"key {state.replace(' ', '-')}") for state, words in names.items() if state in there
    ]
    keys += [tag("span", "straggler", class_="key straggles")] if any(run.is_straggler for run in runs) else []
    keys += [tag("span", "given again", class_="key again")] if any(run.grant.reassigned for run in runs) else []
    return tag("div", *keys, class_="keys", data_key="keys")


def bar_shares(split: SplitStatus) -> dict[str, float]:
    """The fractions of the splits that are done, in hand and lost."""
    total = max(split.total, split.done + split.in_hand + split.lost, 1)
    return {"done": split.done / total, "in-hand": split.in_hand / total, "lost": split.lost / total}


def _bar(split: SplitStatus, at: int) -> Html:
    given = _given_share(split)
    pieces = (tag("i", class_=name, style=f"width:{part:.2%}") for name, part in bar_shares(split).items())
    return tag(
        "div",
        tag(
            "div",
            tag("b", split.source),
            _repetition(split),
            tag("span", number(format_share(given), "given", round(given, 4)), class_="far"),
            class_="over",
        ),
        tag(
            "div",
            *pieces,
            class_="progress",
            role="progressbar",
            aria_valuenow=split.done + split.in_hand,
            aria_valuemax=split.total,
            aria_label=f"splits of {split.source} given to workers",
        ),
        _numbers(split),
        class_="provider",
        data_provider=at,
        data_key=at,
    )


def _given_share(split: SplitStatus) -> float:
    """The share of the whole repetition that workers have got. It moves on also while a slow trainer reads the last."""
    return min(1.0, (split.done + split.in_hand) / split.total) if split.total else 0.0


def _repetition(split: SplitStatus) -> Html | None:
    return tag("span", f"repetition {format_count(split.repetition + 1)}", class_="chip") if split.repetition else None


def _numbers(split: SplitStatus) -> Html:
    left = max(0, split.total - split.done - split.in_hand)
    return tag(
        "div",
        tag(
            "span",
            number(format_count(split.done), "done", split.done),
            f" of {format_count(split.total)} done",
            class_="key done",
            title="splits whose elements all trainers have consumed",
        ),
        tag(
            "span",
            number(format_count(split.in_hand), "in_hand", split.in_hand),
            " in hand",
            class_="key in-hand",
            title="splits that a worker has got and that not all trainers have consumed",
        ),
        tag("span", number(format_count(split.lost), "lost", split.lost), " lost", class_="key lost")
        if split.lost
        else None,
        tag("span", f"{format_count(left)} to give", class_="key left"),
        class_="keys",
    )

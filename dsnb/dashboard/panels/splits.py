"""The splits: which worker had which, when, and how far the pass over the data is."""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.tables import empty, heading
from dsnb.dashboard.panels.timeline import Row, Run, rows, span_of
from dsnb.dashboard.view import View
from dsnb.monitor.snapshot import JobStatus, SplitStatus
from dsnb.monitor.words import clock, count, duration, share

STEP_S = 10.0
"""How often the origin of the picture steps on: in between, what is over is drawn where it was."""


def splits(view: View) -> Html:
    """The panel."""
    job = view.job
    drawn = _picture(view, job) if job is not None and job.mode == "DYNAMIC" else None
    return join(heading("Splits", "which worker had which piece of the source, and when"), drawn, _body(job))


def _picture(view: View, job: JobStatus) -> Html | None:
    """The axis of time. It is drawn anew once a second, from what was known at its beginning."""
    if view.snapshot is None:
        return None
    now = float(int(view.snapshot.time))
    known = [moment for moment in view.history if moment.snapshot.time <= now]
    found = rows(known, job.name, now - view.choice.span_s, now)
    if not found:
        return None
    span = span_of(found, now, view.choice.span_s)
    base = now - span - now % STEP_S
    lines = [_line(row, base, span, now, job) for row in found]
    return tag(
        "div",
        *lines,
        _clocks(now, span, live=view.replayed is None and not view.health.stale),
        _meanings(found),
        class_="timeline",
    )


def _line(row: Row, base: float, span: float, now: float, job: JobStatus) -> Html:
    runs = (_run(run, row.lanes, base, span, job) for run in row.runs)
    moved = f"transform:translateX({(base + span - now) / span:.2%})"
    # A canvas whose origin has stepped on is a new one: its transform must not glide back.
    canvas = tag("div", *runs, class_="canvas", style=moved, data_key=int(base))
    return tag("div", tag("b", row.worker), tag("div", canvas, class_="rail"), class_="line", data_key=row.worker)


def _run(run: Run, lanes: int, base: float, span: float, job: JobStatus) -> Html:
    grant = run.grant
    kind = grant.state.replace(" ", "-")
    marks = [name for name, so in (("straggles", run.straggles), ("again", grant.again)) if so]
    place = f"left:{(run.begin - base) / span:.2%};width:{(run.end - run.begin) / span:.2%}"
    lane = f";top:{run.lane / lanes:.0%};height:{1 / lanes:.0%}" if lanes > 1 else ""
    odd = ["odd"] if grant.repetition % 2 else []
    return tag("i", class_=" ".join([kind, *marks, *odd]), style=place + lane, title=_told(run, job), data_key=run.key)


def _told(run: Run, job: JobStatus) -> str:
    grant = run.grant
    if grant.state == "done" and not run.straggles and not grant.again:  # most are so, and each is sent every second
        return f"{count(grant.first)}: {duration(run.end - run.begin)}"
    source = job.splits[grant.source].source if grant.source < len(job.splits) else ""
    which = (
        f"split {count(grant.first)}"
        if grant.end - grant.first == 1
        else f"splits {count(grant.first)} to {count(grant.end - 1)}"
    )
    slow = ", much longer than others" if run.straggles else ""
    anew = ", given again after a loss" if grant.again else ""
    took = "" if grant.state == "in hand" else f" after {duration(run.end - run.begin)}"
    return f"{which} of {source}: {grant.state}{took}{slow}{anew}"


def _clocks(now: float, span: float, *, live: bool) -> Html:
    """The time of day under the picture, in steps that move with it; at the right end `now`, where it is so."""
    every = 15.0 * (span // 60) if span >= 60 else span / 3
    ticks = (
        at
        for at in (now - now % every - every * step for step in range(5))
        if now - span <= at <= now - (0.1 if live else 0.16) * span
    )
    shown = (tag("span", clock(at), style=f"right:{(now - at) / span:.2%}") for at in ticks)
    return tag(
        "div",
        tag("div", *shown, tag("span", "now" if live else clock(now), class_="now"), class_="clocks"),
        class_="line",
        data_key="clocks",
    )


def _meanings(found: Sequence[Row]) -> Html:
    """The keys of what the picture has."""
    runs = [run for row in found for run in row.runs]
    there = {run.grant.state for run in runs}
    names = {
        "done": "done",
        "in hand": "in hand",
        "lost": "lost with its worker",
        "dropped": "given up",
        "moved": "moved to another worker",
    }
    keys = [
        tag("span", words, class_=f"key {state.replace(' ', '-')}") for state, words in names.items() if state in there
    ]
    keys += [tag("span", "straggler", class_="key straggles")] if any(run.straggles for run in runs) else []
    keys += [tag("span", "given again", class_="key again")] if any(run.grant.again for run in runs) else []
    return tag("div", *keys, class_="keys", data_key="keys")


def parts(split: SplitStatus) -> dict[str, float]:
    """What part of the bar is done, in hand and lost."""
    total = max(split.total, split.done + split.in_hand + split.lost, 1)
    return {"done": split.done / total, "in-hand": split.in_hand / total, "lost": split.lost / total}


def _body(job: JobStatus | None) -> Html:
    if job is None:
        return empty("No job yet.")
    if job.mode == "OFF":
        return empty("Mode OFF: every worker produces the whole dataset, so nothing is split.")
    if not job.splits:
        return empty("No split has been asked for yet.")
    return join(*(_bar(split, at) for at, split in enumerate(job.splits)))


def _bar(split: SplitStatus, at: int) -> Html:
    pieces = (tag("i", class_=name, style=f"width:{part:.2%}") for name, part in parts(split).items())
    return tag(
        "div",
        tag(
            "div",
            tag("b", split.source),
            _repetition(split),
            tag("span", share(_done(split)), class_="far"),
            class_="over",
        ),
        tag("div", *pieces, class_="progress", role="progressbar", aria_valuenow=split.done, aria_valuemax=split.total),
        _numbers(split),
        class_="provider",
        data_provider=at,
        data_key=at,
    )


def _done(split: SplitStatus) -> float:
    return split.done / split.total if split.total else 0.0


def _repetition(split: SplitStatus) -> Html | None:
    return tag("span", f"repetition {count(split.repetition + 1)}", class_="chip") if split.repetition else None


def _numbers(split: SplitStatus) -> Html:
    left = max(0, split.total - split.done - split.in_hand)
    return tag(
        "div",
        tag("span", number(count(split.done), "done", split.done), f" of {count(split.total)} done", class_="key done"),
        tag("span", number(count(split.in_hand), "in_hand", split.in_hand), " in hand", class_="key in-hand"),
        tag("span", number(count(split.lost), "lost", split.lost), " lost", class_="key lost") if split.lost else None,
        tag("span", f"{count(left)} to give", class_="key left"),
        class_="keys",
    )

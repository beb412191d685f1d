"""The waiting panel: each trainer's time, split into its own steps and its waits, the latter by cause.

Measured are the time that a trainer's `next()` waits, how busy each worker is, and in which operation. Waiting is
attributed to operations in proportion to how busy the workers are; the rest is transfer: the network, a client, or
workers that did not get a request in time. The columns show the wait share over time, in steps that are aligned to the
clock and therefore equal on all pages, so that a page draws each column once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dsnb.dashboard.feed import RateSample
from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.tables import empty_message, heading, reader_markup
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import BAD_WAIT_SHARE, format_share, wait_level
from dsnb.monitor.rates import trainer_rates
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.tables import listed_trainers

COLUMN_COUNT = 30
"""Columns in the history chart: two seconds each for the last minute, ten for the last five."""

_NAMED_OPERATIONS = 2
"""How many operations are named as causes of waiting; the rest is summed up as "other operations"."""

_HEIGHT, _COLUMN_WIDTH = 24, 4


class TimeShare(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a trainer's time.

    Attributes:
        kind: "own" (its steps), "decode" (unpacking received elements), "op0", "op1", "ops" (waits while workers run
            operations), "idle" (waits while workers are idle) or "fellow" (waits for another consumer's step).
        name: What the time is spent on, as text.
        share: The fraction of the time, 0 to 1.
    """

    kind: str
    name: str
    share: float


def waits(view: View) -> Html:
    job = view.job
    title = heading("Waiting", "where each trainer's time goes")
    if job is None or not job.trainers:
        return join(title, empty_message("Nothing has been read yet, so nothing has waited." if job else "No job yet."))
    wait_shares = blocking_consumers(view, job) or wait_causes(view, job)
    rows = (_row(view, job, trainer, wait_shares) for trainer in listed_trainers(job))
    unpacks = any((trainer_rates(view.job_rates, t.trainer_id).decode_share or 0) >= 0.02 for t in job.trainers)
    return join(title, tag("div", *rows, class_="waits"), _legend(wait_shares, unpacks=unpacks))


def blocking_consumers(view: View, job: JobStatus) -> tuple[TimeShare, ...]:
    """The consumers that the others wait for in a coordinated read: those that do not wait themselves."""
    if job.rounds is None:
        return ()
    known = [(t.trainer_id, trainer_rates(view.job_rates, t.trainer_id).wait_share) for t in job.trainers]
    slow = [trainer for trainer, wait in known if wait is not None and wait <= BAD_WAIT_SHARE]
    held = any(wait > BAD_WAIT_SHARE for _, wait in known if wait is not None)
    return (TimeShare(kind="fellow", name=" and ".join(slow), share=1.0),) if slow and held else ()


def wait_causes(view: View, job: JobStatus) -> tuple[TimeShare, ...]:
    """How the workers of a job spent the last seconds, as fractions: two heaviest operations, the others, idle."""
    stages = [(stage.name, rates.busy) for stage, rates in zip(job.stages, view.job_rates.stages, strict=False)]
    total = sum(busy for _, busy in stages)
    running = len({task.worker for task in job.tasks if task.state == "running"})
    busy = min(1.0, total / running) if running else 0.0
    ranked = sorted(stages, key=lambda pair: -pair[1]) if total else []
    parts = [
        TimeShare(kind=f"op{at}", name=name, share=busy * work / total)
        for at, (name, work) in enumerate(ranked[:_NAMED_OPERATIONS])
        if work > 0.02 * total
    ]
    rest = busy - sum(part.share for part in parts)
    return (
        *parts,
        TimeShare(kind="ops", name="other operations", share=max(0.0, rest)),
        TimeShare(kind="idle", name="hand-over, with workers idle", share=1 - busy),
    )


def time_shares(
    wait: float, decode: float, wait_shares: Sequence[TimeShare], convert: float = 0.0
) -> tuple[TimeShare, ...]:
    """Split a trainer's time into fractions that add up to one."""
    own = TimeShare(kind="own", name="its own steps", share=max(0.0, 1 - wait - decode - convert))
    unpacking = TimeShare(kind="decode", name="unpacking", share=min(decode, 1 - wait))
    converting = TimeShare(kind="decode", name="making tensors", share=max(0.0, min(convert, 1 - wait - decode)))
    return (
        own,
        unpacking,
        *((converting,) if convert else ()),
        *(TimeShare(kind=part.kind, name=part.name, share=wait * part.share) for part in wait_shares),
    )


def wait_history(history: Iterable[RateSample], job: str, trainer_id: str, span_s: int) -> list[tuple[int, float]]:
    """The mean wait share in each time step, with the step's number; steps are aligned to the wall clock."""
    step = span_s / COLUMN_COUNT
    sums: dict[int, tuple[float, int]] = {}
    for moment in history:
        wait = trainer_rates(moment.rates.job(job), trainer_id).wait_share
        if wait is not None:
            at = int(moment.wall_time / step)
            total, count = sums.get(at, (0.0, 0))
            sums[at] = total + wait, count + 1
    return [(at, total / count) for at, (total, count) in sums.items()]


def _row(view: View, job: JobStatus, trainer: TrainerStatus, wait_shares: Sequence[TimeShare]) -> Html:
    rates = trainer_rates(view.job_rates, trainer.trainer_id)
    wait = rates.wait_share
    level = "" if wait is None else wait_level(wait)
    wait_text = tag("span", "not reading now", class_="unit")
    if wait is not None:
        wait_text = join(number(format_share(wait), "wait", round(wait, 3)), tag("span", " waiting", class_="unit"))
    return tag(
        "div",
        tag("div", tag("i", class_="dot"), reader_markup(job, trainer), class_="who"),
        _history_chart(view, job, trainer),
        _bar(time_shares(wait, rates.decode_share or 0.0, wait_shares, rates.convert_share or 0.0))
        if wait is not None
        else tag("div", class_="time"),
        tag("div", wait_text, class_=f"told {level}"),
        class_=f"wait {view.colour_class(trainer.trainer_id)}",
        data_key=trainer.trainer_id,
        data_waits=trainer.trainer_id,
    )


def _bar(found: Sequence[TimeShare]) -> Html:
    pieces = (
        tag("i", class_=part.kind, style=f"width:{part.share:.1%}", title=f"{part.name}: {format_share(part.share)}")
        for part in found
    )
    return tag("div", *pieces, class_="time", role="img", aria_label=_description(found))


def _description(found: Sequence[TimeShare]) -> str:
    return ", ".join(f"{part.name} {format_share(part.share)}" for part in found if part.share >= 0.005)


def _history_chart(view: View, job: JobStatus, trainer: TrainerStatus) -> Html:
    found = wait_history(view.history, job.name, trainer.trainer_id, view.selection.span_s)
    newest = max((at for at, _ in found), default=0)
    drawn = "".join(
        f"M{(COLUMN_COUNT - 1 - newest + at) * _COLUMN_WIDTH + 2} {_HEIGHT}v{-max(1, round(wait * _HEIGHT))}"
        for at, wait in found
        if newest - at < COLUMN_COUNT
    )
    line = f"M0 {_HEIGHT * (1 - BAD_WAIT_SHARE):.1f}h{COLUMN_COUNT * _COLUMN_WIDTH}"
    words = tag("title", f"share of waiting over the last {view.selection.span_s // 60} min; the line is at 10 %")
    return tag(
        "svg",
        words,
        tag("path", d=line, class_="limit"),
        tag("path", d=drawn, class_="columns"),
        viewBox=f"0 0 {COLUMN_COUNT * _COLUMN_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        class_="past",
        role="img",
    )


def _legend(wait_shares: Sequence[TimeShare], *, unpacks: bool) -> Html:
    keys = [tag("span", "its own steps", class_="key own")]
    keys += [tag("span", "unpacking what came", class_="key decode")] if unpacks else []
    keys += [tag("span", _part_label(part), class_=f"key {part.kind}") for part in wait_shares if part.share >= 0.02]
    return tag("div", *keys, class_="keys")


def _part_label(part: TimeShare) -> Html:
    if part.kind in {"op0", "op1"}:
        return join("waits for ", tag("code", part.name))
    return join(f"waits for {part.name}")

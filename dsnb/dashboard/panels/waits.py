"""Each trainer's time: its own steps, and its waits by what the workers did meanwhile.

What is measured is how long a trainer's `next()` waited, how long each worker was busy, and with which operation. So a
wait is laid at the door of operations as far as the workers were busy, and the rest is hand-over: a link, a client, or
workers that were not asked in time. The columns show the share of waiting over time, in steps that are the same for
all pages and do not move, so that a page draws a column once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsnb.dashboard.feed import Moment
from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.tables import empty, heading, name
from dsnb.dashboard.view import View, colour
from dsnb.dataclass import dataclass
from dsnb.monitor.rates import trainer_rates
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.words import WAITS_MUCH, level_of, share

COLUMNS = 30
"""Of the picture of the past: two seconds each in the last minute, ten in the last five."""

_NAMED = 2
"""Operations that a wait is laid to by name; the others together are "others"."""

_HIGH, _WIDE = 24, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a trainer's time.

    Attributes:
        kind: "own" (its steps), "decode" (making elements of what came), "op0", "op1", "ops" (waits while workers run
            operations), "idle" (waits while they do not) or "fellow" (waits for another consumer's step).
    """

    kind: str
    name: str
    share: float


def waits(view: View) -> Html:
    """The panel."""
    job = view.job
    title = heading("Waiting", "where each trainer's time goes")
    if job is None or not job.trainers:
        return join(title, empty("Nobody has read yet, so nobody has waited." if job else "No job yet."))
    blame = fellows(view, job) or causes(view, job)
    rows = (_row(view, job, trainer, blame) for trainer in job.trainers)
    unpacks = any((trainer_rates(view.job_rates, t.trainer_id).decode_share or 0) >= 0.02 for t in job.trainers)
    return join(title, tag("div", *rows, class_="waits"), _legend(blame, unpacks=unpacks))


def fellows(view: View, job: JobStatus) -> tuple[Part, ...]:
    """Whom the others wait for in a coordinated read: the consumers that do not wait themselves."""
    if job.rounds is None:
        return ()
    known = [(t.trainer_id, trainer_rates(view.job_rates, t.trainer_id).wait_share) for t in job.trainers]
    slow = [trainer for trainer, wait in known if wait is not None and wait <= WAITS_MUCH]
    held = any(wait > WAITS_MUCH for _, wait in known if wait is not None)
    return (Part(kind="fellow", name=" and ".join(slow), share=1.0),) if slow and held else ()


def causes(view: View, job: JobStatus) -> tuple[Part, ...]:
    """What the workers of a job did of late, as parts of one: the two heaviest operations, the others, nothing."""
    stages = [(stage.name, rates.busy) for stage, rates in zip(job.stages, view.job_rates.stages, strict=False)]
    total = sum(busy for _, busy in stages)
    running = len({task.worker for task in job.tasks if task.state == "running"})
    busy = min(1.0, total / running) if running else 0.0
    ranked = sorted(stages, key=lambda pair: -pair[1]) if total else []
    parts = [
        Part(kind=f"op{at}", name=name, share=busy * work / total)
        for at, (name, work) in enumerate(ranked[:_NAMED])
        if work > 0.02 * total
    ]
    rest = busy - sum(part.share for part in parts)
    return (
        *parts,
        Part(kind="ops", name="other operations", share=max(0.0, rest)),
        Part(kind="idle", name="hand-over, with workers idle", share=1 - busy),
    )


def parts(wait: float, decode: float, blame: Sequence[Part]) -> tuple[Part, ...]:
    """A trainer's time, as parts of one that add up to it."""
    own = Part(kind="own", name="its own steps", share=max(0.0, 1 - wait - decode))
    unpacking = Part(kind="decode", name="unpacking", share=min(decode, 1 - wait))
    return (own, unpacking, *(Part(kind=part.kind, name=part.name, share=wait * part.share) for part in blame))


def columns(history: Iterable[Moment], job: str, trainer_id: str, span_s: int) -> list[tuple[int, float]]:
    """The share of waiting over time: the number of each step of the clock, and the mean in it."""
    step = span_s / COLUMNS
    sums: dict[int, tuple[float, int]] = {}
    for moment in history:
        wait = trainer_rates(moment.rates.job(job), trainer_id).wait_share
        if wait is not None:
            at = int(moment.wall / step)
            total, count = sums.get(at, (0.0, 0))
            sums[at] = total + wait, count + 1
    return [(at, total / count) for at, (total, count) in sums.items()]


def _row(view: View, job: JobStatus, trainer: TrainerStatus, blame: Sequence[Part]) -> Html:
    rates = trainer_rates(view.job_rates, trainer.trainer_id)
    wait = rates.wait_share
    level = "" if wait is None else level_of(wait)
    told = tag("span", "not reading now", class_="unit")
    if wait is not None:
        told = join(number(share(wait), "wait", round(wait, 3)), tag("span", " waiting", class_="unit"))
    return tag(
        "div",
        tag("div", tag("i", class_="dot"), name(trainer.trainer_id), class_="who"),
        _past(view, job, trainer),
        _bar(parts(wait, rates.decode_share or 0.0, blame)) if wait is not None else tag("div", class_="time"),
        tag("div", told, class_=f"told {level}"),
        class_=f"wait {colour(job, trainer.trainer_id)}",
        data_key=trainer.trainer_id,
        data_waits=trainer.trainer_id,
    )


def _bar(found: Sequence[Part]) -> Html:
    pieces = (
        tag("i", class_=part.kind, style=f"width:{part.share:.1%}", title=f"{part.name}: {share(part.share)}")
        for part in found
    )
    return tag("div", *pieces, class_="time", role="img", aria_label=_said(found))


def _said(found: Sequence[Part]) -> str:
    return ", ".join(f"{part.name} {share(part.share)}" for part in found if part.share >= 0.005)


def _past(view: View, job: JobStatus, trainer: TrainerStatus) -> Html:
    found = columns(view.history, job.name, trainer.trainer_id, view.choice.span_s)
    newest = max((at for at, _ in found), default=0)
    drawn = "".join(
        f"M{(COLUMNS - 1 - newest + at) * _WIDE + 2} {_HIGH}v{-max(1, round(wait * _HIGH))}"
        for at, wait in found
        if newest - at < COLUMNS
    )
    line = f"M0 {_HIGH * (1 - WAITS_MUCH):.1f}h{COLUMNS * _WIDE}"
    words = tag("title", f"share of waiting over the last {view.choice.span_s // 60} min; the line is at 10 %")
    return tag(
        "svg",
        words,
        tag("path", d=line, class_="limit"),
        tag("path", d=drawn, class_="columns"),
        viewBox=f"0 0 {COLUMNS * _WIDE} {_HIGH}",
        preserveAspectRatio="none",
        class_="past",
        role="img",
    )


def _legend(blame: Sequence[Part], *, unpacks: bool) -> Html:
    keys = [tag("span", "its own steps", class_="key own")]
    keys += [tag("span", "unpacking what came", class_="key decode")] if unpacks else []
    keys += [tag("span", _named(part), class_=f"key {part.kind}") for part in blame if part.share >= 0.02]
    return tag("div", *keys, class_="keys")


def _named(part: Part) -> Html:
    if part.kind in {"op0", "op1"}:
        return join("waits for ", tag("code", part.name))
    return join(f"waits for {part.name}")

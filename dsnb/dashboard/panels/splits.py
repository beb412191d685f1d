"""How far a pass over the data is: splits done, in hand and lost, for each source that is split."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.tables import empty, heading
from dsnb.dashboard.view import View
from dsnb.dashboard.words import count, share
from dsnb.monitor.snapshot import JobStatus, SplitStatus


def splits(view: View) -> Html:
    """The panel."""
    return join(heading("Splits", "the pieces of the source that workers are given"), _body(view.job))


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

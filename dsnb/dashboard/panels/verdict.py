"""The verdict panel: the same sentences as `svc.explain()`, the notebook card and `dsnb top`."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import LEVEL_SIGNS
from dsnb.monitor.verdict import Verdict, latest_verdicts

MAX_VERDICTS = 3


def verdict(view: View) -> Html:
    """The panel; empty while there is no verdict."""
    return join(*(verdict_line(found) for found in job_verdicts(view)))


def job_verdicts(view: View) -> tuple[Verdict, ...]:
    """The verdicts on the job that is shown, over the last seconds in which it was read; the worst first.

    A job without a name disappears with its last reader. If no other job is left to show, the verdict on it stays.
    """
    if view.health.stale:
        return ()
    snapshots = view.last_read or [sample.snapshot for sample in view.history]
    return latest_verdicts(snapshots, view.job.name if view.job else None)[:MAX_VERDICTS]


def verdict_line(found: Verdict) -> Html:
    """One verdict as markup, with its advice."""
    return tag(
        "article",
        tag("i", LEVEL_SIGNS[found.level], class_="sign", aria_hidden="true"),
        tag("p", tag("b", found.text), tag("span", *_with_code(found.remedy)) if found.remedy else None),
        class_=f"card verdict {found.level}",
        data_level=found.level,
        data_verdict=found.cause,
        data_key=f"{found.cause}.{found.subject}",
    )


def _with_code(text: str) -> list[Html]:
    """The text as markup; parts in backticks become code."""
    return [tag("code", part) if at % 2 else join(part) for at, part in enumerate(text.split("`"))]

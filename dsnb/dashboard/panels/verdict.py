"""What limits the job and what to change: the same words as `svc.explain()`, the card in a cell and `dsnb top`."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.view import View
from dsnb.monitor.verdict import Verdict, verdicts
from dsnb.monitor.words import SIGNS

MOST = 3


def verdict(view: View) -> Html:
    """The panel; nothing while there is nothing to say."""
    return join(*(_line(found) for found in of_job(view)))


def of_job(view: View) -> tuple[Verdict, ...]:
    """What can be said of the job that is shown, the worst first."""
    if view.job is None or view.health.stale or len(view.recent) < 2:
        return ()
    found = verdicts(view.recent[0].snapshot, view.recent[-1].snapshot)
    return tuple(one for one in found if one.job == view.job.name)[:MOST]


def _line(found: Verdict) -> Html:
    return tag(
        "article",
        tag("i", SIGNS[found.level], class_="sign", aria_hidden="true"),
        tag("p", tag("b", found.text), tag("span", *_prose(found.remedy)) if found.remedy else None),
        class_=f"card verdict {found.level}",
        data_level=found.level,
        data_verdict=found.cause,
        data_key=f"{found.cause}.{found.subject}",
    )


def _prose(text: str) -> list[Html]:
    """Words, and code where they stand between backticks."""
    return [tag("code", part) if at % 2 else join(part) for at, part in enumerate(text.split("`"))]

"""`DataService.explain`: the verdicts on a service's jobs, as a cell shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, is_read, latest_verdicts
from dsnb.notebook.display import verdicts_html

_NO_VERDICT_TEXT = "Not enough data yet: no job was read for long enough to judge it."


class Explanation(tuple[Verdict, ...]):
    """Verdicts as a tuple, the worst first, that prints as sentences.

    Example:
        >>> Explanation()
        Not enough data yet: no job was read for long enough to judge it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or _NO_VERDICT_TEXT

    def _repr_html_(self) -> str:
        return verdicts_html(self) or f"<p>{_NO_VERDICT_TEXT}</p>"


def explain_over(
    status: Callable[[], Snapshot], seconds: float, history: Callable[[], Sequence[Snapshot]] = tuple
) -> Explanation:
    """Take two snapshots of a service, `seconds` apart, and return the verdicts on what happened in between.

    If nothing was read meanwhile, or not for long enough, the verdicts are those on the end of the run, as the report
    has them.

    Args:
        status: Returns the present snapshot.
        seconds: The time between the two.
        history: Returns what is known of the run until now, the oldest first.
    """
    before = status()
    time.sleep(seconds)
    after = status()
    if is_read(after, None) and (now := latest_verdicts([before, after])):
        return Explanation(now)
    known = sorted([*history(), before, after], key=lambda snapshot: snapshot.time)
    return Explanation(latest_verdicts(known))

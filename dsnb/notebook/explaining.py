"""`DataService.explain`: the verdicts on a service's jobs, as a cell shows them."""

from __future__ import annotations

import time
from collections.abc import Callable

from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, verdicts
from dsnb.notebook.display import verdicts_html

_NO_VERDICT_TEXT = "No job was read long enough to say anything of it."


class Explanation(tuple[Verdict, ...]):
    """Verdicts as a tuple, the worst first, that prints as sentences.

    Example:
        >>> Explanation()
        No job was read long enough to say anything of it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or _NO_VERDICT_TEXT

    def _repr_html_(self) -> str:
        return verdicts_html(self) or f"<p>{_NO_VERDICT_TEXT}</p>"


def explain_over(status: Callable[[], Snapshot], seconds: float) -> Explanation:
    """Take two snapshots of a service, `seconds` apart, and return the verdicts on what happened in between."""
    before = status()
    time.sleep(seconds)
    return Explanation(verdicts(before, status()))

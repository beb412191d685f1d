"""What the demo says and does while it runs: a new verdict, when to add a worker, when it is over. Pure.

The first worker is added after a fixed time, or with the first verdict if that comes later, whatever the verdict: that
is the demonstration. Further ones are added only while the verdict still recommends it, as a user would.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dsnb.monitor.formatting import LEVEL_SIGNS
from dsnb.monitor.verdict import Verdict

FIRST_ADDED_AFTER_S = 8.0
NEXT_ADDED_AFTER_S = 6.0
"""Seconds between two added workers: a verdict is about the last few seconds, so the effect takes some to show."""
MAX_ADDED = 3
MAX_S = 120.0
"""How long the demo runs at most if nobody watches it on a terminal. For slow and busy machines: on
others, both trainers have learned long before."""
_MORE_WORKERS_HELP = frozenset({"operation", "workers"})


class Pace(msgspec.Struct, kw_only=True):
    """When the demo adds workers and when it ends; `seconds` is None for a demo that runs until it is stopped.

    Example:
        >>> verdict = Verdict(level="good", cause="none", job="digits", text="Not input-bound.")
        >>> pace = Pace(limit_s=30.0)
        >>> pace.adds_worker(9.0, verdict), pace.adds_worker(9.5, verdict)
        (True, False)
    """

    limit_s: float | None
    ends_when_learned: bool = False
    added: int = 0
    last_added_s: float = 0.0

    def adds_worker(self, seconds: float, verdict: Verdict | None) -> bool:
        """Whether to add a worker now; counts it as added."""
        if self.added == 0:
            due = seconds >= FIRST_ADDED_AFTER_S and verdict is not None
        else:
            due = (
                self.added < MAX_ADDED
                and seconds >= self.last_added_s + NEXT_ADDED_AFTER_S
                and verdict is not None
                and verdict.level == "bad"
                and verdict.cause in _MORE_WORKERS_HELP
            )
        if due:
            self.added, self.last_added_s = self.added + 1, seconds
        return due

    def is_over(self, seconds: float, *, learned: bool) -> bool:
        """Whether the demo ends now: its time is up, or everything was shown and both trainers have learned."""
        if self.limit_s is not None and seconds >= self.limit_s:
            return True
        shown = self.added > 0 and seconds >= self.last_added_s + NEXT_ADDED_AFTER_S
        return self.ends_when_learned and learned and shown


class Narrator:
    """Turns verdicts into lines, each only when it is news."""

    def __init__(self) -> None:
        self._said: tuple[str, str, str] | None = None

    def line_about(self, found: Sequence[Verdict]) -> str | None:
        """The line for the worst verdict; None if it was the last one too, or there is none."""
        worst = found[0] if found else None
        if worst is None or (worst.level, worst.cause, worst.subject) == self._said:
            return None
        self._said = worst.level, worst.cause, worst.subject
        return f"\n{LEVEL_SIGNS[worst.level]} {worst}\n"

"""How to run the demo."""

from __future__ import annotations

from typing import Literal

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How to run the demo.

    Attributes:
        workers: Workers of the service.
        isolation: "thread" for workers in this process, "process" for workers in processes of their own.
        batches: Each trainer reads at least so many batches.
        accuracy: What each has to reach on the held-out digits, 0 to 1.
        deadline: Seconds after which training counts as failed.
        dashboard: Whether to serve the dashboard meanwhile.
        hold: Seconds to keep the service and the dashboard open at the end, to look at them.
        record: A file to keep what the dashboard shows in; empty for none.

    Example:
        >>> DemoOptions(batches=100, dashboard=False).workers
        2
    """

    workers: int = 2
    isolation: Literal["thread", "process"] = "thread"
    batches: int = 1200
    accuracy: float = 0.92
    deadline: float = 120.0
    dashboard: bool = True
    hold: float = 0.0
    record: str = ""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("batches", 1), ("deadline", 0), ("hold", 0)):
            self._check(name, getattr(self, name) >= least, f"it must be {least} or more")
        self._check("accuracy", 0 <= self.accuracy <= 1, "it is a part of one, as in 0.92")

    def _check(self, name: str, fits: bool, rule: str) -> None:
        if not fits:
            raise InvalidArgumentError(f"`{name}` is {getattr(self, name)}; {rule}", did="nothing was started")

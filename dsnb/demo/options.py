"""`DemoOptions`: the options of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dsnb.arguments import checked, integer, number, one_of, path


def _record(name: str, value: Any) -> str:
    return "" if value == "" else path(name, value)


_SECONDS = number("pass a number of seconds, 0 or more, at most 1e9", least=0.0, most=1e9)


@checked(
    workers=integer(1, 1_000),
    isolation=one_of("thread", "process"),
    batches=integer(1),
    accuracy=number("it is a part of one, as in 0.92", least=0.0, most=1.0),
    deadline=_SECONDS,
    hold=_SECONDS,
    record=_record,
)
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How to run the demo.

    Attributes:
        workers: The number of workers of the service.
        isolation: "thread" for workers in this process, "process" for workers in child processes.
        batches: The minimum number of batches that each trainer reads.
        accuracy: The accuracy that each trainer must reach on the held-out digits, 0 to 1.
        deadline: Seconds after which training counts as failed.
        dashboard: Whether to serve the dashboard meanwhile.
        hold: Seconds to keep the service and the dashboard open after training.
        record: The file to record the service's snapshots in; empty for none.

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

"""`DemoOptions`: the options of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dsnb.arguments import checked, integer, number, one_of, path


def _record(name: str, value: Any) -> str:
    return "" if value == "" else path(name, value)


def _seconds(name: str, value: Any) -> float | None:
    return None if value is None else _POSITIVE(name, value)


_POSITIVE = number("pass a number of seconds above 0, at most 1e9", least=0.001, most=1e9)


@checked(workers=integer(1, 1_000), isolation=one_of("thread", "process", "auto"), seconds=_seconds, record=_record)
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How to run the demo.

    Attributes:
        workers: The number of workers at the beginning. The demo adds workers later.
        isolation: "thread" for workers in this process, "process" for workers in child processes, "auto" for threads
            that processes replace when the GIL limits the training.
        seconds: How long it runs; None: until Ctrl-C on a terminal, otherwise until both trainers have learned to
            classify the digits, but at most two minutes.
        dashboard: Whether to serve the dashboard meanwhile.
        open: Whether to open the dashboard in the browser, if there is a display.
        record: The file to record the service's snapshots in; empty for none.

    Example:
        >>> DemoOptions(seconds=10, dashboard=False).workers
        1
    """

    workers: int = 1
    isolation: Literal["thread", "process", "auto"] = "auto"
    seconds: float | None = None
    dashboard: bool = True
    open: bool = True
    record: str = ""

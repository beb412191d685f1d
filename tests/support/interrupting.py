"""Ctrl-C at a chosen line: where a signal would land by chance, deterministically."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


class LineCount:
    """How many lines were run."""

    def __init__(self) -> None:
        self.lines = 0


@contextmanager
def interrupted_at(modules: Sequence[ModuleType], at: int | None) -> Iterator[LineCount]:
    """Raise `KeyboardInterrupt` once, before this thread runs line `at` of all lines that it runs in some modules.

    Args:
        modules: Where lines are counted.
        at: The number of the line, from 0; None to only count.
    """
    files = {module.__file__ for module in modules}
    count = LineCount()

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if frame.f_code.co_filename in files else None

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            count.lines += 1
            if count.lines - 1 == at:
                raise KeyboardInterrupt  # and Python ends the tracing
        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)

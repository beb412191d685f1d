"""Ctrl-C at a chosen line: where a signal would land by chance, deterministically."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import pytest

from dsnb.pipeline.engine import interrupts
from dsnb.pipeline.engine.iterator import ElementIterator

_HANDS_OUT = ElementIterator.__next__.__code__
"""Python runs no handler between its lines, since it takes the element and returns it without a call in between."""

_NOT_AT = ("try:", "self._acquire_restore(saved_state)")
"""Lines before which Python runs no handler, because it does so after calls: a `try` that follows none, and the end of
`Condition.wait`."""


class LineCount:
    """How many lines were run."""

    def __init__(self) -> None:
        self.lines = 0


@contextmanager
def interrupted_at(
    modules: Sequence[ModuleType] | None, at: int | None, *, at_once: bool = False
) -> Iterator[LineCount]:
    """Call the handler of SIGINT once, before this thread runs line `at` of all lines that it runs in some modules.

    Args:
        modules: Where lines are counted; None for all code that `next` of an iterator runs, except for tests and the
            insides of `threading`.
        at: The number of the line, from 0; None to only count.
        at_once: Raise `KeyboardInterrupt` instead, as for a second Ctrl-C, which nothing delays.
    """
    files = None if modules is None else {module.__file__ for module in modules}
    count = LineCount()
    in_next = 0

    def counts(frame: FrameType) -> bool:
        if files is not None:
            return frame.f_code.co_filename in files
        name = frame.f_globals.get("__name__", "")
        # In Hypothesis's callback of the garbage collector, Python drops what is raised.
        return in_next > 0 and name != "threading" and not name.startswith(("tests.", "hypothesis."))

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal in_next
        if files is None and frame.f_code is _HANDS_OUT:
            in_next += 1
            return on_return
        return on_line if counts(frame) else None

    def on_return(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal in_next
        in_next -= event == "return"
        return on_return

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(
            _NOT_AT
        ):
            count.lines += 1
            if count.lines - 1 == at and at_once:
                raise KeyboardInterrupt
            if count.lines - 1 == at:
                # As Python does between two instructions. If the handler raises, Python ends the tracing.
                signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)  # type: ignore[operator, misc]
        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)


@contextmanager
def interrupted_often(pause: float = 0.002) -> Iterator[None]:
    """Send this process real SIGINTs, each after the one before was handled; one outside `next` does nothing."""
    before = signal.getsignal(signal.SIGINT)
    handled, ended = threading.Event(), threading.Event()

    def raise_in_next(number: int, frame: FrameType | None) -> None:
        handled.set()
        if frame is not None and frame.f_globals.get("__name__", "").startswith("hypothesis."):
            return  # in its callback of the garbage collector, where Python drops what is raised
        while frame is not None:
            if frame.f_code is _HANDS_OUT:
                raise KeyboardInterrupt
            frame = frame.f_back

    def send() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not ended.wait(pause):
            signal.pthread_kill(main, signal.SIGINT)
            while not handled.wait(0.01) and not ended.is_set():
                pass
            handled.clear()

    signal.signal(signal.SIGINT, raise_in_next)
    sender = threading.Thread(target=send)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interrupts, "MAX_DELAY_S", 5.0)  # on a busy machine, a pull may take longer than usual
        sender.start()
        try:
            yield
        finally:
            ended.set()
            sender.join()
            signal.signal(signal.SIGINT, before)

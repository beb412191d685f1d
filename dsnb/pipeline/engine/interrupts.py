"""Delays Ctrl-C while elements are on their way through an iterator, so that a later `next` continues without a loss.

Theory of operation. Python calls the handler of SIGINT between any two instructions of the main thread, and the usual
handler raises KeyboardInterrupt there. In the middle of a pull, that drops the elements which only a local variable
holds. So an iterator that pulls on the main thread replaces the handler meanwhile:

* User code, libraries that may wait, and waits are interrupted at once, by the handler that was there before. Stages
  keep what they have when a call fails, so nothing is lost.
* dsnb's own code continues to the next pull of any stage or the next wait for a worker, where nothing is in flight, or
  to the end of the iterator's pull. That takes microseconds to milliseconds, and half a second if it ends threads. A
  second Ctrl-C meanwhile is passed on at once.
"""

from __future__ import annotations

# The functions of `signal` also turn handlers into enum members, which takes ten times as long.
import _signal  # type: ignore[import-not-found]
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

_OWN_CODE: Final = (
    "dsnb.arguments",
    "dsnb.cache.opened_files",
    "dsnb.client.",
    "dsnb.code.",
    "dsnb.elements.",
    "dsnb.frameworks.",
    "dsnb.pipeline.",
    "dsnb.stopwatch",
    "dsnb.system_limits",
    "dsnb.transfer.",
    "dsnb.wire.",
)
"""Modules that run during a pull, and wait only in functions that are called so."""
_READS_FILES: Final = frozenset(
    {
        "dsnb.pipeline.parquet.row_groups",
        "dsnb.pipeline.sources.compressed",
        "dsnb.pipeline.sources.web_samples",
        "dsnb.pipeline.tfrecord.reader",
    }
)
"""Modules that may wait for a disk or a pipe. They lose nothing when they are interrupted."""
_WAITS: Final = frozenset({"wait", "wait_for"})
"""Not `join`, nor the wait of a thread's start: they take at most half a second."""


class DelayedInterrupts:
    """Context manager in which Ctrl-C loses no elements; does nothing outside the main thread.

    The process has one, because it has one handler of SIGINT. It may be entered again: a user function may iterate.
    """

    def __init__(self) -> None:
        self.pending = False
        """Whether a Ctrl-C waits to be raised."""
        self._depth = 0
        self._delays_all = False
        self._previous: Any = None

    def __enter__(self) -> None:
        if not _on_main_thread():
            return
        if self._depth == 0:
            self._previous = _signal.getsignal(signal.SIGINT)
            if callable(self._previous):
                _signal.signal(signal.SIGINT, self._handle)  # delays an interrupt from here on
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not _on_main_thread():
            return
        self._depth -= 1
        if self._depth == 0 and _signal.getsignal(signal.SIGINT) == self._handle:
            _signal.signal(signal.SIGINT, self._previous)
        if error is None:
            self.raise_pending()
        elif not isinstance(error, Exception):
            self.pending = False
        # The error of an element is raised first; the next pull raises a pending interrupt.

    @contextmanager
    def delayed_in_waits(self) -> Iterator[None]:
        """Delay interrupts also while dsnb waits: for a short call whose answer must not get lost."""
        if not _on_main_thread():
            yield
            return
        before, self._delays_all = self._delays_all, True
        try:
            yield
        finally:
            self._delays_all = before

    def raise_pending(self) -> None:
        """Pass a delayed interrupt to the previous handler, where nothing is in flight.

        Raises:
            KeyboardInterrupt: if the user pressed Ctrl-C and the handler is Python's.
        """
        if self.pending and _on_main_thread():
            self._pass_on(sys._getframe())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pending or not (self._delays_all or _holds_elements(frame)):
            self._pass_on(frame)
        else:
            self.pending = True

    def _pass_on(self, frame: FrameType | None) -> None:
        self.pending = False
        if callable(self._previous):
            self._previous(signal.SIGINT, frame)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _holds_elements(frame: FrameType | None) -> bool:
    """Whether the interrupted code is dsnb's own and may have elements in local variables."""
    calls = set()
    while frame is not None and _counts_as_its_caller(_module(frame)):
        calls.add(frame.f_code.co_name)
        frame = frame.f_back
    if frame is None or (calls & _WAITS and "start" not in calls) or frame.f_code.co_name in _WAITS:
        return False
    name = _module(frame)
    return name.startswith(_OWN_CODE) and name not in _READS_FILES


def _counts_as_its_caller(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in {"grpc", "msgspec", "numpy"} or top.startswith("namedtuple_")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


INTERRUPTS: Final = DelayedInterrupts()

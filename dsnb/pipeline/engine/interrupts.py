"""Delays Ctrl-C while elements pass through an iterator, so that a later `next` loses none.

Theory of operation. Python calls the handler of SIGINT between any two instructions of the main thread, and the usual
handler raises KeyboardInterrupt there. In the middle of a pull, that drops the elements which only a local variable
holds. An iterator that pulls on the main thread therefore replaces the handler during the pull:

* In user code, in third-party libraries and in waits, the previous handler is called at once. Stages keep what they
  have when a call fails, so nothing is lost.
* dsnb's own code runs on to the next pull of any stage, to the next wait for a worker, or to the end of the iterator's
  pull: nothing is in flight there, and no lock is held. That usually takes less than a millisecond.

Not every wait can be recognized: a function without Python code may wait too. So after `MAX_DELAY_S`, or at the second
Ctrl-C, the previous handler is called wherever the thread is.
"""

from __future__ import annotations

# The functions of `signal` also turn handlers into enum members, which takes ten times as long.
import _signal  # type: ignore[import-not-found]
import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final

from dsnb.errors import mark_out_of_band

MAX_DELAY_S: Final = 1.0
_OWN_CODE: Final = "dsnb."
"""How its modules begin. The worker's are among them: a reader in the same process calls them for more elements."""
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
"""Functions of dsnb in which it waits, and holds nothing. Not `join`: stages that end threads hold elements."""
_CONDITION_WAIT: Final = threading.Condition.wait.__code__


class DelayedInterrupts:
    """Context manager in which Ctrl-C loses no elements; does nothing outside the main thread.

    There is one for each process, as there is one handler of SIGINT. It is reentrant, because a user function may
    iterate too.
    """

    def __init__(self) -> None:
        self.pending = False
        """Whether a delayed Ctrl-C has not been passed on yet."""
        self._delayed = 0
        """How many were delayed so far."""
        self._resent = False
        """Whether the signal that comes next was sent by `_press_again`: it is no second Ctrl-C."""
        self._delays_all = False
        """Whether waits are delayed too; see `delayed_in_waits`."""
        self._depth = 0
        """How many uses of this context manager are nested at present."""
        self._previous: Any = None
        self._installed: Callable[..., None] | None = None

    def __enter__(self) -> None:
        if _thread.get_ident() != _main_thread_id:
            return
        if self._depth == 0:
            self._previous = _signal.getsignal(signal.SIGINT)
            if callable(self._previous):
                self._installed = partial(self._handle, self._previous)
                try:  # noqa: SIM105 - `suppress` takes longer than all the rest, and each element comes this way
                    _signal.signal(signal.SIGINT, self._installed)  # delays an interrupt from here on
                except ValueError:  # an embedded interpreter in which this thread receives no signals
                    pass
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _thread.get_ident() != _main_thread_id:
            return
        self._depth -= 1
        if self._depth == 0 and _signal.getsignal(signal.SIGINT) is self._installed:
            _signal.signal(signal.SIGINT, self._previous)
        if not self.pending:
            return
        if error is None or isinstance(error, Exception):
            self.raise_pending()  # an error of the pull becomes the context of the KeyboardInterrupt
        else:
            self.pending = False

    @contextmanager
    def delayed_in_waits(self) -> Iterator[None]:
        """Delay interrupts also while dsnb waits: for a short call whose reply must not be lost."""
        if _thread.get_ident() != _main_thread_id:
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
        if self.pending and _thread.get_ident() == _main_thread_id:
            try:
                self._pass_on(sys._getframe())
            except Exception as error:
                mark_out_of_band(error)  # it takes the place of no element
                raise

    def _handle(self, previous: Callable[..., Any], number: int, frame: FrameType | None) -> None:
        resent, self._resent = self._resent, False
        if previous is not self._previous:  # the handler of an earlier pull, which other code has kept
            previous(number, frame)
        elif resent:
            self.raise_pending()  # does nothing if it was passed on just now
        elif self.pending or not (self._delays_all or _holds_elements(frame)):
            self.raise_pending()
            self._pass_on(frame)
        else:
            self.pending = True
            self._delayed += 1
            # Not `threading.Thread`: the interrupted code may hold one of its locks.
            with suppress(RuntimeError):  # no more threads can be started
                _thread.start_new_thread(self._press_again, (self._delayed,))

    def _press_again(self, number: int) -> None:
        """Send the signal once more if the delayed one is still pending after `MAX_DELAY_S`; then nothing delays it."""
        time.sleep(MAX_DELAY_S)
        if self.pending and self._delayed == number:
            self._resent = True
            signal.pthread_kill(_main_thread_id, signal.SIGINT)

    def _pass_on(self, frame: FrameType | None) -> None:
        self.pending = False
        if callable(self._previous):
            self._previous(signal.SIGINT, frame)


_main_thread_id = 0


def _note_main_thread() -> None:
    """Keep the id of the main thread: to look it up for each element takes three calls. A fork may change it."""
    global _main_thread_id
    _main_thread_id = threading.main_thread().ident or 0


_note_main_thread()
os.register_at_fork(after_in_child=_note_main_thread)


def _holds_elements(innermost: FrameType | None) -> bool:
    """Whether the interrupted code is dsnb's own and may have elements in local variables."""
    frame, calls = innermost, set()
    while frame is not None and _belongs_to_caller(_module(frame)):
        calls.add(frame.f_code.co_name)
        frame = frame.f_back
    if frame is None or innermost is None:
        return False
    name = _module(frame)
    if not name.startswith(_OWN_CODE) or name in _READS_FILES:
        return False
    if frame is innermost:
        return frame.f_code.co_name not in _WAITS
    # Not the wait of a thread's start: stages that start threads hold elements.
    return "start" in calls or not _is_blocked(innermost)


def _is_blocked(frame: FrameType) -> bool:
    """Whether this is `Condition.wait`, and waits: then it has released its lock, and will acquire it again.

    An error in any other line of `threading.Condition` would leave the lock as it should not be.
    """
    if frame.f_code is not _CONDITION_WAIT:
        return False
    variables = frame.f_locals
    return "gotit" in variables and not variables["self"]._is_owned()  # noqa: SLF001 - there is no other way to know


def _belongs_to_caller(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in {"grpc", "msgspec", "numpy"} or top.startswith("namedtuple_")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


INTERRUPTS: Final = DelayedInterrupts()

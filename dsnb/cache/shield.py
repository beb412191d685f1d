"""Calls that a KeyboardInterrupt must not cut off: libraries of servers crash, or take one reply for another."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_POLL_S: Final = 0.25


def start_thread(act: Callable[[], None], name: str) -> bool:
    """Start a thread that nobody waits for; False if the system has no more, or the interpreter ends."""
    try:
        threading.Thread(target=act, name=name, daemon=True).start()
    except RuntimeError as error:
        # `start` waits on a condition, which an interrupt can leave with another error than its own.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        return False
    return True


class Shield:
    """Makes calls for the main thread on a thread of its own, where Python raises no KeyboardInterrupt.

    The caller is interrupted at once; the call goes on to its end, and its result is dropped.

    Example:
        >>> shield = Shield()
        >>> shield.call(lambda: 3)
        3
        >>> shield.close()
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        self._running = threading.Lock()
        """Held by the thread: a second one, started because of an interrupt, ends at once."""

    def call(self, act: Callable[[], T]) -> T:
        """Call something; on this thread, unless it is the main one.

        Raises:
            Exception: whatever `act` raises.
        """
        if threading.current_thread() is not threading.main_thread():
            return act()
        answer: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._calls.put((act, answer))
        while True:
            if not self._running.locked() and not start_thread(self._run, "dsnb-cache-shield"):
                return act()
            with contextlib.suppress(queue.Empty):
                result, error = answer.get(timeout=_POLL_S)
                if error is not None:
                    raise error
                return result  # type: ignore[no-any-return]  # what `act` gave

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        try:
            while (call := self._calls.get()) is not None:
                act, answer = call
                try:
                    answer.put((act(), None))
                except Exception as error:  # noqa: BLE001 - raised where the result is wanted
                    answer.put((None, error))
                del call, act, answer  # what was read is the reader's
        finally:
            self._running.release()

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._running.locked():
            self._calls.put(None)

"""Calls that a KeyboardInterrupt must not cut off: client libraries then crash, or mistake one reply for another."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_POLL_S: Final = 0.25


def start_thread(act: Callable[[], None], name: str) -> bool:
    """Start a daemon thread; False if the system has no more threads, or the interpreter is shutting down."""
    try:
        threading.Thread(target=act, name=name, daemon=True).start()
    except RuntimeError as error:
        # `Thread.start` waits on a condition; an interrupt during that wait can surface as a RuntimeError.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        return False
    return True


class Shield:
    """Runs calls of the main thread on another thread, where Python raises no KeyboardInterrupt.

    An interrupt reaches the caller at once; the call runs to its end, and its result is dropped.

    Example:
        >>> shield = Shield()
        >>> shield.call(lambda: 3)
        3
        >>> shield.close()
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        self._running = threading.Lock()
        """Held by the thread. A second thread, which an interrupt may cause to be started, exits at once."""

    def call(self, act: Callable[[], T]) -> T:
        """Call `act` on the shield's thread; directly, if this is not the main thread.

        Raises:
            Exception: the error that `act` raises.
        """
        if threading.current_thread() is not threading.main_thread():
            return act()
        answer: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._calls.put((act, answer))
        while True:
            # In the loop, and with a timeout below: an interrupt may have ended the thread's start, or the wake-up.
            if not self._running.locked() and not start_thread(self._run, "dsnb-cache-shield"):
                return act()
            with contextlib.suppress(queue.Empty):
                result, error = answer.get(timeout=_POLL_S)
                if error is not None:
                    raise error
                return result  # type: ignore[no-any-return]  # the return value of `act`

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        try:
            while (call := self._calls.get()) is not None:
                act, answer = call
                try:
                    answer.put((act(), None))
                except Exception as error:  # noqa: BLE001 - raised again in the caller
                    answer.put((None, error))
                del call, act, answer  # the waiting thread must not keep the last result alive
        finally:
            self._running.release()

    def close(self) -> None:
        """End the thread, if it runs."""
        if self._running.locked():
            self._calls.put(None)

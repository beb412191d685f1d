"""`run_uninterruptible`: protect an action from KeyboardInterrupt, so that a notebook's stop button cannot split it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_UNDO_TIMEOUT_S = 10.0


def run_uninterruptible(action: Callable[[], T], undo: Callable[[T], object] = lambda _: None) -> T:
    """Run an action in another thread, where KeyboardInterrupt is never raised.

    If the caller is interrupted, the interrupt is raised once the action has finished and been undone, or after ten
    seconds.

    Args:
        action: What to run. Its exception is raised here.
        undo: Reverts `action`; called with its result if the caller was interrupted meanwhile. May be called twice.

    Raises:
        KeyboardInterrupt: the caller was interrupted.
    """
    done: Future[T] = Future()
    over, abandoned = threading.Event(), threading.Event()

    def run() -> None:
        try:
            done.set_result(action())
            if abandoned.is_set():
                undo(done.result())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            if not done.done():
                done.set_exception(error)
        finally:
            over.set()

    try:
        try:
            threading.Thread(target=run, name="dsnb-uninterruptible", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            return action()
        over.wait()
    except KeyboardInterrupt:
        abandoned.set()
        if over.wait(_UNDO_TIMEOUT_S) and done.exception() is None:
            # The thread may have seen `abandoned` and undone the action too, so `undo` must be idempotent.
            undo(done.result())
        raise
    return done.result()

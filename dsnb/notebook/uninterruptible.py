"""What the stop button must not leave half done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_UNDO_TIMEOUT_S = 10.0


def run_uninterruptible(action: Callable[[], T], undo: Callable[[T], object] = lambda _: None) -> T:
    """Do something in a thread, where no KeyboardInterrupt arrives between any two of its instructions.

    The caller is interrupted all the same: when what was begun has been finished and undone, or after ten seconds.

    Args:
        action: What to do. Its error is raised here.
        undo: Takes back what `action` did; called if the caller was interrupted meanwhile.

    Raises:
        KeyboardInterrupt: the caller was.
    """
    done: Future[T] = Future()
    over, abandoned = threading.Event(), threading.Event()

    def run() -> None:
        try:
            done.set_result(action())
            if abandoned.is_set():
                undo(done.result())
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            if not done.done():
                done.set_exception(error)
        finally:
            over.set()

    try:
        try:
            threading.Thread(target=run, name="dsnb-whole", daemon=True).start()
        except RuntimeError:  # the interpreter is ending, and starts no more threads
            return action()
        over.wait()
    except KeyboardInterrupt:
        abandoned.set()
        if over.wait(_UNDO_TIMEOUT_S) and done.exception() is None:
            undo(done.result())  # must be harmless twice: the thread may have seen the interrupt as well
        raise
    return done.result()

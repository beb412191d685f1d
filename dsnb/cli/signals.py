"""Run a server until it is told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL_INTERVAL_S = 0.5


@contextmanager
def drain_and_stop_events() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Give an event that the first SIGTERM sets, and one that the second SIGTERM or Ctrl-C sets.

    The signal after that ends the process at once, as without us.
    """
    drain, stop = threading.Event(), threading.Event()

    def on_signal(number: int) -> bool:
        last = number == signal.SIGINT or drain.is_set()
        (stop if last else drain).set()
        return last

    with _handle_signals(on_signal):
        yield drain, stop


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set. The second signal ends the process at once, as without us."""
    event = threading.Event()

    def on_signal(_number: int) -> bool:
        event.set()
        return True

    with _handle_signals(on_signal):
        yield event


@contextmanager
def _handle_signals(on_signal: Callable[[int], bool]) -> Iterator[None]:
    """Tell a function of each signal, until it says that this was the last one that it wants."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if on_signal(number):
            restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        restore()


def wait_until_stopped(
    stop: threading.Event,
    join: Callable[[], object],
    drain: threading.Event | None = None,
    start_draining: Callable[[], object] = lambda: None,
) -> None:
    """Wait until a server is told to stop, or has stopped by itself.

    Args:
        stop: Set when it is to stop.
        join: Returns when the server has ended, or raises why it had to.
        drain: Set when it is to finish what it has, and then to stop.
        start_draining: Called once then; the server ends by itself afterwards.
    """
    reasons: list[Exception] = []

    def watch() -> None:
        try:
            join()
        except Exception as reason:  # noqa: BLE001 - raised again by whoever waits
            reasons.append(reason)
        stop.set()

    threading.Thread(target=watch, name="dsnb-cli-watch", daemon=True).start()
    while not stop.wait(_POLL_INTERVAL_S):
        if drain is not None and drain.is_set():
            drain = None
            start_draining()
        # A signal that another thread took (as happens after SIGCONT) is seen only by a main thread that runs.
    for reason in reasons:
        raise reason

"""Signal handling for commands that run a server until it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dsnb.wire.lifecycle import SIGNAL_POLL_S, SignalEvent

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def drain_and_stop_events() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Yield two events: the first SIGTERM sets `drain`; a second SIGTERM or Ctrl-C sets `stop`.

    Once `stop` is set, the original handlers are restored, so a further signal ends the process immediately.
    """
    drain, stop = SignalEvent(), SignalEvent()

    def on_signal(number: int) -> bool:
        last = number == signal.SIGINT or drain.is_set()
        (stop if last else drain).set()
        return last

    with _handle_signals(on_signal):
        yield drain, stop


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets. A second signal ends the process immediately."""
    event = SignalEvent()

    def on_signal(_number: int) -> bool:
        event.set()
        return True

    with _handle_signals(on_signal):
        yield event


@contextmanager
def _handle_signals(on_signal: Callable[[int], bool]) -> Iterator[None]:
    """Call `on_signal` for each signal; once it returns True, or at the end of the block, restore the old handlers."""

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
    """Wait until a server is asked to stop, or has stopped by itself.

    Args:
        stop: Set to request a stop.
        join: Returns when the server has ended; raises the error that ended it.
        drain: Set to request that the server finishes its work and then stops.
        start_draining: Called once when `drain` is set; the server then ends by itself.

    Raises:
        Exception: the error that `join` raised.
    """
    reasons: list[Exception] = []

    def watch() -> None:
        try:
            join()
        except Exception as reason:  # noqa: BLE001 - raised in the waiting thread below
            reasons.append(reason)
        stop.set()

    threading.Thread(target=watch, name="dsnb-cli-watch", daemon=True).start()
    while not stop.wait(SIGNAL_POLL_S):
        if drain is not None and drain.is_set():
            drain = None
            start_draining()
    for reason in reasons:
        raise reason

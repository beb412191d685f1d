"""Telling workers what was consumed when the user's thread is busy: within milliseconds, by one thread for all readers.

A worker keeps what it sent until it knows that it was consumed; when a reader dies, the rest goes to others. A user's
loop that takes long for each element calls nothing of dsnb meanwhile, so another thread has to tell.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Final, Protocol

ACK_INTERVAL_S: Final = 0.01
"""How long a worker may not know of an element that was consumed."""
_IDLE_S: Final = 1.0


class Acknowledger(Protocol):
    """A reader."""

    def acknowledge(self) -> bool:
        """Tell workers what was consumed; whether to come again after the interval."""
        ...


class AckThread:
    """Calls readers a moment after they asked for it. Its thread ends with the last reader, or a while after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._known: weakref.WeakSet[Acknowledger] = weakref.WeakSet()
        self._pending: weakref.WeakSet[Acknowledger] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def call_soon(self, reader: Acknowledger) -> None:
        """Have a reader called once, about `INTERVAL_S` from now. Does not keep the reader."""
        with self._lock:
            self._known.add(reader)
            self._pending.add(reader)
            self._requested.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dsnb-acknowledge", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: workers are told with the next element
                    thread.start()
                    self._thread = thread

    def forget(self, reader: Acknowledger) -> None:
        """Call a reader no more."""
        with self._lock:
            self._known.discard(reader)
            self._pending.discard(reader)
            self._requested.set()

    def _run(self) -> None:
        pause = threading.Event()  # not `time.sleep`: a test's patch of it must not reach this thread
        while True:
            self._requested.wait(_IDLE_S)
            pause.wait(ACK_INTERVAL_S)
            with self._lock:
                if not self._known or not self._requested.is_set():
                    self._thread = None
                    return
                self._requested.clear()
                readers = list(self._pending)
                self._pending.clear()
                if not readers:
                    continue
            for reader in readers:
                if reader.acknowledge():
                    self.call_soon(reader)
            del readers


ack_thread = AckThread()

"""Acknowledgements while the user's thread is busy: one thread for all readers sends them within milliseconds.

A worker keeps elements until they are acknowledged; if the reader dies, unacknowledged elements go to other readers. A
training loop that takes long for each element does not call dsnb meanwhile, so another thread must acknowledge.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dsnb.client.reader import ReadStage

ACK_INTERVAL_S: Final = 0.01
"""How long a consumed element may stay unacknowledged."""
_IDLE_S: Final = 1.0


class AckThread:
    """Calls readers a moment after they asked for it. The thread ends when the last reader is gone, or after idling."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = threading.Event()
        self._known: weakref.WeakSet[ReadStage] = weakref.WeakSet()
        self._pending: weakref.WeakSet[ReadStage] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def call_soon(self, reader: ReadStage) -> bool:
        """Call a reader once, about `ACK_INTERVAL_S` from now; False if the system starts no thread for it.

        Keeps only a weak reference to it.
        """
        with self._lock:
            self._known.add(reader)
            self._pending.add(reader)
            self._requested.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dsnb-acknowledge", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: a later element acknowledges instead
                    thread.start()
                    self._thread = thread
            return self._thread is not None

    def forget(self, reader: ReadStage) -> None:
        """Stop calling a reader that is being closed."""
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
                reader.acknowledge()
            del reader, readers  # drop the strong references before waiting again, or a dropped reader would stay alive


ack_thread = AckThread()

"""The reader's socket is closed, whatever other threads do at that moment."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dsnb.transfer.shared_memory.client_connection import ClientConnection


class ContendedLock:
    """A lock that another thread takes just before somebody tries it without waiting.

    Attributes:
        contend: Run in another thread, which has the lock from its first use of it until that try has failed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken, self._tried = threading.Event(), threading.Event()
        self._other: threading.Thread | None = None
        self.contend: Any = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if threading.current_thread() is self._other:
            self._taken.set()
            assert self._tried.wait(10)

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, *, blocking: bool) -> bool:
        contend, self.contend = self.contend, None
        if contend is not None:
            self._other = threading.Thread(target=contend)
            self._other.start()
            assert self._taken.wait(10)
        got = self._lock.acquire(blocking=blocking)
        self._tried.set()
        return got

    def release(self) -> None:
        self._lock.release()

    def join(self) -> None:
        assert self._other is not None
        self._other.join(10)


@pytest.mark.parametrize("proven", [False, True])
def test_a_read_that_ends_while_something_is_sent_leaves_no_socket(
    proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the worker refuses a reader that grants credit at that moment."""
    lock = ContendedLock()
    monkeypatch.setattr("dsnb.transfer.shared_memory.client_connection.threading", SimpleNamespace(Lock=lambda: lock))
    mine, theirs = socket.socketpair()
    with theirs:
        connection = ClientConnection(mine)
        if proven:
            connection.mark_proven()
        lock.contend = lambda: connection.send(b"credit")
        connection.finish()
        lock.join()
        assert mine.fileno() == -1


def test_a_worker_that_has_not_answered_yet_is_not_waited_for() -> None:
    """As one that was suspended before it took the connection: the reader has other workers to read."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    connection = ClientConnection(ours)
    receiving = threading.Thread(target=connection.receive, kwargs={"wait": False}, daemon=True)
    with its:
        receiving.start()
        receiving.join(10)
        waited = receiving.is_alive()
    receiving.join(10)
    connection.finish()
    assert not waited

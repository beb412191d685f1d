"""One thread hears all its sockets and can be woken; nothing is left when it listens no more."""

from __future__ import annotations

import os
import socket
import threading
import time

from dsnb.wire.poller import Poller


def test_who_speaks_is_heard_and_no_other() -> None:
    ears, heard = Poller(), []
    pairs = [socket.socketpair() for _ in range(2)]
    for number, (mine, _) in enumerate(pairs):
        ears.add(mine.fileno(), lambda number=number, mine=mine: heard.append((number, mine.recv(9))))
    pairs[1][1].send(b"x")
    ears.dispatch(ears.wait(10.0))
    assert heard == [(1, b"x")]
    ears.remove(pairs[1][0].fileno())
    pairs[1][1].send(b"y")
    assert ears.wait(0.0) == []
    ears.remove(pairs[0][0].fileno())
    assert not ears
    ears.close()
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_wait_ends_when_it_is_woken_and_a_wake_before_it_is_not_lost() -> None:
    ears = Poller()
    mine, its = socket.socketpair()
    ears.add(mine.fileno(), lambda: None)
    ears.wake()
    began = time.monotonic()
    assert ears.wait(60.0) == []
    waiting = threading.Thread(target=ears.wait, args=(60.0,))
    waiting.start()
    ears.wake()
    waiting.join(30.0)
    assert not waiting.is_alive()
    assert time.monotonic() - began < 30.0
    ears.close()
    ears.close()
    for end in (mine, its):
        end.close()


def test_what_never_listened_holds_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    ears = Poller()
    assert not ears
    assert len(os.listdir("/proc/self/fd")) == before

"""Recordings in the memory of one process, for its epochs and threads."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from dsnb.cache.backends import Unwritable
from dsnb.cache.frames import nbytes_of
from dsnb.cache.recording import Place
from dsnb.elements.frame import Frame
from dsnb.errors import ResourceExhaustedError

_MOST_SENT: Final = 4
_SENT_S: Final = 600.0
"""How many memories of pipelines that were sent here are kept for their next pass, and for how long."""


class MemoryStore:
    """One recording: frames as they were made, small arrays moved together.

    Args:
        limit: Most bytes of all leaves; None for no limit.
    """

    place = "memory"
    shared = False
    remote = False
    poll = 0.1

    def __init__(self, limit: int | None) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._slots: list[bytes] = []
        self._frames: list[Frame] = []
        self._nbytes = 0

    def read(self, slot: int) -> bytes | None:
        return self._slots[slot] if slot < len(self._slots) else None

    def claim(self, slot: int, record: bytes) -> bool:
        with self._lock:
            if slot != len(self._slots):
                return False
            self._slots.append(record)
            return True

    def put(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        """Keep frames.

        Raises:
            Unwritable: they would be more than the limit.
        """
        with self._lock:
            nbytes = self._nbytes + nbytes_of(frames)
            if self._limit is not None and nbytes > self._limit:
                raise Unwritable(_over(self._limit))
            self._nbytes = nbytes
            return tuple(map(self._keep, frames))

    def _keep(self, frame: Frame) -> Place:
        frame.keep(pack=True)
        self._frames.append(frame)
        return Place(name="", offset=len(self._frames) - 1, nbytes=frame.nbytes, count=frame.count, digest="")

    def frame(self, place: Place) -> Frame:
        return self._frames[place.offset]

    def verify(self, place: Place) -> None:
        """Nothing to compare with."""

    def beat(self, epoch: int) -> None:
        """Nobody looks."""

    def pulse(self, epoch: int) -> object:
        """Always the same: a writer in this process that gives up says so."""
        return epoch

    def ask(self, position: int) -> None:
        """All readers of a recording in memory are readers of one recorder."""

    def asked(self) -> int:
        """Nobody."""
        return -1

    def left_behind(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def tidy(self, records: Sequence[bytes], left: Sequence[str]) -> None:
        """Nothing is left over."""

    def settle(self, records: Sequence[bytes]) -> None:
        """Nothing is left over."""

    def begin_anew(self) -> None:
        """After a fork: a thread that is not here may have held the lock."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """The recording stays for the next epoch."""


class MemoryShelf:
    """The recordings of one pipeline.

    Args:
        key: What no other shelf of this process has.
        limit: Most bytes of one recording; None for no limit.
    """

    def __init__(self, key: tuple[str, str], limit: int | None) -> None:
        self.key = key
        self._limit = limit
        self._lock = threading.Lock()
        self._stores: dict[int, MemoryStore] = {}

    def explain(self) -> str:
        return ""

    def newest(self) -> int:
        return max(self._stores, default=0)

    def open(self, number: int) -> MemoryStore:
        with self._lock:
            for older in [known for known in self._stores if known < number]:
                del self._stores[older]
            return self._stores.setdefault(number, MemoryStore(self._limit))

    def begin_anew(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
        for store in self._stores.values():
            store.begin_anew()

    def close(self) -> None:
        """The recordings stay for the next epoch."""


class Memory:
    """What one `cache()` keeps, for all copies of its operation in this process; gone with the last of them.

    A pipeline comes to a worker in this process as a pickle, and its shards are pipelines of their own: all find this
    again, each its own shelf.

    Args:
        limit: Most bytes of one recording; None for no limit.
        token: Its name; a new one by default.
        lasting: Whether a process that was sent the pipeline keeps this for its next pass.
    """

    def __init__(self, limit: int | None, token: str = "", *, lasting: bool = True) -> None:
        self._limit = limit
        self._lasting = lasting
        self._token = token or secrets.token_hex(16)
        self._lock = threading.Lock()
        self._shelves: dict[str, MemoryShelf] = {}
        _memories[self._token] = self

    def shelf(self, key: str) -> MemoryShelf:
        """The recordings of the pipeline with this key."""
        with self._lock:
            return self._shelves.setdefault(key, MemoryShelf((f"memory {self._token}", key), self._limit))

    def begin_anew(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
        for shelf in self._shelves.values():
            shelf.begin_anew()

    def __reduce__(self) -> tuple[object, ...]:
        return _memory, (self._token, self._limit, self._lasting)


_memories: WeakValueDictionary[str, Memory] = WeakValueDictionary()
_lock = threading.Lock()
_sent: OrderedDict[str, tuple[Memory, float]] = OrderedDict()
"""Those of pipelines that were sent here, with the time when they last were: each pass restores its pipeline anew."""


def _memory(token: str, limit: int | None, lasting: bool) -> Memory:
    """The memory that a pickle means; one that nobody else here refers to is kept for the next pass to find."""
    with _lock:
        memory = _memories.get(token)
        known = memory is not None
        memory = memory or Memory(limit, token, lasting=lasting)
        if lasting and (token in _sent or not known):
            _sent[token] = memory, time.monotonic()
            _sent.move_to_end(token)
        _drop_old()
        return memory


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for memory in list(_memories.values()):
        memory.begin_anew()


os.register_at_fork(after_in_child=_in_child)


def _drop_old() -> None:
    while _sent:
        token, (_, when) = next(iter(_sent.items()))
        if len(_sent) <= _MOST_SENT and time.monotonic() - when < _SENT_S:
            return
        del _sent[token]


def _over(limit: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"the dataset is larger than the {limit:,} bytes that `cache` may keep in memory",
        did="what fits stays cached; the rest of each pass runs the pipeline",
        hint="raise `limit_bytes`, or give `cache` a directory",
    )

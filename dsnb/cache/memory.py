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

from dsnb.cache.backends import StoreFailed
from dsnb.cache.frames import nbytes_of
from dsnb.cache.recording import FrameRef
from dsnb.elements.frame import Frame
from dsnb.errors import ResourceExhaustedError

_MAX_RECEIVED: Final = 4
_RECEIVED_KEPT_S: Final = 600.0
"""How many memories of pipelines that were sent here are kept for their next pass, and for how long."""


class MemoryStore:
    """One recording: frames as they were made, small arrays moved together.

    Args:
        limit: Most bytes of all leaves; None for no limit.
    """

    location = "memory"
    shared = False
    remote = False
    max_poll_s = 0.1

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

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        """Keep frames.

        Raises:
            Unwritable: they would be more than the limit.
        """
        with self._lock:
            nbytes = self._nbytes + nbytes_of(frames)
            if self._limit is not None and nbytes > self._limit:
                raise StoreFailed(_limit_error(self._limit))
            self._nbytes = nbytes
            return tuple(map(self._keep, frames))

    def _keep(self, frame: Frame) -> FrameRef:
        frame.make_shared(pack=True)
        self._frames.append(frame)
        return FrameRef(name="", offset=len(self._frames) - 1, nbytes=frame.nbytes, count=frame.count, digest="")

    def read_frame(self, ref: FrameRef) -> Frame:
        return self._frames[ref.offset]

    def verify(self, ref: FrameRef) -> None:
        """Nothing to compare with."""

    def write_heartbeat(self, epoch: int) -> None:
        """Nobody looks."""

    def read_heartbeat(self, epoch: int) -> object:
        """Always the same: a writer in this process that gives up says so."""
        return epoch

    def request_element(self, position: int) -> None:
        """All readers of a recording in memory are readers of one recorder."""

    def requested_element(self) -> int:
        """Nobody."""
        return -1

    def orphans(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        """Nothing is left over."""

    def finalize(self, records: Sequence[bytes]) -> None:
        """Nothing is left over."""

    def reset_after_fork(self) -> None:
        """After a fork: a thread that is not here may have held the lock."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """The recording stays for the next epoch."""


class MemoryRecordings:
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

    def explain_miss(self) -> str:
        return ""

    def newest_number(self) -> int:
        return max(self._stores, default=0)

    def open(self, number: int) -> MemoryStore:
        with self._lock:
            for older in [known for known in self._stores if known < number]:
                del self._stores[older]
            return self._stores.setdefault(number, MemoryStore(self._limit))

    def reset_after_fork(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
        for store in self._stores.values():
            store.reset_after_fork()

    def close(self) -> None:
        """The recordings stay for the next epoch."""


class RecordingMemory:
    """What one `cache()` keeps, for all copies of its operation in this process; gone with the last of them.

    A pipeline comes to a worker in this process as a pickle, and its shards are pipelines of their own: all find this
    again, each its own shelf.

    Args:
        limit: Most bytes of one recording; None for no limit.
        token: Its name; a new one by default.
        keep_between_passes: Whether a process that was sent the pipeline keeps this for its next pass.
    """

    def __init__(self, limit: int | None, token: str = "", *, keep_between_passes: bool = True) -> None:
        self._limit = limit
        self._keep_between_passes = keep_between_passes
        self._token = token or secrets.token_hex(16)
        self._lock = threading.Lock()
        self._recordings: dict[str, MemoryRecordings] = {}
        _memories[self._token] = self

    def recordings(self, key: str) -> MemoryRecordings:
        """The recordings of the pipeline with this key."""
        with self._lock:
            return self._recordings.setdefault(key, MemoryRecordings((f"memory {self._token}", key), self._limit))

    def reset_after_fork(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
        for recordings in self._recordings.values():
            recordings.reset_after_fork()

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_memory, (self._token, self._limit, self._keep_between_passes)


_memories: WeakValueDictionary[str, RecordingMemory] = WeakValueDictionary()
_lock = threading.Lock()
_received: OrderedDict[str, tuple[RecordingMemory, float]] = OrderedDict()
"""Those of pipelines that were sent here, with the time when they last were: each pass restores its pipeline anew."""


def _restore_memory(token: str, limit: int | None, keep_between_passes: bool) -> RecordingMemory:
    """The memory that a pickle means; one that nobody else here refers to is kept for the next pass to find."""
    with _lock:
        memory = _memories.get(token)
        known = memory is not None
        memory = memory or RecordingMemory(limit, token, keep_between_passes=keep_between_passes)
        if keep_between_passes and (token in _received or not known):
            _received[token] = memory, time.monotonic()
            _received.move_to_end(token)
        _drop_expired()
        return memory


def _reset_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for memory in list(_memories.values()):
        memory.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)


def _drop_expired() -> None:
    while _received:
        token, (_, when) = next(iter(_received.items()))
        if len(_received) <= _MAX_RECEIVED and time.monotonic() - when < _RECEIVED_KEPT_S:
            return
        del _received[token]


def _limit_error(limit: int) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"the dataset is larger than the {limit:,} bytes that `cache` may keep in memory",
        did="what fits stays cached; the rest of each pass runs the pipeline",
        hint="raise `limit_bytes`, or give `cache` a directory",
    )

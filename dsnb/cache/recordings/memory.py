"""Recordings in the memory of one process, shared by its epochs and threads."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from dsnb.cache.recordings.backends import StoreFailed
from dsnb.cache.recordings.frames import nbytes_of
from dsnb.cache.recordings.recording import FrameRef
from dsnb.elements.frame import Frame
from dsnb.errors import ResourceExhaustedError

_MAX_RECEIVED: Final = 4
"""How many memories of pipelines that were sent to this process are kept for their next pass."""
_RECEIVED_KEPT_S: Final = 600.0
"""For how many seconds they are kept."""


class MemoryStore:
    """One recording in memory: frames as they were produced, with small arrays packed together.

    Args:
        limit: The largest total size of all leaves, in bytes; None for no limit.
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
        """Keep frames in memory.

        Raises:
            StoreFailed: they would exceed the limit.
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
        """Nothing: frames in memory have no digest."""

    def write_heartbeat(self, epoch: int) -> None:
        """Nothing: no other process reads this recording."""

    def read_heartbeat(self, epoch: int) -> object:
        """Always the same value: a writer in this process releases its lease when it gives up."""
        return epoch

    def request_element(self, position: int) -> None:
        """Nothing: all readers of a recording in memory belong to one recorder."""

    def requested_element(self) -> int:
        """-1: no other process reads this recording."""
        return -1

    def orphans(self) -> Sequence[str]:
        """Nothing: memory ends with its process."""
        return ()

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        """Nothing: there are no orphans."""

    def finalize(self, records: Sequence[bytes]) -> None:
        """Nothing: there is no uncommitted data to remove."""

    def reset_after_fork(self) -> None:
        """Replace the lock after a fork: a thread that does not exist in this process may have held it."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Keep the recording for the next epoch."""


class MemoryRecordings:
    """The recordings of one pipeline in memory.

    Args:
        key: A key that no other recordings in this process have.
        limit: The largest size of one recording in bytes; None for no limit.
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
        """Replace the locks after a fork."""
        self._lock = threading.Lock()
        for store in self._stores.values():
            store.reset_after_fork()

    def close(self) -> None:
        """Keep the recordings for the next epoch."""


class RecordingMemory:
    """What one `cache()` keeps in memory, for all copies of its operation in this process; freed with the last copy.

    A pipeline reaches a worker in this process as a pickle, and each shard is a pipeline of its own. All copies find
    this object again, and each pipeline has its own recordings in it.

    Args:
        limit: The largest size of one recording in bytes; None for no limit.
        token: The unique name by which copies find this object; a new one by default.
        keep_between_passes: Whether a process that received the pipeline keeps this object for its next pass.
    """

    def __init__(self, limit: int | None, token: str = "", *, keep_between_passes: bool = True) -> None:
        self._limit = limit
        self._keep_between_passes = keep_between_passes
        self._token = token or secrets.token_hex(16)
        self._lock = threading.Lock()
        self._recordings: dict[str, MemoryRecordings] = {}
        _memories[self._token] = self

    def recordings(self, key: str) -> MemoryRecordings:
        """The recordings of the pipeline with this key; created if there are none."""
        with self._lock:
            return self._recordings.setdefault(key, MemoryRecordings((f"memory {self._token}", key), self._limit))

    def reset_after_fork(self) -> None:
        """Replace the locks after a fork."""
        self._lock = threading.Lock()
        for recordings in self._recordings.values():
            recordings.reset_after_fork()

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_memory, (self._token, self._limit, self._keep_between_passes)


_memories: WeakValueDictionary[str, RecordingMemory] = WeakValueDictionary()
_lock = threading.Lock()
_received: OrderedDict[str, tuple[RecordingMemory, float]] = OrderedDict()
"""Memories of received pipelines, with the time of the last receipt: each pass unpickles its own copy of a pipeline."""


def _restore_memory(token: str, limit: int | None, keep_between_passes: bool) -> RecordingMemory:
    """The memory that a pickle stands for. A new one is kept, so that the next pass finds it again."""
    with _lock:
        memory = _memories.get(token)
        known = memory is not None
        memory = memory or RecordingMemory(limit, token, keep_between_passes=keep_between_passes)
        # A memory that was made in this process is kept by its own pipeline, and need not be kept here.
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

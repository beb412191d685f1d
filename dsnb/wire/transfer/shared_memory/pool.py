"""Frames in a worker's memory: each written once, and kept while somebody looks at it or may yet ask for it.

A slab has as many *holds* as there are notices of it that were not released. One without a hold stays where it is as
long as its frame lives, for the next reader, and goes when its frame does or when the room is needed.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from dsnb.elements.frame import Frame
from dsnb.wire.transfer.encoding import describe
from dsnb.wire.transfer.handover import Piece
from dsnb.wire.transfer.shared_memory.memory import Memory
from dsnb.wire.transfer.shared_memory.slabs import FreeList, whole_pages


@dataclass(slots=True, eq=False)
class Slab:
    """One frame's place in the memory.

    Attributes:
        at: Where it begins.
        nbytes: Bytes of the frame's body.
        head: What the frame is; the same for all its readers.
        holds: Notices that were given out and not released.
        frame: The frame, as long as it lives.
    """

    at: int
    nbytes: int
    head: bytes
    holds: int = 1
    frame: weakref.ref[Frame] | None = None

    @property
    def pages(self) -> int:
        """Bytes that it takes."""
        return whole_pages(self.nbytes)


class Pool:
    """Puts frames into a memory; for all readers of one worker, from any thread.

    Args:
        size: Most bytes of memory.

    Raises:
        OSError: the system refuses it.

    Attributes:
        short: What the system said when it had less memory than `size`; empty if it has not.
    """

    def __init__(self, size: int) -> None:
        self.size = whole_pages(size)
        self.memory = Memory(self.size)
        self.short = ""
        self._free = FreeList(self.size)
        self._lock = threading.Lock()
        self._idle: dict[Slab, None] = {}
        """Slabs without a hold whose frames live, the one that was released longest ago first."""
        self._gone: deque[Slab] = deque()
        """Slabs whose frames have died since the last look. Filled in the midst of anything, so without a lock."""

    def hold(self, task_id: str, piece: Piece) -> Slab | None:
        """The slab of a piece's frame with one hold more, written if it is not there yet; None if there is no room.

        Calls for one frame must follow upon one another, as a task's do.
        """
        frame = piece.frame
        with self._lock:
            self._collect()
            slab: Slab | None = frame.shared
            if slab is not None:
                slab.holds += 1
                self._idle.pop(slab, None)
                return slab
        whole = Piece(frame, piece.index - piece.start, 0, frame.count, piece.incarnation)
        head, buffers, nbytes = describe(task_id, whole)
        with self._lock:
            at = self._take(nbytes)
        if at is None:
            return None
        self.memory.write(at, buffers, nbytes)  # without the lock: others need not wait, and nobody knows of it yet
        slab = Slab(at, nbytes, head)
        slab.frame = weakref.ref(frame, self._mourner(slab))
        frame.shared = slab
        return slab

    def release(self, slab: Slab, holds: int = 1) -> None:
        """Take holds back."""
        with self._lock:
            slab.holds -= holds
            if not slab.holds:
                self._idle[slab] = None
                if slab.frame is None or slab.frame() is None:
                    self._drop(slab)
            self._collect()

    @property
    def free_bytes(self) -> int:
        """Bytes that no slab takes."""
        with self._lock:
            self._collect()
            return self._free.nbytes

    @property
    def used_bytes(self) -> int:
        """Bytes that slabs take."""
        return self.size - self.free_bytes

    def rest(self) -> None:
        """Give the memory back to the system while nobody reads."""
        with self._lock:
            self._collect()
            while self._idle:
                self._drop(next(iter(self._idle)))
            if self._free.nbytes == self.size:
                self.memory.forget()

    def close(self) -> None:
        """Let go of the memory."""
        with self._lock:
            self.memory.close()

    # ---- under the lock

    def _take(self, nbytes: int) -> int | None:
        at = self._free.take(nbytes)
        while at is None and self._idle:
            self._drop(next(iter(self._idle)))
            at = self._free.take(nbytes)
        if at is None:
            return None
        try:
            self.memory.reserve(at + whole_pages(nbytes))
        except OSError as error:
            self.short = str(error.strerror or error)
            self._free.give(at, nbytes)
            self._free.end_at(self.memory.reserved)
            self.size = self.memory.reserved
            return None
        return at

    def _collect(self) -> None:
        """Take back the slabs of frames that are gone, unless somebody still looks at them."""
        while self._gone:
            slab = self._gone.popleft()
            if slab in self._idle:
                self._drop(slab)

    def _drop(self, slab: Slab) -> None:
        """Have no slab there any more; it has no hold."""
        del self._idle[slab]
        frame = slab.frame() if slab.frame is not None else None
        if frame is not None:
            frame.shared = None
        slab.frame = None
        self._free.give(slab.at, slab.nbytes)

    def _mourner(self, slab: Slab) -> Any:
        gone = self._gone
        return lambda _ref: gone.append(slab)

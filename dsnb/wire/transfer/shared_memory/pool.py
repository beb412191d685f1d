"""Frames in a worker's memory: each written once, and kept while somebody looks at it or may yet ask for it.

A slab has as many *holds* as there are notices of it that were not released. One without a hold stays where it is as
long as its frame lives, for the next reader.

A frame whose columns can be views *moves into* its slab, so that it is in memory once, and counted once: by the
window that keeps it. Its slab is free when nobody looks at those views any more, which a weak reference to their root
tells, as in readers. Others, and those for which three quarters of the memory are taken so, lie in the slab besides:
then the slab goes with the frame, or earlier when the room is needed; the window counts it as long as it keeps the
frame, or does not have it kept for another reader.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.elements.columns import Column, Layout
from dsnb.elements.frame import Frame
from dsnb.wire.transfer.handover import Piece
from dsnb.wire.transfer.headers import describe
from dsnb.wire.transfer.shared_memory.memory import Bytes, Memory, address
from dsnb.wire.transfer.shared_memory.slabs import FreeList, whole_pages


@dataclass(slots=True, eq=False)
class Slab:
    """One frame's place in the memory.

    Attributes:
        at: Where it begins.
        nbytes: Bytes of the frame's body.
        head: What the frame is; the same for all its readers.
        holds: Notices that were given out and not released.
        frame: The frame, as long as it lives; None before there is one.
        moved: Whether the frame has moved in.
        needed: Dies with the worker's need of the slab: the root of the frame's columns, or the frame. None where it
            is not to be kept for another reader.
        dropped: Whether it is no more.
    """

    at: int
    nbytes: int
    head: bytes = b""
    holds: int = 0
    frame: weakref.ref[Frame] | None = None
    moved: bool = False
    needed: weakref.ref[Any] | None = None
    dropped: bool = False

    @property
    def pages(self) -> int:
        """Bytes that it takes."""
        return whole_pages(self.nbytes)


class Pool:
    """Puts frames into a memory; for all readers of one worker, from any thread.

    Args:
        size: Most bytes of memory.
        unused: Called when the memory may have come out of use since `rest`; in any thread, in the midst of anything.

    Raises:
        OSError: the system refuses it.

    Attributes:
        short: What the system said when it had less memory than `size`; empty if it has not.
    """

    def __init__(self, size: int, unused: Callable[[], None] = lambda: None) -> None:
        self.size = whole_pages(size)
        self.memory = Memory(self.size)
        self.short = ""
        self._unused = unused
        self._resting = False
        self._free = FreeList(self.size)
        self._moved_bytes = 0
        self._lock = threading.Lock()
        self._laid_out: dict[int, Slab] = {}
        """Slabs that elements are laid out in which are in no frame yet, by where they begin."""
        self._idle: dict[Slab, None] = {}
        """Slabs without a hold whose frames lie elsewhere too, the one that was released longest ago first."""
        self._gone: deque[Slab] = deque()
        """Slabs that the worker has needed no more since the last look. Filled in the midst of anything: no lock."""

    def room(self, nbytes: int) -> Bytes | None:
        """A piece to lay an element out in, so that its frame need not move; None if there is none to spare."""
        with self._lock:
            self._collect()
            if self._resting or not self._may_move(nbytes):
                return None
            at = self._take(nbytes)
            if at is None:
                return None
            root = self.memory.sheet(at, nbytes)
            if not len(root):
                return None
            slab = Slab(at, nbytes, moved=True)
            slab.needed = weakref.ref(root, self._mourner(slab))
            self._moved_bytes += slab.pages
            self._laid_out[at] = slab
            return root

    def prepare(self, task_id: str, piece: Piece) -> None:
        """Write a whole frame that will be asked for, if it can move in."""
        frame = piece.frame
        if frame.shared is None and frame.movable and not self._found(task_id, piece, holds=0):
            if self._may_move(frame.nbytes):
                self._write(task_id, piece, holds=0)

    def hold(self, task_id: str, piece: Piece) -> Slab | None:
        """The slab of a piece's frame with one hold more, written if it is not there yet; None if there is no room.

        Calls for one frame must follow upon one another, as a task's do.
        """
        frame = piece.frame
        with self._lock:
            self._resting = False
            self._collect()
            slab: Slab | None = frame.shared
            if slab is not None:
                slab.holds += 1
                self._idle.pop(slab, None)
                return slab
        whole = Piece(frame, piece.index - piece.start, 0, frame.count, piece.incarnation)
        return self._found(task_id, whole, holds=1) or self._write(task_id, whole, holds=1)

    def release(self, slab: Slab, holds: int = 1) -> None:
        """Take holds back."""
        with self._lock:
            slab.holds -= holds
            if not slab.holds:
                self._settle(slab)
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
        """Give the memory back to the system while nobody reads, as soon as nothing lies there."""
        with self._lock:
            self._resting = True
            self._collect()
            while self._idle:
                self._drop(next(iter(self._idle)))
            if self._free.nbytes == self.size:
                self.memory.forget()

    def close(self) -> None:
        """Let go of the memory."""
        with self._lock:
            self._resting = False
            self.memory.close()

    def _write(self, task_id: str, whole: Piece, holds: int) -> Slab | None:
        head, layouts, buffers, nbytes = describe(task_id, whole)
        frame = whole.frame
        with self._lock:
            self._collect()
            at = self._take(nbytes)
        if at is None:
            return None
        self.memory.write(at, buffers, nbytes)  # without the lock: others need not wait, and nobody knows of it yet
        slab = Slab(at, nbytes, head, holds, weakref.ref(frame))
        if frame.movable and self._may_move(nbytes):
            root = self.memory.root(at, nbytes)
            slab.needed, slab.moved = weakref.ref(root, self._mourner(slab)), True
            frame.move_into(layouts, root)
            with self._lock:
                self._moved_bytes += slab.pages
        elif frame.on_encoded is None or frame.on_encoded(slab.pages):
            slab.needed = weakref.ref(frame, self._mourner(slab))
        else:
            return slab  # for this reader: the window has no room to keep it for others
        frame.shared = slab
        return slab

    def _found(self, task_id: str, whole: Piece, holds: int) -> Slab | None:
        """The slab that a frame's one element was laid out in, completed; None where it lies elsewhere."""
        frame = whole.frame
        root = self._root_of(frame) if self._laid_out and frame.movable else None
        if root is None:
            return None
        slab = self._laid_out[self.memory.place_of(root)]
        head, layouts, buffers, nbytes = describe(task_id, whole)
        if nbytes != slab.nbytes or not all(map(partial(_in_place, root), frame.columns, layouts)):
            return None
        del self._laid_out[slab.at]
        self.memory.complete(slab.at, buffers)
        root.flags.writeable = False
        frame.move_into(layouts, root)
        slab.head, slab.holds, slab.frame, frame.shared = head, holds, weakref.ref(frame), slab
        return slab

    def _root_of(self, frame: Frame) -> Bytes | None:
        for column in frame.columns if frame.count == 1 else ():
            root = column.values[0].base
            if isinstance(root, np.ndarray):  # an array may also lie in bytes, a file, or memory of another library
                slab = self._laid_out.get(self.memory.place_of(root))
                if slab is not None and slab.needed is not None and slab.needed() is root:
                    return root
        return None

    def _may_move(self, nbytes: int) -> bool:
        """Whether a frame may have its only place here: some room is for what readers hold and nobody else needs."""
        return self._moved_bytes + nbytes <= self.size // 4 * 3

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
        """Take back the slabs that the worker needs no more, unless a reader still looks at them."""
        while self._gone:
            slab = self._gone.popleft()
            if not slab.holds:
                self._drop(slab)

    def _settle(self, slab: Slab) -> None:
        """Learn that no reader looks at a slab."""
        if slab.needed is None or slab.needed() is None:
            self._drop(slab)
        elif not slab.moved:
            self._idle[slab] = None

    def _drop(self, slab: Slab) -> None:
        """Have no slab there any more; it has no hold. The second call does nothing."""
        if slab.dropped:
            return
        slab.dropped = True
        self._idle.pop(slab, None)
        if self._laid_out.get(slab.at) is slab:
            del self._laid_out[slab.at]
        frame = slab.frame() if slab.frame is not None else None
        if frame is not None and frame.shared is slab:
            frame.shared = None
        if slab.moved:
            self._moved_bytes -= slab.pages
        self._free.give(slab.at, slab.nbytes)

    def _mourner(self, slab: Slab) -> Any:
        def mourn(_ref: object) -> None:
            self._gone.append(slab)
            if self._resting:
                self._unused()

        return mourn


def _in_place(root: Bytes, column: Column, layout: Layout) -> bool:
    """Whether a column that was laid out in a root is where its frame wants it."""
    value = column.values[0]
    return value.base is not root or address(value) == address(root) + layout.offset

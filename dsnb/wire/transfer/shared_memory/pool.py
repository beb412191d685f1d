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
from dsnb.wire.transfer.headers import encode_slice
from dsnb.wire.transfer.protocol import FrameSlice
from dsnb.wire.transfer.shared_memory.free_list import FreeList, round_up_to_pages
from dsnb.wire.transfer.shared_memory.memory import ByteArray, SharedMemory, address


@dataclass(slots=True, eq=False)
class Slab:
    """One frame's place in the memory.

    Attributes:
        at: Where it begins.
        nbytes: Bytes of the frame's body.
        header: What the frame is; the same for all its readers.
        refcount: Notices that were given out and not released.
        frame: The frame, as long as it lives; None before there is one.
        moved: Whether the frame has moved in.
        owner: Dies with the worker's need of the slab: the root of the frame's columns, or the frame. None where it
            is not to be kept for another reader.
        freed: Whether it is no more.
    """

    at: int
    nbytes: int
    header: bytes = b""
    refcount: int = 0
    frame: weakref.ref[Frame] | None = None
    moved: bool = False
    owner: weakref.ref[Any] | None = None
    freed: bool = False

    @property
    def pages(self) -> int:
        """Bytes that it takes."""
        return round_up_to_pages(self.nbytes)


class Pool:
    """Puts frames into a memory; for all readers of one worker, from any thread.

    Args:
        size: Most bytes of memory.
        on_unused: Called when the memory may have come out of use since `release_when_unused`; in any thread, in the midst of anything.

    Raises:
        OSError: the system refuses it.

    Attributes:
        shortage: What the system said when it had less memory than `size`; empty if it has not.
    """

    def __init__(self, size: int, on_unused: Callable[[], None] = lambda: None) -> None:
        self.size = round_up_to_pages(size)
        self.memory = SharedMemory(self.size)
        self.shortage = ""
        self._on_unused = on_unused
        self._releasing = False
        self._free = FreeList(self.size)
        self._moved_bytes = 0
        self._lock = threading.Lock()
        self._awaiting_frame: dict[int, Slab] = {}
        """Slabs that elements are laid out in which are in no frame yet, by where they begin."""
        self._reclaimable: dict[Slab, None] = {}
        """Slabs without a hold whose frames lie elsewhere too, the one that was released longest ago first."""
        self._unneeded: deque[Slab] = deque()
        """Slabs that the worker has needed no more since the last look. Filled in the midst of anything: no lock."""

    def allocate(self, nbytes: int) -> ByteArray | None:
        """A piece to lay an element out in, so that its frame need not move; None if there is none to spare."""
        with self._lock:
            self._collect()
            if self._releasing or not self._may_move(nbytes):
                return None
            at = self._allocate(nbytes)
            if at is None:
                return None
            root = self.memory.writable_view(at, nbytes)
            if not len(root):
                return None
            slab = Slab(at, nbytes, moved=True)
            slab.owner = weakref.ref(root, self._on_dead(slab))
            self._moved_bytes += slab.pages
            self._awaiting_frame[at] = slab
            return root

    def prepare(self, task_id: str, frame_slice: FrameSlice) -> None:
        """Write a whole frame that will be asked for, if it can move in."""
        frame = frame_slice.frame
        if frame.slab is None and frame.movable and not self._complete_laid_out(task_id, frame_slice, refcount=0):
            if self._may_move(frame.nbytes):
                self._write(task_id, frame_slice, refcount=0)

    def acquire(self, task_id: str, frame_slice: FrameSlice) -> Slab | None:
        """The slab of a piece's frame with one hold more, written if it is not there yet; None if there is no room.

        Calls for one frame must follow upon one another, as a task's do.
        """
        frame = frame_slice.frame
        with self._lock:
            self._releasing = False
            self._collect()
            slab: Slab | None = frame.slab
            if slab is not None:
                slab.refcount += 1
                self._reclaimable.pop(slab, None)
                return slab
        whole = FrameSlice(frame, frame_slice.index - frame_slice.start, 0, frame.count, frame_slice.incarnation)
        return self._complete_laid_out(task_id, whole, refcount=1) or self._write(task_id, whole, refcount=1)

    def release(self, slab: Slab, count: int = 1) -> None:
        """Take holds back."""
        with self._lock:
            slab.refcount -= count
            if not slab.refcount:
                self._on_unreferenced(slab)
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

    def release_when_unused(self) -> None:
        """Give the memory back to the system while nobody reads, as soon as nothing lies there."""
        with self._lock:
            self._releasing = True
            self._collect()
            while self._reclaimable:
                self._free_slab(next(iter(self._reclaimable)))
            if self._free.nbytes == self.size:
                self.memory.release_pages()

    def close(self) -> None:
        """Let go of the memory."""
        with self._lock:
            self._releasing = False
            self.memory.close()

    def _write(self, task_id: str, whole: FrameSlice, refcount: int) -> Slab | None:
        head, layouts, buffers, nbytes = encode_slice(task_id, whole)
        frame = whole.frame
        with self._lock:
            self._collect()
            at = self._allocate(nbytes)
        if at is None:
            return None
        self.memory.write(at, buffers, nbytes)  # without the lock: others need not wait, and nobody knows of it yet
        slab = Slab(at, nbytes, head, refcount, weakref.ref(frame))
        if frame.movable and self._may_move(nbytes):
            root = self.memory.base_array(at, nbytes)
            slab.owner, slab.moved = weakref.ref(root, self._on_dead(slab)), True
            frame.move_into(layouts, root)
            with self._lock:
                self._moved_bytes += slab.pages
        elif frame.reserve_encoded_bytes is None or frame.reserve_encoded_bytes(slab.pages):
            slab.owner = weakref.ref(frame, self._on_dead(slab))
        else:
            return slab  # for this reader: the window has no room to keep it for others
        frame.slab = slab
        return slab

    def _complete_laid_out(self, task_id: str, whole: FrameSlice, refcount: int) -> Slab | None:
        """The slab that a frame's one element was laid out in, completed; None where it lies elsewhere."""
        frame = whole.frame
        root = self._laid_out_array_of(frame) if self._awaiting_frame and frame.movable else None
        if root is None:
            return None
        slab = self._awaiting_frame[self.memory.offset_of(root)]
        head, layouts, buffers, nbytes = encode_slice(task_id, whole)
        if nbytes != slab.nbytes or not all(map(partial(_in_place, root), frame.columns, layouts)):
            return None
        del self._awaiting_frame[slab.at]
        self.memory.complete(slab.at, buffers)
        root.flags.writeable = False
        frame.move_into(layouts, root)
        slab.header, slab.refcount, slab.frame, frame.slab = head, refcount, weakref.ref(frame), slab
        return slab

    def _laid_out_array_of(self, frame: Frame) -> ByteArray | None:
        for column in frame.columns if frame.count == 1 else ():
            root = column.values[0].base
            if isinstance(root, np.ndarray):  # an array may also lie in bytes, a file, or memory of another library
                slab = self._awaiting_frame.get(self.memory.offset_of(root))
                if slab is not None and slab.owner is not None and slab.owner() is root:
                    return root
        return None

    def _may_move(self, nbytes: int) -> bool:
        """Whether a frame may have its only place here: some room is for what readers hold and nobody else needs."""
        return self._moved_bytes + nbytes <= self.size // 4 * 3

    # ---- under the lock

    def _allocate(self, nbytes: int) -> int | None:
        at = self._free.allocate(nbytes)
        while at is None and self._reclaimable:
            self._free_slab(next(iter(self._reclaimable)))
            at = self._free.allocate(nbytes)
        if at is None:
            return None
        try:
            self.memory.reserve(at + round_up_to_pages(nbytes))
        except OSError as error:
            self.shortage = str(error.strerror or error)
            self._free.free(at, nbytes)
            self._free.truncate(self.memory.reserved)
            self.size = self.memory.reserved
            return None
        return at

    def _collect(self) -> None:
        """Take back the slabs that the worker needs no more, unless a reader still looks at them."""
        while self._unneeded:
            slab = self._unneeded.popleft()
            if not slab.refcount:
                self._free_slab(slab)

    def _on_unreferenced(self, slab: Slab) -> None:
        """Learn that no reader looks at a slab."""
        if slab.owner is None or slab.owner() is None:
            self._free_slab(slab)
        elif not slab.moved:
            self._reclaimable[slab] = None

    def _free_slab(self, slab: Slab) -> None:
        """Have no slab there any more; it has no hold. The second call does nothing."""
        if slab.freed:
            return
        slab.freed = True
        self._reclaimable.pop(slab, None)
        if self._awaiting_frame.get(slab.at) is slab:
            del self._awaiting_frame[slab.at]
        frame = slab.frame() if slab.frame is not None else None
        if frame is not None and frame.slab is slab:
            frame.slab = None
        if slab.moved:
            self._moved_bytes -= slab.pages
        self._free.free(slab.at, slab.nbytes)

    def _on_dead(self, slab: Slab) -> Any:
        def on_dead(_ref: object) -> None:
            self._unneeded.append(slab)
            if self._releasing:
                self._on_unused()

        return on_dead


def _in_place(root: ByteArray, column: Column, layout: Layout) -> bool:
    """Whether a column that was laid out in a root is where its frame wants it."""
    value = column.values[0]
    return value.base is not root or address(value) == address(root) + layout.offset

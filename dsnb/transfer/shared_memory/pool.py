"""Slabs in a worker's shared memory: each frame is written once, and its slab kept as long as a reader may need it.

The reference count of a slab is the number of notices that were sent and not yet released. A slab with count 0 is kept
as long as its frame lives, for the next reader.

A frame whose columns can be views *moves into* its slab: it is then in memory once and counted once, by the window that
keeps it. Its slab is freed when no view of it is left, which a weak reference to the base array tells, as at the
reader's end. Other frames are copied: those that cannot move, and all once moved frames take three quarters of the
memory. A copy is freed with its frame, or earlier if the space is needed. The window counts the bytes of a copy as long
as it keeps the frame; if the window has no room for them, the copy is for one reader only.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dsnb.elements.columns import Column, Layout
from dsnb.elements.frame import Frame
from dsnb.transfer.frame_codec import encode_slice
from dsnb.transfer.protocol import FrameSlice
from dsnb.transfer.shared_memory.free_list import FreeList, round_up_to_pages
from dsnb.transfer.shared_memory.memory import ByteArray, SharedMemory, address


class Slab(msgspec.Struct, eq=False):
    """The part of the memory that holds one frame.

    Attributes:
        at: Its offset in the memory.
        nbytes: Bytes of the frame's body.
        header: The encoded header of the frame, the same for all readers.
        refcount: Notices that were sent and not released.
        frame: A weak reference to the frame; None before there is one.
        moved: Whether the frame's own columns are views of the slab.
        owner: A weak reference to the object whose death ends the worker's need of the slab: the base array of the
            frame's columns if it moved, else the frame. None if the slab is not kept for other readers.
        freed: Whether the slab was returned to the free list.
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
        """Bytes that the slab occupies, in whole pages."""
        return round_up_to_pages(self.nbytes)


class Pool:
    """Writes frames into a worker's shared memory, for all readers. Thread-safe.

    Args:
        size: Most bytes of memory.
        on_unused: Called when a slab became unneeded after `release_when_unused`. Called from weak reference callbacks,
            that is in any thread and at any point of its code, so it must not block or take locks.

    Raises:
        OSError: the system refuses to create the memory.

    Attributes:
        size: Most bytes of memory; becomes smaller if the host turns out to be short of memory.
        memory: The memory.
        shortage: The system's error when it had less memory than `size`; empty if it had enough.
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
        """By offset, the slabs from `allocate` whose element is not in a frame yet."""
        self._reclaimable: dict[Slab, None] = {}
        """Copies with reference count 0, which may be freed when space is needed; the least recently released first."""
        self._unneeded: deque[Slab] = deque()
        """Slabs whose owner has died since the last `_collect`. Weak reference callbacks append to it without the lock,
        because they may run in a thread that holds it."""

    def allocate(self, nbytes: int) -> ByteArray | None:
        """Allocate memory in which to build an element, so that its frame is in place; None if there is no room."""
        with self._lock:
            self._collect()
            if self._releasing or not self._may_move(nbytes):
                return None
            at = self._allocate(nbytes)
            if at is None:
                return None
            root = self.memory.writable_view(at, nbytes)
            if not len(root):  # the memory was closed
                return None
            slab = Slab(at, nbytes, moved=True)
            slab.owner = weakref.ref(root, self._on_dead(slab))
            self._moved_bytes += slab.pages
            self._awaiting_frame[at] = slab
            return root

    def prepare(self, task_id: str, frame_slice: FrameSlice) -> None:
        """Write a whole frame in advance, if it can move into a slab."""
        frame = frame_slice.frame
        if frame.slab is None and frame.movable and not self._complete_laid_out(task_id, frame_slice, refcount=0):
            if self._may_move(frame.nbytes):
                self._write(task_id, frame_slice, refcount=0)

    def acquire(self, task_id: str, frame_slice: FrameSlice) -> Slab | None:
        """Return the slab of a slice's frame with one more reference, writing it if needed; None if there is no room.

        Calls for one frame must not overlap; those of a task do not.
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
        """Drop `count` references that `acquire` added."""
        with self._lock:
            slab.refcount -= count
            if not slab.refcount:
                self._on_unreferenced(slab)
            self._collect()

    @property
    def free_bytes(self) -> int:
        """Bytes that no slab occupies."""
        with self._lock:
            self._collect()
            return self._free.nbytes

    @property
    def used_bytes(self) -> int:
        """Bytes that all slabs together occupy."""
        return self.size - self.free_bytes

    def release_when_unused(self) -> None:
        """Return the memory to the system as soon as no slab is left; called while there are no readers."""
        with self._lock:
            self._releasing = True
            self._collect()
            while self._reclaimable:
                self._free_slab(next(iter(self._reclaimable)))
            if self._free.nbytes == self.size:
                self.memory.release_pages()

    def close(self) -> None:
        """Close the memory; views of it stay valid."""
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
        # Not under the lock: it takes long, and no other thread knows the slab yet.
        self.memory.write(at, buffers, nbytes)
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
            return slab  # for this reader only: the window has no room to keep it for others
        frame.slab = slab
        return slab

    def _complete_laid_out(self, task_id: str, whole: FrameSlice, refcount: int) -> Slab | None:
        """Complete and return the slab in which a frame's only element was built; None if there is none."""
        frame = whole.frame
        root = self._laid_out_array_of(frame) if self._awaiting_frame and frame.movable else None
        if root is None:
            return None
        slab = self._awaiting_frame[self.memory.offset_of(root)]
        head, layouts, buffers, nbytes = encode_slice(task_id, whole)
        if nbytes != slab.nbytes or not all(map(partial(_in_place, root), frame.columns, layouts)):
            return None  # built in a slab, but not where this frame's layout needs it
        del self._awaiting_frame[slab.at]
        self.memory.complete(slab.at, buffers)
        root.flags.writeable = False
        frame.move_into(layouts, root)
        slab.header, slab.refcount, slab.frame, frame.slab = head, refcount, weakref.ref(frame), slab
        return slab

    def _laid_out_array_of(self, frame: Frame) -> ByteArray | None:
        for column in frame.columns if frame.count == 1 else ():
            root = column.values[0].base
            if isinstance(root, np.ndarray):  # the base may also be bytes, a file mapping, or memory of another library
                slab = self._awaiting_frame.get(self.memory.offset_of(root))
                if slab is not None and slab.owner is not None and slab.owner() is root:
                    return root
        return None

    def _may_move(self, nbytes: int) -> bool:
        """Whether a frame may move in. A quarter of the memory is left for copies, which only readers hold."""
        return self._moved_bytes + nbytes <= self.size // 4 * 3

    # ---- under the lock

    def _allocate(self, nbytes: int) -> int | None:
        at = self._free.allocate(nbytes)
        while at is None and self._reclaimable:
            self._free_slab(next(iter(self._reclaimable)))
            at = self._free.allocate(nbytes)
        if at is None:
            return None
        try:  # reserve pages now: touching a missing page later would kill the process
            self.memory.reserve(at + round_up_to_pages(nbytes))
        except OSError as error:
            self.shortage = str(error.strerror or error)
            self._free.free(at, nbytes)
            self._free.truncate(self.memory.reserved)
            self.size = self.memory.reserved
            return None
        return at

    def _collect(self) -> None:
        """Free the slabs whose owner has died. If a reader still holds one, the last `release` frees it."""
        while self._unneeded:
            slab = self._unneeded.popleft()
            if not slab.refcount:
                self._free_slab(slab)

    def _on_unreferenced(self, slab: Slab) -> None:
        """Handle a slab whose last reference was dropped."""
        if slab.owner is None or slab.owner() is None:
            self._free_slab(slab)
        elif not slab.moved:
            self._reclaimable[slab] = None

    def _free_slab(self, slab: Slab) -> None:
        """Free a slab with reference count 0. Further calls do nothing."""
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
    """Whether a column, if it was built in `root`, is at the offset that the frame's layout needs."""
    value = column.values[0]
    return value.base is not root or address(value) == address(root) + layout.offset

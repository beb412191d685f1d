"""The memory itself: how a worker makes and fills it, and how a reader looks at it."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from dsnb.elements.columns import bytes_of, coalesce_buffers
from dsnb.wire import forks

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def supported() -> bool:
    """Whether the system has what this needs: Linux, with memory that has no name."""
    return hasattr(os, "memfd_create") and hasattr(mmap, "MADV_REMOVE")


class ConsumedPage:
    """One number that a reader writes and its worker reads, also after the reader was killed.

    Args:
        descriptor: Of a page that the other process made; None to make one.

    Raises:
        OSError: the system refuses it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        mine = descriptor is None
        self.descriptor = os.memfd_create("dsnb-consumed", os.MFD_CLOEXEC) if descriptor is None else descriptor
        try:
            if mine:
                os.ftruncate(self.descriptor, mmap.PAGESIZE)
            self._map = mmap.mmap(self.descriptor, mmap.PAGESIZE)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._map.madvise(mmap.MADV_DONTFORK)
        self.cell = memoryview(self._map).cast("Q")[:1]

    def close_descriptor(self) -> None:
        """Let go of the file; the page stays mapped as long as somebody has the cell."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SharedMemory:
    """A worker's memory, mapped for writing.

    Args:
        size: Most bytes that it may ever have. It takes none of them before they are reserved.

    Raises:
        OSError: the system refuses it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reserved = 0
        """Bytes from the beginning on that are there for sure."""
        self._file = os.memfd_create("dsnb-slabs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.descriptor = -1
        """For readers: it can be mapped privately, and not written to."""
        try:
            os.ftruncate(self._file, size)
            # No reader can make it shorter, which would kill the worker at the next write.
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self._file, size)
            self.descriptor = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._file)
            raise
        # A process that user code forks off must not keep the memory when this one is gone.
        self._map.madvise(mmap.MADV_DONTFORK)
        forks.register_fd(self._file)
        forks.register_fd(self.descriptor)
        self._bytes: ByteArray = np.frombuffer(self._map, np.uint8)
        self._view = memoryview(self._map).toreadonly()
        self._address = address(self._bytes)

    def reserve(self, end: int) -> None:
        """Make sure of all pages up to a place.

        Raises:
            OSError: the host is short of memory, or does not allow so much.
        """
        if end > self.reserved:
            os.posix_fallocate(self._file, self.reserved, end - self.reserved)
            self.reserved = end

    def write(self, at: int, buffers: Sequence[Any], nbytes: int) -> None:
        """Fill a piece that is reserved."""
        to = self._bytes[at : at + nbytes]
        if not len(to):
            return  # it was closed meanwhile
        place = 0
        for buffer in coalesce_buffers(buffers):
            part = np.frombuffer(bytes_of(buffer), np.uint8)
            to[place : place + len(part)] = part
            place += len(part)

    def complete(self, at: int, buffers: Sequence[Any]) -> None:
        """Fill a piece, a part of which was laid out there."""
        place = at
        for buffer in buffers:
            part = np.frombuffer(bytes_of(buffer), np.uint8)
            to = self._bytes[place : place + len(part)]
            if address(part) != address(to):
                to[:] = part
            place += len(part)

    def base_array(self, at: int, nbytes: int) -> ByteArray:
        """A piece, as an array that all views of it have for their base."""
        return np.frombuffer(self._view, np.uint8, nbytes, at)

    def writable_view(self, at: int, nbytes: int) -> ByteArray:
        """A piece to be laid out in, as such a root that can be written to; of no bytes if the memory was closed."""
        return np.frombuffer(self._bytes.data, np.uint8, nbytes, at) if len(self._bytes) else self._bytes

    def offset_of(self, array: ByteArray) -> int:
        """Where an array lies in the memory; a number outside of it if it does not."""
        return address(array) - self._address

    def release_pages(self) -> None:
        """Give all pages back to the system; they are reserved anew when they are needed."""
        if self.reserved:
            with suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, 0, self.reserved)
                self.reserved = 0

    def close(self) -> None:
        """Let go of it; readers keep what they look at."""
        for descriptor in (self._file, self.descriptor):
            forks.unregister_fd(descriptor)
            os.close(descriptor)
        self._bytes, self._view = np.empty(0, np.uint8), memoryview(b"")
        with suppress(BufferError):  # a frame lies there, or is being written at this moment; it goes with its last use
            self._map.close()


def address(array: ByteArray) -> int:
    """Where an array lies in this process."""
    return int(array.__array_interface__["data"][0])


class _TrackedView(weakref.ref[ByteArray]):
    """Tells when the last view of a piece is gone."""

    __slots__ = ("at", "nbytes", "number", "on_released")
    at: int
    nbytes: int
    number: int
    on_released: Callable[[int, int], None]


class PrivateMapping:
    """A reader's own look at a memory: what is written there is the reader's alone.

    Args:
        descriptor: Of the memory; may be closed afterwards.
        size: Of the memory.

    Raises:
        OSError: the system refuses it: too many mappings or open files.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._views: dict[int, _TrackedView] = {}
        self._numbers = count()
        mapped = mmap.mmap(
            descriptor, size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._map = mapped
        self._view = memoryview(mapped).toreadonly()  # so NumPy cannot be talked into writing
        self._address = address(np.frombuffer(self._view, np.uint8))
        self._pagemap_fd = _open_pagemap()
        self._pagemap_finalizer = weakref.finalize(self, os.close, self._pagemap_fd) if self._pagemap_fd >= 0 else None
        _register_mapping(self)

    def base_array(self, at: int, nbytes: int) -> ByteArray:
        """A piece, as an array that all views of it have for their base."""
        return np.frombuffer(self._view, np.uint8, nbytes, at)

    def tracked_array(self, at: int, nbytes: int, on_released: Callable[[int, int], None]) -> ByteArray:
        """A piece as such a root; `gone(at, nbytes)` is called when the last view of it is gone.

        That is in any thread, in the midst of anything: it must wait for nobody.
        """
        root = self.base_array(at, nbytes)
        view = _TrackedView(root, self._on_view_dead)
        view.at, view.nbytes, view.number, view.on_released = at, nbytes, next(self._numbers), on_released
        self._views[view.number] = view
        return root

    def _on_view_dead(self, view: weakref.ref[ByteArray]) -> None:
        if isinstance(view, _TrackedView) and not sys.is_finalizing():
            del self._views[view.number]
            view.on_released(view.at, view.nbytes)

    @property
    def has_views(self) -> bool:
        """Whether there are views."""
        return bool(self._views)

    def privatize_views(self) -> None:
        """Have all pages of its views be this process's own, as if they had been written to."""
        for view in list(self._views.values()):
            first = view.at + -view.at % mmap.PAGESIZE
            for start, stop, step in ((view.at, view.at + 1, 1), (first, view.at + view.nbytes, mmap.PAGESIZE)):
                bytes_ = np.frombuffer(self._map, np.uint8)[start:stop:step]
                np.bitwise_or(bytes_, 0, out=bytes_)

    def discard_private_pages(self, at: int, nbytes: int) -> None:
        """Drop the pages of a piece that were written to, and have become this process's own."""
        if self._has_private_pages(at, nbytes):
            self._map.madvise(mmap.MADV_DONTNEED, at, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def _has_private_pages(self, at: int, nbytes: int) -> bool:
        """Whether a piece has such pages; True where the system does not tell."""
        if self._pagemap_fd < 0:
            return True
        first, end = (self._address + at) // mmap.PAGESIZE, -(-(self._address + at + nbytes) // mmap.PAGESIZE)
        try:
            entries = np.frombuffer(os.pread(self._pagemap_fd, 8 * (end - first), 8 * first), np.uint64)
        except OSError:
            return True
        return len(entries) != end - first or bool(
            (((entries & _PAGE_PRESENT) != 0) & ((entries & _PAGE_SHARED) == 0)).any()
        )

    def close_pagemap(self) -> None:
        """Let go of what is only there for speed: nothing new will be looked at."""
        self._pagemap_fd = -1
        if self._pagemap_finalizer is not None:
            self._pagemap_finalizer()


# From the kernel's pagemap.rst: a page is in memory or swapped out; it belongs to a file or is shared.
_PAGE_PRESENT = np.uint64(3 << 62)
_PAGE_SHARED = np.uint64(1 << 61)


_mappings: dict[int, weakref.ref[PrivateMapping]] = {}
_fork_hooks = count()


def _register_mapping(mapping: PrivateMapping) -> None:
    """Let a forked child keep what this process looks at: the memory may be written to again when it is done here."""
    if not next(_fork_hooks):
        os.register_at_fork(before=_privatize_all_views)
    number = id(mapping)
    _mappings[number] = weakref.ref(mapping, lambda _: _mappings.pop(number, None))


def _privatize_all_views() -> None:
    for known in list(_mappings.values()):
        mapping = known()
        if mapping is not None:
            mapping.privatize_views()


def _open_pagemap() -> int:
    """This process's page table to read from; -1 where it is hidden."""
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1

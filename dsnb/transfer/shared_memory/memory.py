"""The shared memory itself: how a worker creates and writes it, and how a reader maps it."""

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
    """Whether the system supports this transfer: Linux with memfd and MADV_REMOVE."""
    return hasattr(os, "memfd_create") and hasattr(mmap, "MADV_REMOVE")


class ConsumedPage:
    """A shared page with one number that a reader writes and its worker reads, even after the reader was killed.

    Args:
        descriptor: The descriptor of a page that the other process created; None to create one.

    Attributes:
        cell: The number, an unsigned 64-bit integer at index 0.

    Raises:
        OSError: the system refuses to create or map the page.
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
        """Close the file; the page stays mapped as long as `cell` is referenced."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SharedMemory:
    """A worker's memory, mapped for writing.

    Args:
        size: Most bytes that it can have. None of them use memory before they are reserved.

    Raises:
        OSError: the system refuses to create or map the memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reserved = 0
        """Bytes from the start whose pages are guaranteed to exist."""
        self._file = os.memfd_create("dsnb-slabs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.descriptor = -1
        """A read-only descriptor for readers: they can map the memory privately, but not write to it."""
        try:
            os.ftruncate(self._file, size)
            # Sealed so that no reader can shrink the file, which would kill the worker at its next write.
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self._file, size)
            self.descriptor = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._file)
            raise
        # A child forked by user code must not keep the memory after this process has ended.
        self._map.madvise(mmap.MADV_DONTFORK)
        forks.register_fd(self._file)
        forks.register_fd(self.descriptor)
        self._bytes: ByteArray = np.frombuffer(self._map, np.uint8)
        self._view = memoryview(self._map).toreadonly()
        self._address = address(self._bytes)

    def reserve(self, end: int) -> None:
        """Allocate all pages up to offset `end`.

        Raises:
            OSError: the host is short of memory, or a limit does not allow so much.
        """
        if end > self.reserved:
            os.posix_fallocate(self._file, self.reserved, end - self.reserved)
            self.reserved = end

    def write(self, at: int, buffers: Sequence[Any], nbytes: int) -> None:
        """Write a frame's body into reserved memory."""
        to = self._bytes[at : at + nbytes]
        if not len(to):
            return  # the memory was closed meanwhile
        place = 0
        for buffer in coalesce_buffers(buffers):
            part = np.frombuffer(bytes_of(buffer), np.uint8)
            to[place : place + len(part)] = part
            place += len(part)

    def complete(self, at: int, buffers: Sequence[Any]) -> None:
        """Write those buffers of a frame's body that are not in place already."""
        place = at
        for buffer in buffers:
            part = np.frombuffer(bytes_of(buffer), np.uint8)
            to = self._bytes[place : place + len(part)]
            if address(part) != address(to):
                to[:] = part
            place += len(part)

    def base_array(self, at: int, nbytes: int) -> ByteArray:
        """A read-only array of part of the memory; NumPy keeps it alive as the base of all its views."""
        return np.frombuffer(self._view, np.uint8, nbytes, at)

    def writable_view(self, at: int, nbytes: int) -> ByteArray:
        """A writable array of part of the memory, also the base of its views; empty if the memory was closed."""
        return np.frombuffer(self._bytes.data, np.uint8, nbytes, at) if len(self._bytes) else self._bytes

    def offset_of(self, array: ByteArray) -> int:
        """The offset of an array in the memory; out of range if the array is elsewhere."""
        return address(array) - self._address

    def release_pages(self) -> None:
        """Return all pages to the system; `reserve` allocates them again when they are needed."""
        if self.reserved:
            with suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, 0, self.reserved)
                self.reserved = 0

    def close(self) -> None:
        """Close the memory; readers keep the views that they have."""
        for descriptor in (self._file, self.descriptor):
            forks.unregister_fd(descriptor)
            os.close(descriptor)
        # Our own views first: a mapping with views cannot be closed.
        self._bytes, self._view = np.empty(0, np.uint8), memoryview(b"")
        with suppress(BufferError):  # a frame is there, or is being written: the mapping is freed with its last view
            self._map.close()


def address(array: ByteArray) -> int:
    """The address of an array's data in this process."""
    return int(array.__array_interface__["data"][0])


class _TrackedView(weakref.ref[ByteArray]):
    """A weak reference to a base array, which dies with its last view, and what to call then."""

    __slots__ = ("at", "nbytes", "number", "on_released")
    at: int
    nbytes: int
    number: int
    on_released: Callable[[int, int], None]


class PrivateMapping:
    """A reader's private mapping of a worker's memory: only this reader sees what it writes there.

    Args:
        descriptor: The descriptor of the memory; may be closed afterwards.
        size: The size of the memory in bytes.

    Raises:
        OSError: the system refuses the mapping: too many mappings or open files.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._views: dict[int, _TrackedView] = {}
        self._numbers = count()
        mapped = mmap.mmap(
            descriptor, size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._map = mapped
        self._view = memoryview(mapped).toreadonly()  # NumPy then refuses to make arrays writable
        self._address = address(np.frombuffer(self._view, np.uint8))
        self._pagemap_fd = _open_pagemap()
        self._pagemap_finalizer = weakref.finalize(self, os.close, self._pagemap_fd) if self._pagemap_fd >= 0 else None
        _register_mapping(self)

    def base_array(self, at: int, nbytes: int) -> ByteArray:
        """A read-only array of part of the memory; NumPy keeps it alive as the base of all its views."""
        return np.frombuffer(self._view, np.uint8, nbytes, at)

    def tracked_array(self, at: int, nbytes: int, on_released: Callable[[int, int], None]) -> ByteArray:
        """Like `base_array`; `on_released(at, nbytes)` is called when the last view of it is gone.

        The callback runs in any thread and at any point of its code, so it must not block.
        """
        root = self.base_array(at, nbytes)
        view = _TrackedView(root, self._on_view_dead)
        view.at, view.nbytes, view.number, view.on_released = at, nbytes, next(self._numbers), on_released
        self._views[view.number] = view
        return root

    def _on_view_dead(
        self, view: weakref.ref[ByteArray], *, is_finalizing: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        # At the end of Python this module's names may be gone, hence the default argument.
        if not is_finalizing() and isinstance(view, _TrackedView):
            del self._views[view.number]
            view.on_released(view.at, view.nbytes)

    @property
    def has_views(self) -> bool:
        """Whether a tracked array, or a view of one, is still alive."""
        return bool(self._views)

    def privatize_views(self) -> None:
        """Make private copies of all pages that have views, as if they had been written to."""
        for view in list(self._views.values()):
            first = view.at + -view.at % mmap.PAGESIZE
            for start, stop, step in ((view.at, view.at + 1, 1), (first, view.at + view.nbytes, mmap.PAGESIZE)):
                # One byte in each page is written with its own value: the kernel then copies the page.
                bytes_ = np.frombuffer(self._map, np.uint8)[start:stop:step]
                np.bitwise_or(bytes_, 0, out=bytes_)

    def discard_private_pages(self, at: int, nbytes: int) -> None:
        """Discard this process's private copies of pages, so that it sees what the worker writes there next."""
        if self.has_private_pages(at, nbytes):
            self._map.madvise(mmap.MADV_DONTNEED, at, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def has_private_pages(self, at: int, nbytes: int) -> bool:
        """Whether a part of the memory has private copies of pages; True if the system hides that."""
        if self._pagemap_fd < 0:
            return True
        first, end = (self._address + at) // mmap.PAGESIZE, -(-(self._address + at + nbytes) // mmap.PAGESIZE)
        nbytes = _ENTRY_BYTES * (end - first)
        try:
            entries = os.pread(self._pagemap_fd, nbytes, _ENTRY_BYTES * first)
        except OSError:
            return True
        return len(entries) != nbytes or bool(entries[_HIGH_BYTE::_ENTRY_BYTES].translate(None, delete=_NOT_PRIVATE))

    def close_pagemap(self) -> None:
        """Close the page table file, which only speeds up discarding pages; called at the end of a read."""
        self._pagemap_fd = -1
        if self._pagemap_finalizer is not None:
            self._pagemap_finalizer()


# An entry of the page table, as the kernel's pagemap.rst describes it: in its highest byte, the first two bits say that
# the page is present or swapped out, and the third one that it is file-backed or shared.
_ENTRY_BYTES = 8
_HIGH_BYTE = 7 if sys.byteorder == "little" else 0
_PRESENT, _SHARED = 0b1100_0000, 0b0010_0000
_NOT_PRIVATE = bytes(high for high in range(256) if high & _SHARED or not high & _PRESENT)


_mappings: dict[int, weakref.ref[PrivateMapping]] = {}
_fork_hooks = count()


def _register_mapping(mapping: PrivateMapping) -> None:
    """Keep views valid in forked children, by making private copies of all pages with views before each fork.

    Otherwise this process may release a slab, and the worker reuse it, while a child still has views of it.
    """
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
    """Open this process's page table for reading; -1 if the system hides it."""
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1

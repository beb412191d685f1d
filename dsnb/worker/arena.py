"""Memory for large buffers that several readers in this process share: each reader gets a private mapping.

Theory of operation. A buffer is written once into an anonymous memory file (memfd). A reader gets a view of a private
copy-on-write mapping of that file, so pages that it writes to are copied for it alone. All buffers of an arena are in
one file, which has as many mappings as one buffer has readers at a time. A mapping serves each buffer to one reader at
a time. If that reader wrote to its view, the mapping discards the written pages when the last view is gone. Otherwise
the pages stay mapped, and the next reader of this buffer, or of a later one at the same offset, has no page faults. A
buffer's space is free when neither its frame nor any view of it is left.

For small buffers a copy is faster than a mapping: to find out which pages were written to takes as long as copying a
few hundred kilobytes, and a copy is in the processor's cache already when it is read. Readers also get copies where
such memory is not available (another system, no memory left, too many mappings).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from dsnb.elements.copying import read_only_copy
from dsnb.transfer.shared_memory.free_list import FreeList, round_up_to_pages
from dsnb.transfer.shared_memory.memory import ByteArray, PrivateMapping, SharedMemory, supported

_MOST_MAPPINGS: Final = 16


class Arena:
    """The shared buffers of one log. Thread-safe. Its memory is freed with its last frame and the last view of it.

    Args:
        size: Most bytes. Memory is reserved only as it is used.

    Example:
        >>> import numpy as np
        >>> arena, image = Arena(1 << 22), np.ones(1 << 20, np.uint8)
        >>> held = arena.store([image], image.nbytes)
        >>> mine, yours = held.private_view(), held.private_view()
        >>> np.array_equal(mine, image), np.shares_memory(mine, yours)
        (True, False)
    """

    def __init__(self, size: int) -> None:
        self._size = round_up_to_pages(size)
        self._free = FreeList(self._size)
        self._lock = threading.Lock()
        self._memory: SharedMemory | None = None
        self._mappings: list[_PrivateMapping] = []
        self._pieces: dict[int, weakref.ref[ByteArray]] = {}
        self._gone: deque[tuple[int, int]] = deque()
        """Buffers that nothing refers to any more, as (offset, bytes).

        Filled by weak reference callbacks, which may run at any point of any thread, also while this thread holds the
        lock. So no lock is taken; `append` and `popleft` are atomic.
        """

    def store(self, buffers: Sequence[Any], nbytes: int) -> ArenaBuffer | None:
        """Write a buffer, given in parts; None if there is no room for it."""
        with self._lock:
            at = self._take(nbytes)
            memory = self._memory
        if at is None or memory is None:
            return None
        memory.write(at, buffers, nbytes)  # needs no lock: no other thread has this offset
        root = memory.base_array(at, nbytes)
        gone = self._gone
        self._pieces[at] = weakref.ref(root, lambda _: gone.append((at, nbytes)))
        return ArenaBuffer(self, root, at)

    def private(self, held: ArenaBuffer) -> ByteArray:
        """A private view of a buffer, or a copy of it if no further mapping can be made."""
        for mapping in list(self._mappings):
            if (view := mapping.view(held)) is not None:
                return view
        another = self._add_mapping()
        view = another.view(held) if another is not None else None
        return read_only_copy(held.base_array) if view is None else view

    def debug_state(self) -> dict[str, int]:
        """The numbers of private mappings, and of buffers whose frame or views are left."""
        buffers = [root() for root in list(self._pieces.values())]
        return {"mappings": len(self._mappings), "buffers": sum(root is not None for root in buffers)}

    def _take(self, nbytes: int) -> int | None:
        while self._gone:
            piece = self._gone.popleft()
            del self._pieces[piece[0]]
            self._free.free(*piece)
        at = self._free.allocate(nbytes)
        if at is None:
            return None
        try:
            self._memory = self._memory or self._made()
            self._memory.reserve(at + round_up_to_pages(nbytes))
        except OSError:  # the system has less memory than `size`: continue with what is reserved already
            self._free.free(at, nbytes)
            self._free.truncate(self._memory.reserved if self._memory is not None else 0)
            return None
        return at

    def _made(self) -> SharedMemory:
        if not supported():
            raise OSError
        memory = SharedMemory(self._size)
        weakref.finalize(self, memory.close).atexit = False
        return memory

    def _add_mapping(self) -> _PrivateMapping | None:
        memory = self._memory
        if memory is None or len(self._mappings) >= _MOST_MAPPINGS:
            return None
        try:
            mapping = _PrivateMapping(PrivateMapping(memory.descriptor, memory.size))
        except OSError:
            return None
        self._mappings.append(mapping)
        return mapping


class ArenaBuffer:
    """A buffer in an arena.

    Args:
        arena: The arena.
        base_array: The buffer in the arena's own shared mapping. Readers must never get a view of it.
        at: The buffer's offset in the arena.
    """

    __slots__ = ("_arena", "at", "base_array")

    def __init__(self, arena: Arena, base_array: ByteArray, at: int) -> None:
        self._arena = arena
        self.base_array = base_array
        self.at = at

    def private_view(self) -> ByteArray:
        """The buffer in memory that no other reader sees, marked read-only for NumPy."""
        return self._arena.private(self)


class _PrivateMapping:
    """One private mapping of the arena; each buffer in it has at most one reader at a time."""

    def __init__(self, mapping: PrivateMapping) -> None:
        self._mapping = mapping
        self._in_use: dict[int, ByteArray] = {}
        """The buffers with a view in this mapping, by offset. The references keep their space from being reused."""

    def view(self, held: ArenaBuffer) -> ByteArray | None:
        """A view of a buffer; None while this mapping has another view of it."""
        root = held.base_array[:]  # a new object: only the call that stores it gets the view
        # `setdefault` is atomic, so two threads cannot both claim the buffer.
        if self._in_use.setdefault(held.at, root) is not root:
            return None
        return self._mapping.tracked_array(held.at, len(root), self._returned)

    def _returned(self, at: int, nbytes: int) -> None:
        self._mapping.discard_private_pages(at, nbytes)
        del self._in_use[at]

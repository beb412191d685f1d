"""Memory for large buffers that several readers in this process share: each gets a private mapping of its own.

Theory of operation. A buffer is written once into a piece of memory without a name (memfd). A reader gets a view of a
private copy-on-write mapping of that memory: pages that it writes to are copied for it. All pieces lie in one memory,
which is mapped as often as one piece is looked at by several readers at once. A mapping lends a piece to one reader at
a time; when the last view is gone, it drops the pages that were written to. So it can be used again without a page
fault, for this piece and for what is written there next. A piece is free when neither its frame nor a view is left.

What a mapping saves over a copy it loses for smaller buffers: finding out which pages were written to takes as long as
copying a few hundred kilobytes, and a copy is in the processor's cache already when it is read. Where there is no such
memory (another system, none left, too many mappings), readers get copies.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from dsnb.elements.copying import read_only_copy
from dsnb.wire.transfer.shared_memory.free_list import FreeList, round_up_to_pages
from dsnb.wire.transfer.shared_memory.memory import ByteArray, PrivateMapping, SharedMemory, supported

_MOST_MAPPINGS: Final = 16


class Arena:
    """The memory of one log. Thread-safe; it goes with the last frame and the last view in it.

    Args:
        size: Most bytes. It takes none of them before they are used.

    Example:
        >>> import numpy as np
        >>> arena, image = Arena(1 << 22), np.ones(1 << 20, np.uint8)
        >>> held = arena.store([image], image.nbytes)
        >>> mine, yours = held.private(), held.private()
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
        """Pieces that nothing refers to any more. Filled in the midst of anything: no lock."""

    def store(self, buffers: Sequence[Any], nbytes: int) -> ArenaBuffer | None:
        """Write a buffer, given in parts; None where there is no room for it."""
        with self._lock:
            at = self._take(nbytes)
            memory = self._memory
        if at is None or memory is None:
            return None
        memory.write(at, buffers, nbytes)  # without the lock: nobody else knows of the piece
        root = memory.base_array(at, nbytes)
        gone = self._gone
        self._pieces[at] = weakref.ref(root, lambda _: gone.append((at, nbytes)))
        return ArenaBuffer(self, root, at)

    def private(self, held: ArenaBuffer) -> ByteArray:
        """A view of a piece, or a copy where the system has no mapping to spare."""
        for mapping in list(self._mappings):
            if (view := mapping.view(held)) is not None:
                return view
        another = self._add_mapping()
        view = another.view(held) if another is not None else None
        return read_only_copy(held.base_array) if view is None else view

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
        except OSError:  # the system has less: what there is goes on being used
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
    """A piece of an arena.

    Attributes:
        base_array: The buffer, as it was written; what is handed out must not be a view of it.
        at: Where it lies.
    """

    __slots__ = ("_arena", "at", "base_array")

    def __init__(self, arena: Arena, base_array: ByteArray, at: int) -> None:
        self._arena = arena
        self.base_array = base_array
        self.at = at

    def private_view(self) -> ByteArray:
        """The buffer as memory of the caller's own, read-only for NumPy."""
        return self._arena.private(self)


class _PrivateMapping:
    """One mapping, each piece of which is looked at by one reader at a time."""

    def __init__(self, mapping: PrivateMapping) -> None:
        self._mapping = mapping
        self._in_use: dict[int, ByteArray] = {}
        """The pieces that are looked at, by where they begin: they must not be written to meanwhile."""

    def view(self, held: ArenaBuffer) -> ByteArray | None:
        """A view of a piece; None while there is another one."""
        root = held.base_array[:]  # an object that is this call's alone
        if self._in_use.setdefault(held.at, root) is not root:
            return None
        return self._mapping.tracked_array(held.at, len(root), self._returned)

    def _returned(self, at: int, nbytes: int) -> None:
        self._mapping.discard_private_pages(at, nbytes)
        del self._in_use[at]

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

from dsnb.elements.exclusive import read_only_copy
from dsnb.wire.transfer.shared_memory.memory import Bytes, Mapping, Memory, supported
from dsnb.wire.transfer.shared_memory.slabs import FreeList, whole_pages

_MOST_MAPPINGS: Final = 16


class Arena:
    """The memory of one log. Thread-safe; it goes with the last frame and the last view in it.

    Args:
        size: Most bytes. It takes none of them before they are used.

    Example:
        >>> import numpy as np
        >>> arena, image = Arena(1 << 22), np.ones(1 << 20, np.uint8)
        >>> held = arena.hold([image], image.nbytes)
        >>> mine, yours = held.private(), held.private()
        >>> np.array_equal(mine, image), np.shares_memory(mine, yours)
        (True, False)
    """

    def __init__(self, size: int) -> None:
        self._size = whole_pages(size)
        self._free = FreeList(self._size)
        self._lock = threading.Lock()
        self._memory: Memory | None = None
        self._lenders: list[_Lender] = []
        self._pieces: dict[int, weakref.ref[Bytes]] = {}
        self._gone: deque[tuple[int, int]] = deque()
        """Pieces that nothing refers to any more. Filled in the midst of anything: no lock."""

    def hold(self, buffers: Sequence[Any], nbytes: int) -> Held | None:
        """Write a buffer, given in parts; None where there is no room for it."""
        with self._lock:
            at = self._take(nbytes)
            memory = self._memory
        if at is None or memory is None:
            return None
        memory.write(at, buffers, nbytes)  # without the lock: nobody else knows of the piece
        root = memory.root(at, nbytes)
        gone = self._gone
        self._pieces[at] = weakref.ref(root, lambda _: gone.append((at, nbytes)))
        return Held(self, root, at)

    def private(self, held: Held) -> Bytes:
        """A view of a piece, or a copy where the system has no mapping to spare."""
        for lender in list(self._lenders):
            if (lent := lender.lend(held)) is not None:
                return lent
        another = self._another_lender()
        lent = another.lend(held) if another is not None else None
        return read_only_copy(held.root) if lent is None else lent

    def _take(self, nbytes: int) -> int | None:
        while self._gone:
            piece = self._gone.popleft()
            del self._pieces[piece[0]]
            self._free.give(*piece)
        at = self._free.take(nbytes)
        if at is None:
            return None
        try:
            self._memory = self._memory or self._made()
            self._memory.reserve(at + whole_pages(nbytes))
        except OSError:  # the system has less: what there is goes on being used
            self._free.give(at, nbytes)
            self._free.end_at(self._memory.reserved if self._memory is not None else 0)
            return None
        return at

    def _made(self) -> Memory:
        if not supported():
            raise OSError
        memory = Memory(self._size)
        weakref.finalize(self, memory.close).atexit = False
        return memory

    def _another_lender(self) -> _Lender | None:
        memory = self._memory
        if memory is None or len(self._lenders) >= _MOST_MAPPINGS:
            return None
        try:
            lender = _Lender(Mapping(memory.descriptor, memory.size))
        except OSError:
            return None
        self._lenders.append(lender)
        return lender


class Held:
    """A piece of an arena.

    Attributes:
        root: The buffer, as it was written; what is handed out must not be a view of it.
        at: Where it lies.
    """

    __slots__ = ("_arena", "at", "root")

    def __init__(self, arena: Arena, root: Bytes, at: int) -> None:
        self._arena = arena
        self.root = root
        self.at = at

    def private(self) -> Bytes:
        """The buffer as memory of the caller's own, read-only for NumPy."""
        return self._arena.private(self)


class _Lender:
    """One mapping, each piece of which is looked at by one reader at a time."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._lent: dict[int, Bytes] = {}
        """The pieces that are looked at, by where they begin: they must not be written to meanwhile."""

    def lend(self, held: Held) -> Bytes | None:
        """A view of a piece; None while there is another one."""
        root = held.root[:]  # an object that is this call's alone
        if self._lent.setdefault(held.at, root) is not root:
            return None
        return self._mapping.view(held.at, len(root), self._returned)

    def _returned(self, at: int, nbytes: int) -> None:
        self._mapping.clean(at, nbytes)
        del self._lent[at]

"""One worker's hold on a recording that is made split by split: the shell around `cache/split_log`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dsnb.cache.backends import Gone, Shelf, Store, Unwritable, warn
from dsnb.cache.frames import joined
from dsnb.cache.opened import FileNote, first_change
from dsnb.cache.recording import Abandon, Begin, End, Piece, Place, Record, decode, encode
from dsnb.cache.split_log import SplitLog, elements_before, shortened
from dsnb.elements.frame import Frame
from dsnb.errors import DataLossError, DsnbError


class SplitRecording:
    """Reads and writes whole splits.

    Args:
        shelf: Where.
        begin: What to put into the first slot.
        total: The number of splits.
    """

    _store: Store
    _number = 0

    def __init__(self, shelf: Shelf, begin: Begin, total: int) -> None:
        self._shelf = shelf
        self._begin = begin
        self._total = total
        self._log = SplitLog()
        self._records: list[bytes] = []
        self._written: set[Place] = set()
        self.off: DsnbError | None = None
        self._unreadable = False
        self._try(self._open)

    @property
    def entropy(self) -> int:
        """The root of all randomness without a seed."""
        return (self._log.begin or self._begin).entropy

    def _open(self) -> None:
        number = max(1, self._shelf.newest())
        self._store = self._shelf.open(number)
        self._number = number
        self._start()

    def _start(self) -> None:
        self._refresh()
        change = first_change(self._log.files) if self._store.shared else ""
        if change:  # others may end what they have begun
            warn(change, "it is recorded anew", "")
            self._move()
            self._refresh()
        self._end()
        if self._log.ended:
            self._settle()  # whoever ended it may have died before it did

    def _try(self, act: object) -> None:
        assert callable(act)
        try:
            act()
        except (Unwritable, Gone) as error:
            self._switch_off(error.page)

    def stop_reading(self, page: DsnbError) -> None:
        """Produce all splits from now on: what is recorded cannot be read."""
        self._unreadable = True
        self._switch_off(page)

    def _switch_off(self, page: DsnbError) -> None:
        if self.off is None:
            warn(page.what, page.did or "the pass goes on without the cache", page.hint)
        self.off = page

    def _refresh(self) -> None:
        self._read_on()
        while self._log.begin is None and not self._claim(self._begin):
            self._read_on()

    def _read_on(self) -> None:
        while (data := self._store.read(self._log.next)) is not None:
            try:
                self._apply(decode(data), data)
            except DataLossError as damage:
                _tell(damage)
                self._move()
            if self._log.abandoned:
                self._move()

    def give_up(self, piece: Piece, damage: DataLossError) -> None:
        """Close a recording of which a piece is damaged, for all workers, and go over to the next one."""
        if self.off is None and self._log.holds(piece):  # else somebody else was first
            _tell(damage)
            self._try(lambda: self._abandon(damage.what))

    def _abandon(self, why: str) -> None:
        number = self._number
        while self._number == number and not self._claim(Abandon(why=why)):
            self._refresh()
        if self._number == number:
            self._move()
        self._start()

    def _move(self) -> None:
        """Go over to the next recording, with the same entropy: what is recorded already elsewhere is drawn alike."""
        self._begin = replace(self._begin, entropy=self.entropy)
        self._written.clear()
        self._store.close()
        self._number = max(self._number + 1, self._shelf.newest())
        self._store = self._shelf.open(self._number)
        self._log, self._records = SplitLog(), []

    def _apply(self, record: Record, data: bytes) -> None:
        self._log.apply(record)
        self._records.append(data)

    def _claim(self, record: Record) -> bool:
        data = encode(record)
        if not self._store.claim(self._log.next, data) and self._store.read(self._log.next) != data:
            return False
        self._apply(record, data)
        return True

    def cut(self, first: int, end: int) -> list[tuple[int, int, Piece | None]]:
        """A run of splits as what is recorded now and what is not."""
        if self.off is None:
            self._try(self._refresh)
        return [(first, end, None)] if self._unreadable else list(self._log.cut(first, end))

    def read(self, piece: Piece, first: int, end: int) -> Iterator[tuple[Frame, int, int]]:
        """The elements of a run of recorded splits: frames, each with the first element and the end in it.

        Raises:
            DataLossError: one is damaged.
            Unwritable: the store cannot be reached.
        """
        if not self._log.holds(piece):
            raise DataLossError("the recording was begun anew")
        at, stop = elements_before(piece, first), elements_before(piece, end)
        base = 0
        for place in piece.frames:
            low, high = max(at, base), min(stop, base + place.count)
            if low < high:
                yield self._store.frame(place), low - base, high - base
            base += place.count

    def keep(self, frames: Sequence[Frame]) -> tuple[Place, ...]:
        """Write frames of splits that are not whole yet."""
        places: list[Place] = []
        if self.off is None and frames:
            self._try(lambda: places.extend(self._store.put(joined(frames))))
        self._written.update(places)
        return tuple(places)

    def add(self, first: int, counts: Sequence[int], places: Sequence[Place], files: Sequence[FileNote]) -> None:
        """Commit whole splits, the first of which is `first`; nothing of a recording that was given up since."""
        if self.off is None and counts and self._written.issuperset(places):
            piece = Piece(first=first, counts=shortened(counts), frames=tuple(places), files=tuple(files))
            self._try(lambda: self._commit(piece))
            self._written.difference_update(places)

    def _commit(self, piece: Piece) -> None:
        number = self._number
        while self._number == number and not self._log.ended and not self._claim(piece):
            self._refresh()
        self._end()

    def _end(self) -> None:
        """Say that all splits are there, if they are: whoever recorded the last one may have died before it did."""
        while self._log.recorded >= self._total and not self._log.ended:
            if self._claim(End(epoch=0, elements=self._log.elements)):
                self._settle()
            else:
                self._refresh()

    def _settle(self) -> None:
        with contextlib.suppress(Unwritable, Gone):
            self._store.settle(self._records)

    def close(self) -> None:
        """Let go of the store."""
        if self._number:
            self._store.close()
        self._shelf.close()


def _tell(damage: DataLossError) -> None:
    warn(damage.what, "nothing of it was used; it is recorded anew", damage.hint)

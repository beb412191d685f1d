"""Where records are kept. In memory for now: it survives nothing, and lets a replay be compared with the live state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsnb.dispatcher.records import Record


class MemoryJournal:
    """The records of this process, in order."""

    def __init__(self, keep: int = 10_000) -> None:
        self._records: list[Record] = []
        self._keep = keep
        self.complete = True

    def append(self, records: Iterable[Record]) -> None:
        """Keep records; those of a long life are let go, for nothing reads them again in this process."""
        self._records.extend(records)
        if len(self._records) > self._keep:
            self._records.clear()
            self.complete = False

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records))

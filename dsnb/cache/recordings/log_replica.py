"""This process's copy of a recording's log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from dsnb.cache.recordings.backends import RecordingStore
from dsnb.cache.recordings.recording import Record, RecordingLog, decode_record, encode_record


class LogReplica:
    """The log of one store, as far as this process has read it.

    Args:
        store: The store that holds the slots.
        lock: Held while the log changes.

    Attributes:
        log: The state that the known records add up to.
        records: The known records, encoded as in the store.
    """

    def __init__(self, store: RecordingStore, lock: AbstractContextManager[object]) -> None:
        self._store = store
        self._lock = lock
        self.log = RecordingLog()
        self.records: list[bytes] = []

    def refresh(self) -> bool:
        """Read the records that are new; returns whether there were any.

        Raises:
            DataLossError: a record is damaged.
            FailedPreconditionError: a newer version of dsnb wrote a record.
        """
        known = self.log.next_slot
        while (data := self._store.read(self.log.next_slot)) is not None:
            self._add(decode_record(data), data)
        return self.log.next_slot > known

    def claim(self, record: Record, then: Callable[[], None] | None = None) -> bool:
        """Append a record; False if another process has appended one first.

        Args:
            record: The record to append.
            then: Called under the lock together with the change of the log, for state that must change with it.

        Raises:
            StoreFailed: the store refuses.
        """
        data = encode_record(record)
        # A claim may succeed in the store although its reply was lost, so a failed one is compared with the slot.
        if not self._store.claim(self.log.next_slot, data) and self._store.read(self.log.next_slot) != data:
            return False
        self._add(record, data, then)
        return True

    def _add(self, record: Record, data: bytes, then: Callable[[], None] | None = None) -> None:
        with self._lock:
            self.log.apply(record)
            self.records.append(data)
            if then is not None:
                then()

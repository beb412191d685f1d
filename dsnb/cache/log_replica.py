"""The log of one store as far as it is known here, and the next slot to claim."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from dsnb.cache.backends import RecordingStore
from dsnb.cache.recording import Record, RecordingLog, decode_record, encode_record


class LogReplica:
    """What this process knows of a log.

    Args:
        store: Where the slots are.
        lock: Held while the log changes.

    Attributes:
        log: What the known records add up to.
        records: The records as they lie in the store.
    """

    def __init__(self, store: RecordingStore, lock: AbstractContextManager[object]) -> None:
        self._store = store
        self._lock = lock
        self.log = RecordingLog()
        self.records: list[bytes] = []

    def refresh(self) -> bool:
        """Read the records that are new; whether there were any.

        Raises:
            DataLossError: one is damaged.
            FailedPreconditionError: a newer version of dsnb wrote one.
        """
        known = self.log.next_slot
        while (data := self._store.read(self.log.next_slot)) is not None:
            self._add(decode_record(data), data)
        return self.log.next_slot > known

    def claim(self, record: Record, then: Callable[[], None] | None = None) -> bool:
        """Put a record behind the last one; False if somebody else was first.

        Args:
            record: What to put there.
            then: What changes together with the log, for those who look at both.

        Raises:
            Unwritable: the store refuses.
        """
        data = encode_record(record)
        # A store may have done what it was asked and been cut off before it said so.
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

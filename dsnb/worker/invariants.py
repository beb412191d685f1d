"""Invariants of a `SharedLog`, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsnb.worker.shared_log import SharedLog


def validate(log: SharedLog) -> None:
    """Assert the invariants of a log, which hold between any two calls."""
    frames = log.frames
    frames.validate(keep=log.keep)
    assert log._unsent_bytes == frames.bytes_between(log.frontier, log.head), "unsent bytes are miscounted"
    assert log.frontier <= log.head, "something was sent before it was produced"
    for name, trainer in log.trainers.items():
        assert trainer.next <= max(log.frontier, log.tail, trainer.joined_at_index), "a trainer is beyond the frontier"
        assert log.offset(name) <= max(log.head, trainer.next), "an offset is beyond the head"
        assert trainer.hits + trainer.misses == trainer.consumed, "hits and misses do not make up the consumed"
        assert all(log.readers[client].trainer_id == name for client in trainer.readers), "a reader is misplaced"
    for reader in log.readers.values():
        assert reader.consumed + sum(span.count for span in reader.unconsumed) == reader.sent, (
            "sent elements are missing"
        )
        assert reader.buffered_bytes == sum(nbytes for _, nbytes in reader.buffered), "a reader's bytes are miscounted"
        assert reader.sent - reader.taken == sum(count for count, _ in reader.buffered), "buffered ones are miscounted"
        assert reader.consumed <= reader.taken, "a reader consumed what it did not take"

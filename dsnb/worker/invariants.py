"""What must hold of a window between any two calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsnb.worker.window import Window


def validate(window: Window) -> None:
    """Check a window."""
    frames = window.frames
    frames.validate(keep=window.keep)
    assert window._unsent == frames.bytes_between(window.frontier, window.head), "unsent bytes are miscounted"
    assert window.frontier <= window.head, "something was sent before it was produced"
    for name, trainer in window.trainers.items():
        assert trainer.next <= max(window.frontier, window.tail, trainer.since), "a trainer is beyond the frontier"
        assert window.offset(name) <= max(window.head, trainer.next), "an offset is beyond the head"
        assert trainer.hits + trainer.misses == trainer.consumed, "hits and misses do not make up the consumed"
        assert all(window.readers[client].trainer == name for client in trainer.readers), "a reader is misplaced"
    for reader in window.readers.values():
        assert reader.consumed + sum(run.count for run in reader.runs) == reader.sent, "sent elements are missing"
        assert reader.nbytes == sum(nbytes for _, nbytes in reader.buffered), "a reader's bytes are miscounted"
        assert reader.sent - reader.taken == sum(count for count, _ in reader.buffered), "buffered ones are miscounted"
        assert reader.consumed <= reader.taken, "a reader consumed what it did not take"

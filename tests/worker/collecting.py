"""A reader for tests: a sink that keeps what it gets."""

from __future__ import annotations

from typing import Any

from dsnb.transfer.protocol import FrameSlice, Sink
from dsnb.wire.messages import ReadRequest
from tests.support.waiting import wait_for

UNLIMITED = 1 << 30


class Collector(Sink):
    """Keeps pieces, and what else a reading says; see `dsnb.transfer.protocol.Sink`."""

    def __init__(self) -> None:
        self.pieces: list[FrameSlice] = []
        self.ends = 0
        self.recalls: list[int] = []
        self.errors: list[Exception] = []

    def deliver(self, piece: FrameSlice) -> None:
        self.pieces.append(piece)

    def end(self) -> None:
        self.ends += 1

    def recalled(self, granted: int) -> None:
        self.recalls.append(granted)

    def progress(self, whole: int, base: int) -> None:
        raise AssertionError("only consumers of coordinated reads are told of whole turns")

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    @property
    def count(self) -> int:
        """Elements that came so far."""
        return sum(piece.count for piece in list(self.pieces))

    @property
    def elements(self) -> list[Any]:
        """What came so far; errors that stand in elements' places as they are raised."""
        out: list[Any] = []
        for piece in list(self.pieces):
            try:
                out += piece.elements()
            except Exception as error:  # noqa: BLE001 - part of what came
                out.append(error)
        return out

    def wait_for(self, count: int) -> list[Any]:
        """The elements, when there are so many; never more."""
        wait_for(lambda: self.count >= count, what=f"{count} elements")
        assert self.count == count
        return self.elements

    def wait_for_end(self) -> list[Any]:
        """The elements, when the end was told."""
        wait_for(lambda: self.ends, what="the end")
        return self.elements

    def wait_for_error(self) -> Exception:
        wait_for(lambda: self.errors, what="an error")
        return self.errors[0]


def opening(client: str = "c", trainer: str = "", granted: int = UNLIMITED, **fields: Any) -> ReadRequest:
    """What a reader says that wants so many elements."""
    fields = {"max_bytes": UNLIMITED, **fields}
    return ReadRequest(task_id="t", client_id=client, trainer_id=trainer, granted=granted, **fields)

"""A failure: an error of user code in the place of an element. `code/failures` makes it and raises it again."""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """An error that can be sent to another process.

    Attributes:
        kind: The qualified name of the original class.
        message: The error's text.
        traceback: The remote traceback, as Python prints it, without dsnb's own frames.
        pickled: The pickled error; empty if it cannot be pickled and restored, is control flow, or exceeds 1 MiB.
        notes: The error's own notes, then those that dsnb adds: where it happened.
    """

    kind: str
    message: str
    traceback: str
    pickled: bytes = b""
    notes: tuple[str, ...] = ()

"""The two protocols that every backend for recordings implements.

`PipelineRecordings` stands for the recordings of one pipeline, numbered; only the newest counts. `RecordingStore` is
one of them: slots that are created exclusively, and frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dsnb import errors
from dsnb.cache.recordings.recording import FrameRef
from dsnb.elements.frame import Frame
from dsnb.errors import CacheWarning, DsnbError, ResourceExhaustedError


class RecordingStore(Protocol):
    """One recording.

    Every method raises `StoreFailed` when the system or a server refuses, whatever the original error was; the pass
    then continues without the recording. Only a recording by a newer version of dsnb raises a `DsnbError` to the user.
    """

    location: str
    """The location of the recording, for people."""
    shared: bool
    """Whether other processes may write it. If so, a writer sends heartbeats, and a waiting reader polls."""
    remote: bool
    """Whether a library talks to a server. If so, no call may be interrupted (`cache/recordings/shield`)."""
    max_poll_s: float
    """The longest time between two polls, in seconds."""

    def read(self, slot: int) -> bytes | None:
        """The record in a slot; None while the slot is free.

        Raises:
            RecordingLost: the store has forgotten the recording.
        """
        ...

    def claim(self, slot: int, record: bytes) -> bool:
        """Put a record into a free slot, permanently; False if the slot is taken.

        Raises:
            RecordingLost: the store has forgotten the recording.
            StoreFailed: the store refuses.
        """
        ...

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        """Store frames under names that no other process uses. They are durable when this returns."""
        ...

    def read_frame(self, ref: FrameRef) -> Frame:
        """Read a committed frame.

        Raises:
            DataLossError: the frame is missing or not as it was written.
        """
        ...

    def verify(self, ref: FrameRef) -> None:
        """Read a frame and compare it with its digest, without any cache.

        Raises:
            DataLossError: as `read_frame` does.
        """
        ...

    def write_heartbeat(self, epoch: int) -> None:
        """Show that the holder of this epoch is alive."""
        ...

    def read_heartbeat(self, epoch: int) -> object:
        """A value that changes with each heartbeat of this epoch."""
        ...

    def request_element(self, position: int) -> None:
        """Publish that a reader of this process waits for an element that is not committed. May get lost."""
        ...

    def requested_element(self) -> int:
        """The element that readers of other processes have requested last; -1 if there is no request."""
        ...

    def orphans(self) -> Sequence[str]:
        """Data of dead processes that may not be committed. A new writer calls this before it claims its slot."""
        ...

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        """Remove the orphans that no record names.

        Args:
            records: All records, up to and including the new writer's `LeaseTaken`. Dead processes add no records after
                these. Living ones may have, if the new writer was suspended; so their data must not be removed.
            orphans: What `orphans` returned before the claim.
        """
        ...

    def finalize(self, records: Sequence[bytes]) -> None:
        """Note that the recording is complete: data that no record names may be removed."""
        ...

    def close(self) -> None:
        """Release the store's files and connections."""
        ...


class PipelineRecordings(Protocol):
    """All recordings of one pipeline in one location."""

    key: tuple[str, str]
    """The location and the pipeline's key: equal for all objects in this process that stand for the same recordings."""

    def explain_miss(self) -> str:
        """Why there is no recording of this pipeline, if there is one of a similar pipeline; else empty."""
        ...

    def newest_number(self) -> int:
        """The number of the newest recording; 0 if there is none yet."""
        ...

    def open(self, number: int) -> RecordingStore:
        """Open a recording, which need not exist yet."""
        ...

    def close(self) -> None:
        """Release everything that was opened for the look-up."""
        ...


class StoreFailed(Exception):
    """A store refuses to store or cannot be read, for a reason that does not go away by waiting.

    Attributes:
        error: The error for the user.
    """

    def __init__(self, error: DsnbError) -> None:
        super().__init__(str(error))
        self.error = error


def limit_exceeded(location: str, limit: int) -> StoreFailed:
    """The exception for a recording that would exceed the limit of its location."""
    error = ResourceExhaustedError(
        f"the recording on {location} would be larger than the {limit:,} bytes of `limit_bytes`",
        did="what is recorded stays; the rest of the pass runs the pipeline",
        hint="raise `limit_bytes`",
    )
    return StoreFailed(error)


class RecordingLost(Exception):
    """A store has forgotten the recording.

    Attributes:
        error: The error for the user.
    """

    def __init__(self, error: DsnbError) -> None:
        super().__init__(str(error))
        self.error = error


def warn(what: str, did: str, hint: str) -> None:
    """Issue a `CacheWarning` about a problem that only costs time."""
    errors.warn(str(DsnbError(what, did=did, hint=hint)), CacheWarning)

"""What a place that keeps recordings can do: the two protocols that every store implements.

A `Shelf` holds the recordings of one pipeline, numbered; only the newest counts. A `Store` is one of them: slots that
are created exclusively, and frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dsnb import errors
from dsnb.cache.recording import FrameRef
from dsnb.elements.frame import Frame
from dsnb.errors import CacheWarning, DsnbError, ResourceExhaustedError


class RecordingStore(Protocol):
    """One recording.

    What the system or a server refuses is `StoreFailed`, in every method and of whatever error it comes: a pass goes on
    without its recording then. Only a recording of a newer version of dsnb is a `DsnbError`, raised to the user.
    """

    location: str
    """Where it lies, for people."""
    shared: bool
    """Whether other processes may write it: then a writer shows a pulse, and a reader that waits looks again."""
    remote: bool
    """Whether a library talks to a server: then no call of it may be interrupted."""
    max_poll_s: float
    """Seconds between two looks at most."""

    def read(self, slot: int) -> bytes | None:
        """The record in a slot; None while it is free.

        Raises:
            Gone: what was here has been forgotten.
        """
        ...

    def claim(self, slot: int, record: bytes) -> bool:
        """Put a record into a slot if that is free, for good; False if it is not.

        Raises:
            Gone: as `read` does.
            Unwritable: it cannot be done.
        """
        ...

    def write_frames(self, frames: Sequence[Frame]) -> tuple[FrameRef, ...]:
        """Keep frames where nobody else writes; they stay, whatever happens, once this returns."""
        ...

    def read_frame(self, ref: FrameRef) -> Frame:
        """A frame that is committed.

        Raises:
            DataLossError: it is not what was written, or it is gone.
        """
        ...

    def verify(self, ref: FrameRef) -> None:
        """Read a frame and compare it with its digest, whatever was read before.

        Raises:
            DataLossError: as `frame` does.
        """
        ...

    def write_heartbeat(self, epoch: int) -> None:
        """Show a pulse."""
        ...

    def read_heartbeat(self, epoch: int) -> object:
        """Something that changes with each pulse."""
        ...

    def request_element(self, position: int) -> None:
        """Say that a reader of this process waits for an element that is not committed. May be lost."""
        ...

    def requested_element(self) -> int:
        """The element that readers of other processes have last asked for; -1 if none did."""
        ...

    def orphans(self) -> Sequence[str]:
        """What dead processes wrote and may not have committed; a new writer asks before it claims its slot."""
        ...

    def remove_orphans(self, records: Sequence[bytes], orphans: Sequence[str]) -> None:
        """Remove what was left behind and is in no record.

        Args:
            records: All, up to the new writer's. The dead made none after these; the living may have, by now: a new
                writer may have slept since.
            orphans: What was left behind before that.
        """
        ...

    def finalize(self, records: Sequence[bytes]) -> None:
        """Learn that the recording is complete: what is in no record can go."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class PipelineRecordings(Protocol):
    """All recordings of one pipeline in one place."""

    key: tuple[str, str]
    """What is the same for all who mean the same recordings in this process: the place, and the pipeline's key."""

    def explain_miss(self) -> str:
        """Why there is no recording of this pipeline, although there is one of another like it; empty if not."""
        ...

    def newest_number(self) -> int:
        """The number of the newest recording; 0 if there is none yet."""
        ...

    def open(self, number: int) -> RecordingStore:
        """A recording; made if it is not there yet."""
        ...

    def close(self) -> None:
        """Let go of what was opened to look."""
        ...


class StoreFailed(Exception):
    """A store refuses to keep more or cannot be read, for a reason that waiting does not mend.

    Attributes:
        error: The error for the user.
    """

    def __init__(self, error: DsnbError) -> None:
        super().__init__(str(error))
        self.error = error


def limit_exceeded(location: str, limit: int) -> StoreFailed:
    """What to raise where one recording would be larger than its place may hold."""
    error = ResourceExhaustedError(
        f"the recording on {location} would be larger than the {limit:,} bytes of `limit_bytes`",
        did="what is recorded stays; the rest of the pass runs the pipeline",
        hint="raise `limit_bytes`",
    )
    return StoreFailed(error)


class RecordingLost(Exception):
    """A store has forgotten what was recorded there.

    Attributes:
        error: The error for the user.
    """

    def __init__(self, error: DsnbError) -> None:
        super().__init__(str(error))
        self.error = error


def warn(what: str, did: str, hint: str) -> None:
    """Tell the user of something that only costs time."""
    errors.warn(str(DsnbError(what, did=did, hint=hint)), CacheWarning)

"""The core of a recording: its log of records, which record may follow which, and what a reader does next.

Pure: no threads, I/O or clock.

Theory of operation. A recording is a log of numbered slots. A slot is created complete, exclusively and permanently by
the first process that claims it (the stores guarantee this). So all processes see the same log, and claiming the next
slot is a compare-and-swap on the end of the log. There is no other agreement between processes:

* The first slot (`RecordingHeader`) says what is recorded, and with which entropy. All unseeded randomness is derived
  from this entropy, so that a process that continues a recording draws the same numbers as its predecessor.
* A process that wants to write claims a slot with `LeaseTaken`, which increments the epoch and names the holder. It
  stores frames under names of its own first, and then commits them with a `Chunk` record. `RecordingEnded` says that
  there are no more elements, `LeaseReleased` that the holder stops early.
* *The log is the fence.* A take-over uses up the slot that a suspended writer would claim when it resumes, so its claim
  fails, and it finds the reason in the log. No clock or lock is involved, and a suspended process holds nothing.
* *The lease is only for liveness.* The holder writes a heartbeat. An observer that has seen no change of the heartbeat
  for the length of a lease, on its own clock, may take over. Clocks of different processes are never compared. Two
  processes that take over at once claim the same slot, and one of them is first.
* `RecordingAbandoned` closes a recording that cannot be continued; the next one begins under the next number.

A recording is *repeatable* if running the pipeline again from the start gives the same elements. A repeatable recording
is continued after its last chunk. Any other can be written by its first writer only.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash

from dsnb.cache.opened_files import FileState
from dsnb.errors import DataLossError, FailedPreconditionError

FORMAT: Final = 1


class FrameRef(msgspec.Struct, frozen=True, kw_only=True):
    """The location of one frame in a store.

    Attributes:
        name: The segment, file or key that holds the frame; each store has its own names.
        offset: The frame's first byte in it; in memory the index of the frame.
        nbytes: The length of the frame, in bytes.
        count: The number of elements in the frame.
        digest: xxh3-128 of the frame's bytes, in hexadecimal digits; empty in memory.
    """

    name: str
    offset: int
    nbytes: int
    count: int
    digest: str


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first record: what is recorded.

    Attributes:
        entropy: The root of all randomness without a seed.
        repeatable: Whether running the pipeline again gives the same elements.
        pipeline: The pipeline in one line, for people.
        version: The version of the format.
    """

    entropy: int
    repeatable: bool
    pipeline: str
    version: int = FORMAT


class LeaseTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A process begins to write.

    Attributes:
        epoch: The fencing number, one more than the last one.
        holder: The holder's id, unique among all processes and all leases of one process.
        name: The holder's process and host, for people.
    """

    epoch: int
    holder: str
    name: str


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A run of committed elements.

    Attributes:
        epoch: The writer's epoch.
        first: The index of the first element.
        count: The number of elements.
        frames: The locations of their frames.
        files: The files that were opened for these elements; readers compare them with the current files.
    """

    epoch: int
    first: int
    count: int
    frames: tuple[FrameRef, ...]
    files: tuple[FileState, ...] = ()


class SplitChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A run of complete, committed splits (`cache/recordings/split_log`).

    Attributes:
        first: The index of the first split.
        counts: The number of elements of each split, run-length encoded: (elements, number of consecutive splits).
        frames: The locations of the frames, in the order of the splits.
        files: The files that were opened for these splits.
    """

    first: int
    counts: tuple[tuple[int, int], ...]
    frames: tuple[FrameRef, ...]
    files: tuple[FileState, ...] = ()


class LeaseReleased(msgspec.Struct, frozen=True, kw_only=True):
    """The holder stops before the end; the next writer need not wait for the lease to expire."""

    epoch: int


class RecordingEnded(msgspec.Struct, frozen=True, kw_only=True):
    """There are no more elements.

    Attributes:
        epoch: The writer's epoch.
        elements: The number of elements in the recording.
        files: The files that were opened after the last element.
    """

    epoch: int
    elements: int
    files: tuple[FileState, ...] = ()


class RecordingAbandoned(msgspec.Struct, frozen=True, kw_only=True):
    """The recording is closed for all processes: it is neither read nor continued, for the reason `why`."""

    why: str


Record = RecordingHeader | LeaseTaken | Chunk | SplitChunk | LeaseReleased | RecordingEnded | RecordingAbandoned
_KINDS: Final[dict[str, type[Any]]] = {
    "begin": RecordingHeader,
    "take": LeaseTaken,
    "chunk": Chunk,
    "piece": SplitChunk,
    "release": LeaseReleased,
    "end": RecordingEnded,
    "abandon": RecordingAbandoned,
}
"""The kind that stands for each class in a stored log. These strings are part of the format."""
_KIND_OF: Final = {cls: kind for kind, cls in _KINDS.items()}


def kind_of(record: Record) -> str:
    """The string that stands for a record's class in a stored log."""
    return _KIND_OF[type(record)]


def encode_record(record: Record) -> bytes:
    """Encode a record as one line of JSON, followed by a line with its checksum."""
    line = json.dumps({"kind": kind_of(record), **msgspec.to_builtins(record)}, separators=(",", ":")).encode()
    return b"%s\n%s\n" % (line, xxhash.xxh3_64_hexdigest(line).encode())


def is_complete(data: bytes) -> bool:
    """Whether the data end where a record ends. Says nothing about the checksum: damaged data may be complete."""
    return data.count(b"\n") == 2 and data.endswith(b"\n")


@lru_cache(maxsize=512)  # each pass over a recording decodes the same records twice
def decode_record(data: bytes) -> Record:
    """Decode a record that `encode_record` wrote.

    Raises:
        FailedPreconditionError: the record was written by a newer version of dsnb.
        DataLossError: the checksum does not match.
    """
    line, _, rest = data.partition(b"\n")
    if rest != xxhash.xxh3_64_hexdigest(line).encode() + b"\n":
        raise DataLossError("a record of the log is damaged")
    values = json.loads(line)
    if values.get("version", FORMAT) > FORMAT or values.get("kind") not in _KINDS:
        raise FailedPreconditionError(
            "the recording was written by a newer version of dsnb",
            did="it was left as it is",
            hint="update dsnb here, or give this pipeline another place",
        )
    record: Record = msgspec.convert(values, _KINDS[values["kind"]])
    return record


def frame_bytes(data: bytes) -> int:
    """How many bytes the frames of an encoded record have; 0 if it cannot be decoded, which its reader finds out."""
    try:
        record = decode_record(data)
    except (DataLossError, FailedPreconditionError):
        return 0
    return sum(ref.nbytes for ref in record.frames) if isinstance(record, Chunk | SplitChunk) else 0


class RecordingLog:
    """The state that all records up to now add up to.

    Attributes:
        next_slot: The number of the slot after the last record.
        header: The first record; None before it.
        epoch: The newest fencing number.
        holder: The lease of the current writer; None if there is none.
        chunks: The committed chunks, in order.
        elements: The number of committed elements.
        ended: Whether the recording is complete.
        abandoned: Why the recording was abandoned; empty if it was not.
        files: The files that were opened for the committed elements.
    """

    def __init__(self) -> None:
        self.files: list[FileState] = []
        self.next_slot = 0
        self.header: RecordingHeader | None = None
        self.epoch = 0
        self.holder: LeaseTaken | None = None
        self.chunks: list[Chunk] = []
        self.elements = 0
        self.ended = False
        self.abandoned = ""
        self._frame_refs: list[tuple[int, FrameRef]] = []
        self._frame_starts: list[int] = []

    def apply(self, record: Record) -> None:
        """Add the next record.

        Raises:
            DataLossError: the record can never follow the previous ones, so the log was changed from outside.
        """
        if not self.admits(record):
            raise DataLossError(f"a {kind_of(record)} record stands where none can, in slot {self.next_slot}")
        self.next_slot += 1
        if isinstance(record, Chunk | RecordingEnded):
            self.files += record.files
        match record:
            case RecordingHeader():
                self.header = record
            case LeaseTaken():
                self.epoch, self.holder = record.epoch, record
            case Chunk():
                self._add(record)
            case LeaseReleased():
                self.holder = None
            case RecordingEnded():
                self.ended, self.holder = True, None
            case RecordingAbandoned():
                self.abandoned, self.holder = record.why or "abandoned", None

    def admits(self, record: Record) -> bool:
        """Whether this record may be the next one."""
        if isinstance(record, RecordingHeader):
            return self.next_slot == 0
        if self.header is None or self.abandoned or isinstance(record, SplitChunk):
            return False
        if isinstance(record, RecordingAbandoned):
            return True
        if isinstance(record, LeaseTaken):
            return not self.ended and record.epoch == self.epoch + 1
        if self.holder is None or record.epoch != self.epoch:
            # A record of an older epoch comes from a writer that was taken over: it must never be applied.
            return False
        if isinstance(record, Chunk):
            return record.first == self.elements and record.count == sum(ref.count for ref in record.frames) > 0
        return not isinstance(record, RecordingEnded) or record.elements == self.elements

    def _add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        for ref in chunk.frames:
            self._frame_starts.append(self.elements)
            self._frame_refs.append((self.elements, ref))
            self.elements += ref.count

    def frame_at(self, position: int) -> tuple[int, FrameRef]:
        """The frame that holds the element at `position`: the index of the frame's first element, and its location."""
        return self._frame_refs[bisect_right(self._frame_starts, position) - 1]

    @property
    def frame_refs(self) -> list[FrameRef]:
        """The locations of all committed frames, in order."""
        return [ref for _, ref in self._frame_refs]


class ReaderAction(Enum):
    """What a reader does next."""

    READ = auto()
    """Read the element, which is committed."""
    FINISH = auto()
    """Stop: there are no more elements."""
    WAIT = auto()
    """Wait for the process that is writing the element."""
    TAKE_LEASE = auto()
    """Become the writer of the recording."""
    ABANDON = auto()
    """Close this recording, which cannot be continued, and begin the next one."""
    OPEN_NEXT = auto()
    """Open the next recording: another process has abandoned this one."""
    STRANDED = auto()
    """Fail: the recording cannot be continued, and the reader has already seen a part of it."""


def next_action(log: RecordingLog, position: int, *, seen: bool, holder_lost: bool) -> ReaderAction:
    """Decide what a reader that wants the element at `position` does next.

    Args:
        log: All records that are known now.
        position: The index of the element.
        seen: Whether the reader has seen elements of this recording. Then it must not continue with the elements of
            another recording, unless the recording is repeatable.
        holder_lost: Whether the holder has ended, or has shown no heartbeat for the length of a lease.
    """
    repeatable = log.header is not None and log.header.repeatable
    if log.abandoned:
        return ReaderAction.OPEN_NEXT if repeatable or not seen else ReaderAction.STRANDED
    if log.ended:
        return ReaderAction.READ if position < log.elements else ReaderAction.FINISH
    held = log.holder is not None and not holder_lost
    continuable = repeatable or not log.elements
    if not held and not continuable and not seen:
        return ReaderAction.ABANDON
    # Committed elements can always be read, whatever happens to the writer.
    if position < log.elements:
        return ReaderAction.READ
    if held:
        return ReaderAction.WAIT
    return ReaderAction.TAKE_LEASE if continuable else ReaderAction.STRANDED


class LeaseWatch:
    """Detects that a holder has shown no heartbeat for the length of a lease, on the observer's own clock.

    An observer that was itself suspended or late must not count its own delay as the holder's silence. So at most a
    quarter of the lease is counted for the time between two checks.

    Args:
        lease: The length of the lease, in seconds.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._last_heartbeat: object = None
        self._last_check = 0.0
        self._silent_s = 0.0

    def has_expired(self, epoch: int, heartbeat: object, now: float) -> bool:
        """Check once; True if the heartbeat has not changed for the length of a lease.

        Args:
            epoch: The epoch of the holder.
            heartbeat: Any value that changes while the holder lives.
            now: Seconds on a monotonic clock.
        """
        if self._last_heartbeat != (epoch, heartbeat):
            self._last_heartbeat, self._silent_s = (epoch, heartbeat), 0.0
        else:
            self._silent_s += min(now - self._last_check, self._lease / 4)
        self._last_check = now
        return self._silent_s >= self._lease

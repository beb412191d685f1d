"""The core of a recording: a log of records, what may follow what, and what a reader does next. Decides, does nothing.

Theory of operation. A recording is a log of numbered slots. A slot is created whole, exclusively and for good, by
whoever is first (the stores' business), so all participants see one and the same log, and claiming the next slot is a
compare-and-swap on its end. Nothing else is ever agreed on:

* The first slot says what is recorded (`Begin`), and with which entropy: all randomness that has no seed is drawn from
  that, so that whoever goes on with a recording draws as the one before did.
* Whoever wants to write claims a slot with `Take`, which counts the epoch up and names the holder. Data go to a place
  of that epoch's own first, and then into the log as a `Chunk`; `RecordingEnded` says that there is no more, `LeaseReleased` that the
  holder stops early.
* *The log is the fence.* A take-over uses up the slot that a stopped writer would claim when it wakes up, so its claim
  fails, and it learns so from the log. No clock and no lock has a part in it, and nothing is held while stopped.
* *The lease is only for liveness.* The holder shows a pulse; an observer that has seen no change of it for the length
  of a lease, on a clock of its own, may take over. Clocks are never compared. Two who take over at once claim the same
  slot, and one of them is first.
* `RecordingAbandoned` closes a recording that cannot be gone on with; the next one begins under the next number.

A recording is *repeatable* if running the pipeline again from the start gives the same elements: then it is continued
at its last chunk. Else only its first writer can write it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import asdict, fields
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final

import xxhash

from dsnb.cache.opened_files import FileState
from dsnb.dataclass import dataclass
from dsnb.errors import DataLossError, FailedPreconditionError

FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRef:
    """Where one frame lies.

    Attributes:
        name: The segment, or whatever the store calls it.
        offset: Its first byte there.
        nbytes: Its length.
        count: The number of its elements.
        digest: xxh3-128 of its bytes.
    """

    name: str
    offset: int
    nbytes: int
    count: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """The first record: what is recorded.

    Attributes:
        entropy: The root of all randomness without a seed.
        repeatable: Whether running the pipeline again gives the same elements.
        pipeline: It in one line, for people.
        version: Of the format.
    """

    entropy: int
    repeatable: bool
    pipeline: str
    version: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTaken:
    """Somebody begins to write.

    Attributes:
        epoch: The fencing number, one more than the last.
        holder: Who, as the stores tell processes apart.
        name: Who, for people.
    """

    epoch: int
    holder: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Elements that are committed.

    Attributes:
        epoch: Of the writer.
        first: The index of the first element.
        count: The number of elements.
        frames: Where they lie.
        files: The files that were opened for them, which others must find unchanged.
    """

    epoch: int
    first: int
    count: int
    frames: tuple[FrameRef, ...]
    files: tuple[FileState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChunk:
    """Whole splits that are committed (`cache/split_log`).

    Attributes:
        first: The first split.
        counts: How many elements each split has, from the first on: a count, and how often it follows itself.
        frames: Where the elements lie, in the order of the splits.
        files: The files that were opened for them.
    """

    first: int
    counts: tuple[tuple[int, int], ...]
    frames: tuple[FrameRef, ...]
    files: tuple[FileState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased:
    """The holder stops before the end; the next in line need not wait."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingEnded:
    """There are no more elements; `files` were opened after the last one."""

    epoch: int
    elements: int
    files: tuple[FileState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingAbandoned:
    """Nobody reads or goes on with this recording any more."""

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
"""How stored records name their classes."""
_KIND_OF: Final = {cls: kind for kind, cls in _KINDS.items()}


def kind_of(record: Record) -> str:
    """The name of a record's class in a stored log."""
    return _KIND_OF[type(record)]


def encode_record(record: Record) -> bytes:
    """A record as one line of JSON, and its checksum on the next."""
    line = json.dumps({"kind": kind_of(record), **asdict(record)}, separators=(",", ":")).encode()
    return b"%s\n%s\n" % (line, xxhash.xxh3_64_hexdigest(line).encode())


def is_complete(data: bytes) -> bool:
    """Whether the end of a record is there; what is damaged may be whole."""
    return data.count(b"\n") == 2 and data.endswith(b"\n")


@lru_cache(maxsize=512)  # each pass over a recording asks for its records again, twice
def decode_record(data: bytes) -> Record:
    """The record that `encode` wrote.

    Raises:
        FailedPreconditionError: a newer version of dsnb wrote it.
        DataLossError: nobody wrote that.
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
    kind = _KINDS[values.pop("kind")]
    if kind is SplitChunk:
        values["counts"] = tuple(map(tuple, values["counts"]))
    if kind in (Chunk, SplitChunk):
        values["frames"] = tuple(FrameRef(**ref) for ref in values["frames"])
    if "files" in values:
        values["files"] = tuple(map(tuple, values["files"]))
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})  # type: ignore[no-any-return]


class RecordingLog:
    """What the records up to now add up to.

    Attributes:
        next_slot: The number of the slot behind the last record.
        header: The first record; None before it.
        epoch: The newest fencing number.
        holder: Who may write now; None if nobody does.
        chunks: What is committed, in order.
        elements: How many elements that is.
        ended: Whether these are all.
        abandoned: Why nobody is to read this any more; empty while it is good.
        files: The files that were opened for what is committed.
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
            DataLossError: it can never stand there: somebody tampered with the log.
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
        """Whether this record may be the next."""
        if isinstance(record, RecordingHeader):
            return self.next_slot == 0
        if self.header is None or self.abandoned or isinstance(record, SplitChunk):
            return False
        if isinstance(record, RecordingAbandoned):
            return True
        if isinstance(record, LeaseTaken):
            return not self.ended and record.epoch == self.epoch + 1
        if self.holder is None or record.epoch != self.epoch:
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
        """The frame that holds an element: the index of the frame's first element, and where it lies."""
        return self._frame_refs[bisect_right(self._frame_starts, position) - 1]

    @property
    def frame_refs(self) -> list[FrameRef]:
        """Where all committed frames lie, in order."""
        return [ref for _, ref in self._frame_refs]


class ReaderAction(Enum):
    """What a reader does."""

    READ = auto()
    """The element is committed."""
    FINISH = auto()
    """There are no more."""
    WAIT = auto()
    """Somebody else writes it."""
    TAKE_LEASE = auto()
    """Become the writer."""
    ABANDON = auto()
    """Close this recording, which nobody can go on with, and begin the next."""
    OPEN_NEXT = auto()
    """Somebody else has closed it."""
    STRANDED = auto()
    """Nobody can go on with it, and the reader has seen a part of it."""


def next_action(log: RecordingLog, position: int, *, seen: bool, holder_lost: bool) -> ReaderAction:
    """What a reader that wants the element at `position` does next.

    Args:
        log: All records that there are now.
        position: The index of the element.
        seen: Whether the reader has seen elements of this recording: then another one would not go on truthfully,
            unless it is repeatable.
        holder_lost: Whether the holder has ended, or has shown no pulse for the length of a lease.
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
    # What is committed can be read truthfully in any case.
    if position < log.elements:
        return ReaderAction.READ
    if held:
        return ReaderAction.WAIT
    return ReaderAction.TAKE_LEASE if continuable else ReaderAction.STRANDED


class LeaseWatch:
    """Tells when a holder has shown no pulse for the length of a lease, on the observer's own clock.

    An observer that was stopped itself, or late, must not take its own sleep for the holder's: of the time between two
    looks at most a quarter of the lease counts.

    Args:
        lease: Seconds.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._last_heartbeat: object = None
        self._last_check = 0.0
        self._silent_s = 0.0

    def has_expired(self, epoch: int, heartbeat: object, now: float) -> bool:
        """Look once.

        Args:
            epoch: Whose pulse it is.
            heartbeat: Anything that changes while the holder lives.
            now: Seconds on any clock that only goes forward.
        """
        if self._last_heartbeat != (epoch, heartbeat):
            self._last_heartbeat, self._silent_s = (epoch, heartbeat), 0.0
        else:
            self._silent_s += min(now - self._last_check, self._lease / 4)
        self._last_check = now
        return self._silent_s >= self._lease

"""Receipts: what was delivered of one epoch of a job, as sentences, HTML and plain data.

A number that cannot be known is `UNKNOWN`, never 0, and one of the `notes` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from dsnb.monitor.formatting import plural
from dsnb.monitor.snapshot import StatusRecord

UNKNOWN: Final = -1


class ReaderReceipt(StatusRecord, frozen=True, kw_only=True):
    """What one reader received; in the cross-trainer cache, one trainer.

    Attributes:
        reader: The trainer id, or the client id of a reader without one.
        state: "reading", "left", or "died" if it ended without saying what it had consumed.
        elements: How many elements it consumed, by its own count.
        missing: For a trainer that read to the end: how many elements did not reach it.
        digest: The digest of their contents; empty if it keeps none.
    """

    reader: str
    state: str
    elements: int = UNKNOWN
    missing: int = UNKNOWN
    digest: str = ""


class PartReceipt(StatusRecord, frozen=True, kw_only=True):
    """What was delivered of one task; all readers together.

    Attributes:
        task_id: The task.
        worker: The name of its last worker.
        state: "running", "done", or "lost" if its worker is gone and no other one could continue.
        expected: How many elements its shard, its splits or its pass has.
        delivered: How many of them were delivered.
        missing_at: If it was lost, what did not arrive, as in "splits 120 to 142 of range(10000)" or "elements 7 to 9
            of shard 2".
        exact: Whether all of that is missing. Otherwise what is missing is part of it: the worker had not reported
            these splits as consumed, and the pipeline does not keep their order, or makes another number of elements.
        restarts: How often it began again from its first element, or with its unfinished splits.
    """

    task_id: str
    worker: str
    state: str
    expected: int = UNKNOWN
    delivered: int = 0
    missing_at: tuple[str, ...] = ()
    exact: bool = False
    restarts: int = 0

    @property
    def missing(self) -> int:
        """How many of its elements were not delivered."""
        return UNKNOWN if self.expected == UNKNOWN else max(0, self.expected - self.delivered)


class Receipt(StatusRecord, frozen=True, kw_only=True):
    """What was delivered of one epoch of a job: counts by task and by reader. Prints as sentences.

    Attributes:
        job: The job's name.
        epoch: The epoch; 1 is the first.
        mode: The sharding policy, as in "DYNAMIC".
        cached: Whether trainers share it through the cross-trainer cache; `delivered` then counts for the trainer that
            received the fewest elements, and `missing` is the sum over all trainers.
        over: Whether it is over and all its readers have left.
        stopped: Why it ended before that, as in "was cancelled by alice"; empty if it did not.
        expected: How many elements it has.
        delivered: How many different elements were delivered.
        missing: How many were not; counted once the epoch is over.
        twice: How many deliveries repeated an element that had been delivered before.
        digest: With `Options(receipts=True)`, the digest of the contents of all that was consumed; with `cached`, of
            what each trainer consumed. Epochs with the same digest delivered the same elements, each equally often, in
            whatever order, and by whatever readers and workers.
        readers: Its readers, at most 100.
        parts: Its tasks, at most 100; those from which something is missing come first.
        notes: Why a number is not known.
    """

    job: str
    epoch: int
    mode: str
    cached: bool = False
    over: bool = False
    stopped: str = ""
    expected: int = UNKNOWN
    delivered: int = UNKNOWN
    missing: int = UNKNOWN
    twice: int = UNKNOWN
    digest: str = ""
    readers: tuple[ReaderReceipt, ...] = ()
    parts: tuple[PartReceipt, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def each_once(self) -> bool:
        """Whether it is over, and each element is known to have been delivered exactly once (to each trainer)."""
        return self.over and self.missing == 0 and self.twice == 0

    @property
    def summary(self) -> str:
        """The receipt in one line, without the job's name."""
        return f"receipt of epoch {self.epoch}{self._verdict()}"

    def __repr__(self) -> str:
        return "\n  ".join(self._lines())

    def _repr_html_(self) -> str:
        first, *rest = self._lines()
        items = "".join(f"<li>{escape(line)}</li>" for line in rest)
        return f"<p><b>{escape(first)}</b></p>" + (f"<ul>{items}</ul>" if items else "")

    def _lines(self) -> Iterator[str]:
        yield f"epoch {self.epoch} of job {self.job!r}{self._verdict()}"
        if self.cached:
            yield from map(self._trainer_line, self.readers)
        elif len(self.readers) > 1:
            for reader in self.readers:
                yield f"{reader.reader}: {_elements(reader.elements)}{_ending(reader)}"
        for part in self.parts:
            if self.mode == "OFF" or part.state == "lost" or (self.over and part.missing > 0):
                yield _part_line(part)
        yield from self.notes

    def _verdict(self) -> str:
        whole = "an unknown number of" if self.expected == UNKNOWN else f"{self.expected:,}"
        delivered = "an unknown number" if self.delivered == UNKNOWN else f"{self.delivered:,}"
        if self.stopped:
            return f" {self.stopped}: {delivered} of {whole} elements had been reported as consumed by then"
        if not self.over:
            return f" is not over yet: {delivered} of {whole} elements so far"
        contents = f"; contents {self.digest}" if self.digest else ""
        to_each = " to each trainer" if self.cached else ""
        if self.each_once:
            of = "" if self.expected == UNKNOWN else f" of {whole}"
            return f": {delivered}{of} elements, each once{to_each}{contents}"
        return f": {delivered} of {whole} elements; {self._missing_text()}, {self._twice_text()}{contents}"

    def _missing_text(self) -> str:
        if self.missing == UNKNOWN:
            return "how many did not arrive is not known"
        return f"{self.missing:,} did not arrive" if self.missing else "none is missing"

    def _twice_text(self) -> str:
        if self.twice == UNKNOWN:
            return "how many came twice is not known"
        return f"{self.twice:,} came twice" if self.twice else "none came twice"

    def _trainer_line(self, reader: ReaderReceipt) -> str:
        of = "" if self.expected == UNKNOWN else f" of {self.expected:,}"
        told = "" if reader.missing <= 0 else f", {reader.missing:,} did not arrive"
        return f"trainer {reader.reader!r}: {_elements(reader.elements, of)}{told}{_ending(reader)}"


def _elements(count: int, of: str = "") -> str:
    if count == UNKNOWN:
        return "an unknown number of elements"
    return f"{count:,}{of} elements" if of else plural(count, "element")


def _ending(reader: ReaderReceipt) -> str:
    return {"died": "; it died", "reading": "; it still reads"}.get(reader.state, "")


def _part_line(part: PartReceipt) -> str:
    of = "" if part.expected == UNKNOWN else f" of {part.expected:,}"
    places = f" ({'' if part.exact else 'among '}{', '.join(part.missing_at)})" if part.missing_at else ""
    again = f"; it began again {plural(part.restarts, 'time')}" if part.restarts else ""
    missing = f", {part.missing:,} did not arrive" if part.missing > 0 and part.state != "running" else ""
    return f"part of worker {part.worker} ({part.state}): {part.delivered:,}{of} elements{missing}{places}{again}"

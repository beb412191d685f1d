"""Gathering elements until they fill a batch: what `batch` and `padded_batch` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsnb.elements.exclusive import exclusive_rows, run_of
from dsnb.elements.structure import Structure, structure_of
from dsnb.pipeline.engine.assemble import OddElement
from dsnb.pipeline.engine.calls import chain_runs
from dsnb.pipeline.engine.pace import Pace
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage, Tracking, as_list

Assemble = Callable[[Structure, list[Any], int], Any]
"""Makes one element of several; gets their structure and the number of the first; raises `OddElement`."""
Together = Callable[[Structure, list[Any], int], Run | None]
"""Makes several small elements at once, so many of each; None where they are better made one by one."""


class GatherStage(Stage):
    """Gathers runs until they fill a batch.

    An element that does not go with the others is left out and its error raised in the batch's place; what was gathered
    stays, and an error from further up leaves it as it is too.

    Args:
        name: The operation's.
        source: The input.
        size: Elements of a batch.
        drop: Whether a last, smaller batch is left out.
        assemble: Makes a batch.
        together: Makes several batches at once; then rows of one array make batches as they are, too.
        copied_later: Whether such batches may be views of what the input lends.
    """

    def __init__(
        self,
        name: str,
        source: Stage,
        size: int,
        drop: bool,
        assemble: Assemble,
        *,
        together: Together | None = None,
        copied_later: bool = False,
    ) -> None:
        super().__init__(name, source)
        self._copied_later = copied_later
        self._size = size
        self._drop = drop
        self._assemble = assemble
        self._together = together
        self._pace = Pace()
        self._held: list[Run] = []
        self._count = 0
        self._numbered = 0
        self._ended = False
        self._structure: Structure | None = None

    @property
    def lends(self) -> bool:
        """Only batches that are rows of one array, where it may."""
        return self._copied_later and super().lends

    def skip(self, count: int) -> int:
        """As many of the input's as a batch has, as long as nothing is gathered and no element failed."""
        if self._count or self._failure is not None:
            return super().skip(count)
        skipped = self.inputs[0].skip(count * self._size)
        self._numbered += skipped
        whole, rest = divmod(skipped, self._size)
        return whole + (rest > 0 and not self._drop)

    def behind(self, count: int) -> Iterable[tuple[Stage, int]]:
        """As many of the input's as a batch has."""
        return ((self.inputs[0], count * self._size),)

    def resume_point(self, count: int) -> ResumePoint:
        """As many of the input's as a batch has; an error leaves no count to go by."""
        if self._erred or self._begun.skip:
            return super().resume_point(count)
        return self.pass_on(count * self._size)

    def track(self, *, held: bool = False) -> Tracking | None:
        """As many of the input's as a batch has; an error came in the place of one."""
        tracking = self.inputs[0].track(held=True)
        return None if tracking is None else _OfBatches(tracking, self._size)

    def produce(self, want: int) -> Run:
        """The next batches."""
        while self._count < self._size and not self._ended:
            # Paced, so that a slow function can be cancelled before the batch is full.
            began = perf_counter_ns()
            run = self.inputs[0].pull(self._next_want(want))
            self._pace.note(perf_counter_ns() - began)
            self._ended = not len(run)
            if not self._ended:
                self._held.append(run)
                self._count += len(run)
        size = min(self._size, self._count)
        if not size or (self._drop and size < self._size):
            return []
        return self._cut(size, min(want, self._count // size))

    def _next_want(self, want: int) -> int:
        """How many elements to ask for: up to the end of a batch where there are so many, so that nothing is left over.

        What is left over would have to be copied together with the next run.
        """
        wanted = min(self._pace.want, want * self._size - self._count)
        return wanted - max(0, wanted - (self._size - self._count)) % self._size

    def _cut(self, size: int, batches: int) -> Run:
        lent = len(self._held) == 1 and not self._copied_later and super().lends
        held = _joined(self._held)
        if isinstance(held, np.ndarray) and lent:
            batches = run_of(size * held[:1].nbytes, batches)
        taken = size * batches
        if isinstance(held, np.ndarray) and self._together is not None:
            self._keep(held[taken:], taken)
            run = held[:taken].reshape(batches, size, *held.shape[1:])
            if lent:
                return exclusive_rows(run)
            run.flags.writeable = False
            return run
        return self._assembled(as_list(held), size, batches)

    def _assembled(self, held: list[Any], size: int, batches: int) -> Run:
        if self._structure is None:
            self._structure = structure_of(held[0])
        if self._together is not None and batches > 1:
            made = self._together(self._structure, held[: size * batches], size)
            if made is not None:
                self._keep(held[size * len(made) :], size * len(made))
                return made
        out: list[Any] = []
        for first in range(0, size * batches, size):
            try:
                out.append(self._assemble(self._structure, held[first : first + size], self._numbered + first))
            except OddElement as odd:
                rest = held[first:]
                del rest[odd.index]
                self._keep(rest, first + 1)
                error = odd.error
                break
        else:
            self._keep(held[size * batches :], size * batches)
            return out
        return self.fail_after(error, out)

    def _keep(self, rest: Run, used: int) -> None:
        self._held = [rest] if len(rest) else []
        self._count = len(rest)
        self._numbered += used


class _OfBatches(Tracking):
    """Tells of elements where batches are consumed."""

    def __init__(self, tracking: Tracking, size: int) -> None:
        self._tracking = tracking
        self._size = size

    def consumed(self, elements: int, errors: int) -> None:
        self._tracking.consumed(elements * self._size, errors)

    def valid(self) -> bool:
        return self._tracking.valid()


def _joined(runs: list[Run]) -> Run:
    """Runs as one: an array if all are arrays of equal rows."""
    if len(runs) == 1:
        return runs[0]
    arrays = [run for run in runs if isinstance(run, np.ndarray)]
    if len(arrays) == len(runs) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return chain_runs(runs)

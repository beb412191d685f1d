"""Gathers elements into batches; shared by `batch` and `padded_batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsnb.elements.copying import copy_rows, copy_run_length
from dsnb.elements.structure import Structure, structure_of
from dsnb.pipeline.engine.assemble import UnbatchableElement
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, Stage, as_list, concat_runs

Assemble = Callable[[Structure, list[Any], int], Any]
"""Combines elements into one, given their structure, the elements and the number of the first; raises
`UnbatchableElement`."""
AssembleMany = Callable[[Structure, list[Any], int], Run | None]
"""Makes several small batches at once, given the structure, the elements and the batch size; None where one by one is
better."""


class BatchStage(Stage):
    """Gathers runs until they fill a batch.

    An element that does not fit the others is dropped, and its error takes the place of the batch. The gathered
    elements are kept, also when an error comes from the input.

    Args:
        name: The operation's name.
        source: The input.
        size: Elements of a batch.
        drop_remainder: Whether a smaller last batch is dropped.
        assemble: Makes a batch.
        assemble_many: Makes several batches at once. If given, rows of one array become batches without `assemble`.
        copied_later: Whether such batches may be views of memory that the input shares.
    """

    def __init__(
        self,
        name: str,
        source: Stage,
        size: int,
        drop_remainder: bool,
        assemble: Assemble,
        *,
        assemble_many: AssembleMany | None = None,
        copied_later: bool = False,
    ) -> None:
        super().__init__(name, source)
        self._copied_later = copied_later
        self._size = size
        self._drop_remainder = drop_remainder
        self._assemble = assemble
        self._assemble_many = assemble_many
        self._run_length = AdaptiveRunLength()
        self._held: list[Run] = []
        self._count = 0
        self._next_number = 0
        self._ended = False
        self._structure: Structure | None = None

    @property
    def may_share_memory(self) -> bool:
        """Whether batches may be views: only rows of one array that the input shares."""
        return self._copied_later and super().may_share_memory

    def skip(self, count: int) -> int:
        """Skip in the input while nothing is gathered and no element failed; otherwise make and drop the batches."""
        if self._count or self._failure is not None:
            return super().skip(count)
        skipped = self.inputs[0].skip(count * self._size)
        self._next_number += skipped
        full, rest = divmod(skipped, self._size)
        return full + (rest > 0 and not self._drop_remainder)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        return ((self.inputs[0], count * self._size),)

    def input_index(self, element: int) -> int | None:
        """The first element of a batch. An element that failed or did not fit shifts the later batches by one."""
        return element * self._size

    def resume_point(self, count: int) -> ResumePoint:
        """Resume after the input elements of `count` batches; after errors their number is unknown."""
        if self._had_errors or self._start_point.skip:
            return super().resume_point(count)
        return self.resume_point_of_inputs(count * self._size)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener | None:
        """Translate consumed batches to consumed elements of the input; an error took the place of one element."""
        listener = self.inputs[0].track_consumption(buffered=True)
        return None if listener is None else _BatchConsumptionListener(listener, self._size)

    def produce(self, want: int) -> Run:
        while self._count < self._size and not self._ended:
            # Short runs, so that a slow function can be cancelled before the batch is full.
            began = perf_counter_ns()
            run = self.inputs[0].pull(self._next_want(want))
            self._run_length.note(perf_counter_ns() - began)
            self._ended = not len(run)
            if not self._ended:
                self._held.append(run)
                self._count += len(run)
        size = min(self._size, self._count)
        if not size or (self._drop_remainder and size < self._size):
            return []
        return self._cut(size, min(want, self._count // size))

    def _next_want(self, want: int) -> int:
        """How many elements to pull: to the end of a batch where possible, so that no part of a run is left over.

        A left-over part would have to be copied together with the next run.
        """
        wanted = min(self._run_length.want, want * self._size - self._count)
        return wanted - max(0, wanted - (self._size - self._count)) % self._size

    def _cut(self, size: int, batches: int) -> Run:
        lent = len(self._held) == 1 and not self._copied_later and super().may_share_memory
        held = concat_runs(self._held)
        if isinstance(held, np.ndarray) and lent:
            # The rows may be views of shared memory, so they are copied below: limit how much is copied for one run.
            batches = copy_run_length(size * held[:1].nbytes, batches)
        taken = size * batches
        if isinstance(held, np.ndarray) and self._assemble_many is not None:
            self._keep_rest(held[taken:], taken)
            run = held[:taken].reshape(batches, size, *held.shape[1:])
            if lent:
                return copy_rows(run)
            run.flags.writeable = False
            return run
        return self._assemble_batches(as_list(held), size, batches)

    def _assemble_batches(self, held: list[Any], size: int, batches: int) -> Run:
        if self._structure is None:
            self._structure = structure_of(held[0])
        if self._assemble_many is not None and batches > 1:
            made = self._assemble_many(self._structure, held[: size * batches], size)
            if made is not None:
                self._keep_rest(held[size * len(made) :], size * len(made))
                return made
        out: list[Any] = []
        for first in range(0, size * batches, size):
            try:
                out.append(self._assemble(self._structure, held[first : first + size], self._next_number + first))
            except UnbatchableElement as odd:
                rest = held[first:]
                del rest[odd.index]
                self._keep_rest(rest, first + 1)
                error = odd.error
                break
        else:
            self._keep_rest(held[size * batches :], size * batches)
            return out
        return self.fail_after(error, out)

    def _keep_rest(self, rest: Run, used: int) -> None:
        self._held = [rest] if len(rest) else []
        self._count = len(rest)
        self._next_number += used


class _BatchConsumptionListener(ConsumptionListener):
    """Translates consumed batches to consumed elements."""

    def __init__(self, listener: ConsumptionListener, size: int) -> None:
        self._listener = listener
        self._size = size

    def consumed(self, elements: int, errors: int) -> None:
        self._listener.consumed(elements * self._size, errors)

    def may_consume(self) -> bool:
        return self._listener.may_consume()

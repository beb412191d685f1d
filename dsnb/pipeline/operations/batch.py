"""`Dataset.batch`: consecutive elements laid out as one, with a first dimension more."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from dsnb.elements.structure import Structure, structure_of
from dsnb.pipeline.engine.assemble import OddElement, batch_of
from dsnb.pipeline.engine.calls import chain_runs
from dsnb.pipeline.engine.pace import Pace
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import add_dimension, scaled


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(Operation):
    """`size` elements as one; the last batch may be smaller unless `drop_remainder`."""

    size: int
    drop_remainder: bool = False

    @property
    def name(self) -> str:
        """With the size."""
        return f"batch({self.size})"

    @property
    def element_spec(self) -> Any:
        """The input's with a first dimension more, known if all batches are full."""
        return add_dimension(self.inputs[0].element_spec, self.size if self.drop_remainder else None)

    @property
    def cardinality(self) -> int:
        """The input's, divided; rounded down with `drop_remainder`, else up."""
        spare = 0 if self.drop_remainder else self.size - 1
        return scaled(self.inputs[0].cardinality, lambda count: (count + spare) // self.size)

    def build(self, context: BuildContext) -> Stage:
        """A stage that gathers."""
        (source,) = self.build_inputs(context)
        return BatchStage(self, source)


class BatchStage(Stage):
    """Gathers runs until they fill a batch.

    An element that does not go with the others is left out and its error raised in the batch's place; what was gathered
    stays, and an error from further up leaves it as it is too.
    """

    def __init__(self, operation: Batch, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._size = operation.size
        self._drop = operation.drop_remainder
        self._pace = Pace()
        self._held: list[Run] = []
        self._count = 0
        self._numbered = 0
        self._ended = False
        self._structure: Structure | None = None

    def produce(self, want: int) -> Run:
        """The next batches."""
        while self._count < self._size and not self._ended:
            # Paced, so that a slow function can be cancelled before the batch is full.
            began = perf_counter_ns()
            run = self.inputs[0].pull(min(self._pace.want, want * self._size - self._count))
            self._pace.note(perf_counter_ns() - began)
            self._ended = not len(run)
            if not self._ended:
                self._held.append(run)
                self._count += len(run)
        size = min(self._size, self._count)
        if not size or (self._drop and size < self._size):
            return []
        return self._cut(size, min(want, self._count // size))

    def _cut(self, size: int, batches: int) -> Run:
        held = _joined(self._held)
        taken = size * batches
        if isinstance(held, np.ndarray):
            self._keep(held[taken:], taken)
            run = held[:taken].reshape(batches, size, *held.shape[1:])
            run.flags.writeable = False
            return run
        return self._assemble(held, size, batches)

    def _assemble(self, held: list[Any], size: int, batches: int) -> Run:
        if self._structure is None:
            self._structure = structure_of(held[0])
        out: list[Any] = []
        for first in range(0, size * batches, size):
            try:
                out.append(batch_of(self._structure, held[first : first + size], self._numbered + first))
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


def _joined(runs: list[Run]) -> Run:
    """Runs as one: an array if all are arrays of equal rows."""
    if len(runs) == 1:
        return runs[0]
    arrays = [run for run in runs if isinstance(run, np.ndarray)]
    if len(arrays) == len(runs) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return chain_runs(runs)

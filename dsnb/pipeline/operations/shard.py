"""`Dataset.shard`: keeps every n-th element."""

from __future__ import annotations

from typing import Final

from dsnb.errors import FailedPreconditionError, InvalidArgumentError, is_element_error
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, SameSpec
from dsnb.pipeline.specs import map_cardinality

SHARD_HINT: Final = -1
"""For `Dataset.shard`: the workers of a job in the mode `ShardingPolicy.HINT` replace it by their number and index."""


class Shard(SameSpec, frozen=True, kw_only=True):
    """The elements at `index`, `index + count`, and so on; a `count` of `SHARD_HINT` must be replaced first."""

    passes_through = True
    count: int
    index: int

    @property
    def is_hint(self) -> bool:
        """Whether workers must replace the numbers."""
        return self.count == SHARD_HINT

    @property
    def name(self) -> str:
        return "shard(SHARD_HINT, SHARD_HINT)" if self.is_hint else f"shard({self.count}, {self.index})"

    @property
    def cardinality(self) -> int:
        """The share of the input's cardinality; unknown while it is a hint."""
        if self.is_hint:
            return UNKNOWN_CARDINALITY
        return map_cardinality(self.inputs[0].cardinality, lambda known: len(range(self.index, known, self.count)))

    def build(self, context: BuildContext) -> Stage:
        """Build a stage that keeps every n-th element.

        Raises:
            FailedPreconditionError: the numbers are a hint that was not replaced.
        """
        if self.is_hint:
            raise FailedPreconditionError(
                f"{self.name} is filled in by the workers of a job; here, no worker did",
                did="nothing was read",
                hint="distribute it with ShardingPolicy.HINT, or give numbers: shard(2, 0)",
            )
        (source,) = self.build_inputs(context)
        return ShardStage(self, source)


class ShardStage(Stage):
    """Keeps its share of each run. The error of a failed element belongs to the shard of that element."""

    def __init__(self, operation: Shard, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._count, self._index = operation.count, operation.index
        self._gap = operation.index
        """How many elements come before the next one of this shard."""

    def input_index(self, element: int) -> int | None:
        return (self._start_point.skip + element) * self._count + self._index

    def produce(self, want: int) -> Run:
        needed = self._gap + 1 + (want - 1) * self._count
        while len(run := self._pull(min(needed, max(MAX_RUN_LENGTH, self._gap + 1)))):
            mine = run[self._gap :: self._count]
            self._advance(len(run))
            if len(mine):
                return mine
        return []

    def _pull(self, want: int) -> Run:
        while True:
            try:
                return self.inputs[0].pull(want)
            except Exception as error:
                if not is_element_error(error):
                    raise
                ours = self._gap == 0
                self._advance(1)
                if ours:
                    raise
                want = max(1, want - 1)

    def _advance(self, count: int) -> None:
        self._gap = (self._gap - count) % self._count


def checked_shard(count: int, index: int) -> tuple[int, int]:
    """Return the arguments of `Dataset.shard` if they are valid.

    Raises:
        InvalidArgumentError: they are not.
    """
    if count == SHARD_HINT:
        return SHARD_HINT, SHARD_HINT
    if count < 1:
        raise InvalidArgumentError(
            f"Number of shards must be greater than zero (currently num_shards = {count})",
            hint="pass 1 or more, or dsnb.SHARD_HINT for both",
        )
    if not 0 <= index < count:
        raise InvalidArgumentError(
            f"Index must be between 0 and {count - 1} (currently index = {index})",
            hint="shards are counted from 0; for workers to fill it in, shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT)",
        )
    return count, index

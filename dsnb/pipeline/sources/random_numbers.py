"""`Dataset.random`: an endless source of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsnb.elements.spec import TensorSpec
from dsnb.errors import UnimplementedError
from dsnb.pipeline.engine.randomness import fixed_key, iteration_key
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.splits import SplitProvider


class RandomNumbers(Operation, frozen=True, kw_only=True):
    """Numbers from 0 to 2**32 - 1, drawn anew in each iteration if there is no seed or `rerandomize` is set."""

    seed: int | None = None
    rerandomize: bool = False

    @property
    def name(self) -> str:
        return "random" if self.seed is None else f"random({self.seed})"

    @property
    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY

    @property
    def draws_without_seed(self) -> bool:
        return self.seed is None

    def split_provider(self) -> SplitProvider:
        """Refused: every worker would have to know what the others have drawn."""
        raise UnimplementedError(
            "the random numbers of `Dataset.random` cannot be cut into splits",
            hint='distribute with "parallel_epochs", or use Dataset.range(n).random_map(f)',
        )

    def build(self, context: BuildContext) -> Stage:
        return RandomNumbersStage(self, context)


class RandomNumbersStage(Stage):
    """Draws one 64-bit word for each number, so that skipping is one step."""

    skips_cheaply = True

    def __init__(self, operation: RandomNumbers, context: BuildContext) -> None:
        super().__init__(operation.name)
        anew = operation.seed is None or operation.rerandomize
        key = [*iteration_key(context, operation.seed), context.provider] if anew else fixed_key(operation.seed)
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def skip(self, count: int) -> int:
        self._bits.advance(count)
        return count

    def resume_point(self, count: int) -> ResumePoint:
        return ResumePoint(skip=self._start_point.skip + count)

    def produce(self, want: int) -> Run:
        run = (self._bits.random_raw(want) >> np.uint64(32)).astype(np.int64)
        run.flags.writeable = False
        return run

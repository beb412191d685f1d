"""`Dataset.random_map`: calls a user's function for each element, with random numbers that follow from the element.

Theory of operation. A counter-based generator (Philox) makes independent streams from one key, one for each counter.
The key follows from the seed and the epoch, and the counter from the number of the element (`engine/element_numbers`).
So an element gets the same stream on any worker, after a replay and after resuming.

Where an operation before it changes the number of elements, only the task's own count is left. Then the key also
follows from the task, and a replay of the task draws the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsnb.errors import is_element_error
from dsnb.pipeline.engine.calls import UserFunction
from dsnb.pipeline.engine.element_numbers import Number, numbering_source, source_index
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.randomness import iteration_key
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation, walk
from dsnb.pipeline.operations.map import MapStage


class RandomMap(Operation, frozen=True, kw_only=True):
    """`function(element, generator)` for each element."""

    function: Callable[..., Any]
    seed: int | None = None

    @property
    def name(self) -> str:
        return f"random_map({function_name(self.function)})"

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def elementwise(self) -> bool:
        return True

    @property
    def draws_without_seed(self) -> bool:
        return self.seed is None

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return RandomMapStage(self, source, context)


class RandomMapStage(MapStage):
    """Numbers its inputs before it calls the function for them."""

    def __init__(self, operation: RandomMap, source: Stage, context: BuildContext) -> None:
        function = UserFunction(
            operation.function, operation.name, keep_results=True, call=self._call, allocate=context.allocate
        )
        super().__init__(operation.name, source, function, low_latency=context.low_latency)
        self._function = operation.function
        self._numbering = numbering_source(source)
        if self._numbering is not None:
            self._numbering.start_numbering()
        # Other operations do not count: workers insert a `shard`, and the draws must stay the same.
        which = sum(isinstance(step, RandomMap) for step in walk(operation))
        key = [*iteration_key(context, operation.seed), which]
        if self._numbering is None and context.splits is not None:
            key.append(context.entropy)  # the task's own
        self._streams = _Streams(key)
        self._taken = 0
        """Elements of the input that were taken or skipped since this stage began, including errors."""

    def next_inputs(self, want: int) -> list[Any]:
        """Return pairs of an element and its number."""
        if self._pending_inputs:
            return super().next_inputs(want)
        try:
            run = as_list(self.inputs[0].pull(want))
        except Exception as error:
            self._taken += is_element_error(error)
            raise
        numbers = self._numbers(self._taken, len(run))
        self._taken += len(run)
        return list(zip(run, numbers, strict=True))

    def _numbers(self, first: int, count: int) -> list[Number]:
        if self._numbering is None:
            begun = self._start_point.counter + first
            return [(number, 0) for number in range(begun, begun + count)]
        begins = [source_index(self.inputs[0], element) for element in range(first, first + count)]
        if count and begins[-1] - begins[0] == count - 1:
            return self._numbering.numbers_of(begins[0], count)
        return [number for index in begins for number in self._numbering.numbers_of(index, 1)]

    def _call(self, numbered: tuple[Any, Number]) -> Any:
        element, number = numbered
        return self._function(element, self._streams.at(number))

    def skip(self, count: int) -> int:
        if not self.idle:
            return Stage.skip(self, count)
        skipped = self.inputs[0].skip(count)
        self._taken += skipped
        return skipped

    def resume_point(self, count: int) -> ResumePoint:
        return self.resume_point_of_inputs(count, counter=self._start_point.counter + count)

    def begin_at(self, point: ResumePoint) -> None:
        self._taken = 0
        super().begin_at(point)


class _Streams:
    """One generator, moved to the stream of a number at a time: making a generator takes longer than most draws."""

    def __init__(self, key: list[int]) -> None:
        words = np.random.SeedSequence(key).generate_state(2, np.uint64)
        self._bits = np.random.Philox(key=words)
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def at(self, number: Number) -> np.random.Generator:
        position, place = number
        self._state["state"]["counter"][:] = (0, 0, place, position)
        self._bits.state = self._state
        return self._generator

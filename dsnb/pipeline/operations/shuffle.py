"""`Dataset.shuffle`: draws each element from a buffer that is refilled from the input."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from msgspec.structs import replace

from dsnb.elements.copying import copy_run, copy_run_length, nbytes_of
from dsnb.pipeline.engine.randomness import fixed_generator, generator
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, SameSpec, walk
from dsnb.wire.messages import StageReport


class Shuffle(SameSpec, frozen=True, kw_only=True):
    """Elements in random order, within a buffer of `size` elements."""

    rearranges = True
    size: int
    seed: int | None = None
    reshuffle: bool = True

    @property
    def name(self) -> str:
        return f"shuffle({self.size})"

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    @property
    def inputs_per_element(self) -> int:
        return 1

    @property
    def draws_without_seed(self) -> bool:
        """False if it has a seed or draws the same in all iterations."""
        return self.seed is None and self.reshuffle

    def build(self, context: BuildContext) -> Stage:
        """Build the stage. Its input may share memory, since drawn elements are copied; so the buffer is cheap."""
        (source,) = self.build_inputs(replace(context, copied_later=True))
        return ShuffleStage(self, source, context)


class ShuffleStage(Stage):
    """Fills its buffer, then returns one drawn element for each that comes in; at the end the rest, permuted at once.

    The draws for a run are made together. Run lengths do not change their sequence, so a seed gives one order for any
    run lengths.
    """

    def __init__(self, operation: Shuffle, source: Stage, context: BuildContext) -> None:
        super().__init__(operation.name, source)
        self._size = operation.size
        node_index = sum(1 for _ in walk(operation))
        # If the input's length is known, `skip` can compute which elements remain in the buffer without reading any.
        self._length = operation.inputs[0].cardinality if context.splits is None else UNKNOWN_CARDINALITY
        self._random = (
            generator(context, operation.seed, node_index) if operation.reshuffle else fixed_generator(operation.seed)
        )
        self._run_length = AdaptiveRunLength()
        self._buffer: list[Any] = []
        self._ended = False
        self._copies_drawn = source.may_share_memory and not context.copied_later

    @property
    def may_share_memory(self) -> bool:
        """False if this stage copies drawn elements."""
        return super().may_share_memory and not self._copies_drawn

    def skip(self, count: int) -> int:
        """Make the draws for `count` elements, and read only those that are in the buffer afterwards."""
        if self._length < 0 or self._buffer or self._ended or self._failure is not None:
            return super().skip(count)
        size = min(self._size, self._length)
        kept = list(range(size))
        exchanged = min(count, self._length - size)
        if exchanged:
            # The same draws as in `_exchange`, on element numbers instead of elements.
            for fresh, index in enumerate(self._random.integers(0, self._size, exchanged).tolist(), start=size):
                kept[index] = fresh
        if count > exchanged:
            self._ended = True
            kept = [kept[place] for place in self._random.permutation(size).tolist()]
            del kept[max(0, size - (count - exchanged)) :]
        self._buffer = self._elements_at(kept)
        self._length = UNKNOWN_CARDINALITY
        return min(count, exchanged + size)

    def _elements_at(self, indices: list[int]) -> list[Any]:
        """Return elements of the input by their numbers; skip those in between."""
        found: dict[int, Any] = {}
        at = 0
        for first, length in _consecutive_ranges(sorted(indices)):
            self.inputs[0].skip(first - at)
            at = first
            while at < first + length:
                run = as_list(self.inputs[0].pull(first + length - at))
                found.update(enumerate(run, start=at))
                at += len(run) or length  # the input is shorter than it stated
        return [found[index] for index in indices if index in found]

    def produce(self, want: int) -> Run:
        if not self._copies_drawn:
            return self._draw(want)
        if self._buffer:
            want = copy_run_length(nbytes_of(self._buffer[0]), want)
        return copy_run(self._draw(want))

    def _draw(self, want: int) -> list[Any]:
        while not self._ended and len(self._buffer) < self._size:
            self._fill(min(self._run_length.want, self._size - len(self._buffer)))
        if not self._ended:
            fresh = as_list(self.inputs[0].pull(want))
            if fresh:
                return self._exchange(fresh)
            self._permute_rest()
        rest = self._buffer[: -want - 1 : -1]
        del self._buffer[-want:]
        return rest

    def _fill(self, want: int) -> None:
        # Short runs, so that a slow function can be cancelled before the buffer is full.
        began = perf_counter_ns()
        run = as_list(self.inputs[0].pull(want))
        self._run_length.note(perf_counter_ns() - began)
        self._buffer += run
        if not run:
            self._permute_rest()

    def _exchange(self, fresh: list[Any]) -> list[Any]:
        buffer = self._buffer
        drawn = self._random.integers(0, self._size, len(fresh)).tolist()
        out = []
        for index, element in zip(drawn, fresh, strict=True):
            out.append(buffer[index])
            buffer[index] = element
        return out

    def _permute_rest(self) -> None:
        self._ended = True
        order = self._random.permutation(len(self._buffer)).tolist()
        self._buffer = [self._buffer[index] for index in order]

    def report(self, depth: int) -> StageReport:
        """Counters of this stage; the elements in the buffer count as buffered."""
        return replace(super().report(depth), buffered=len(self._buffer), capacity=self._size)


def _consecutive_ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive numbers, as first number and length."""
    first = 0
    for index, number in enumerate(numbers):
        if index + 1 == len(numbers) or numbers[index + 1] != number + 1:
            yield numbers[first], index + 1 - first
            first = index + 1

"""`Dataset.skip`: all but the first elements."""

from __future__ import annotations

from collections.abc import Iterable

from dsnb.dataclass import dataclass
from dsnb.pipeline.engine.run_length import MAX_RUN_LENGTH
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, SameSpec
from dsnb.pipeline.specs import map_cardinality


@dataclass(frozen=True, kw_only=True, eq=False)
class Skip(SameSpec):
    """What comes after the first `count` elements; nothing if it is negative."""

    passes_through = True
    count: int

    @property
    def name(self) -> str:
        """With the count."""
        return f"skip({self.count})"

    @property
    def cardinality(self) -> int:
        """The input's less the count."""
        if self.count < 0:
            return 0
        return map_cardinality(self.inputs[0].cardinality, lambda known: max(0, known - self.count))

    def build(self, context: BuildContext) -> Stage:
        """A stage that drops."""
        (source,) = self.build_inputs(context)
        return SkipStage(self, source)


class SkipStage(Stage):
    """Drops runs first. An element that failed among the dropped counts as one of them, and its error is raised."""

    one_to_one = True
    drops_prefix = True

    def __init__(self, operation: Skip, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._skips_all = operation.count < 0
        self._left = self._dropped = max(0, operation.count)

    def skip(self, count: int) -> int:
        """Both at once."""
        if self._skips_all:
            return 0
        left, self._left = self._left, 0
        return max(0, self.inputs[0].skip(left + count) - left)

    def consumed_inputs(self, count: int) -> Iterable[tuple[Stage, int]]:
        """The same of the input, and the dropped ones."""
        return ((self.inputs[0], self._dropped + count if count else 0),)

    def produce(self, want: int) -> Run:
        """The next elements behind the dropped ones."""
        if self._skips_all:
            return []
        if self._left and self.inputs[0].skips_cheaply:
            self.inputs[0].skip(self._left)
            self._left = 0
        while self._left:
            try:
                dropped = len(self.inputs[0].pull(min(self._left, MAX_RUN_LENGTH)))
            except Exception:  # not an interrupt, which is no element
                self._left -= 1
                raise
            self._left -= dropped
            if not dropped:
                return []
        return self.inputs[0].pull(want)

"""`Dataset.zip`: combines one element of each of several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsnb.elements.structure import Structure, elements_of, rebuild
from dsnb.errors import is_element_error
from dsnb.pipeline.engine.resume_point import ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import shortest_cardinality


class Zip(Operation, frozen=True, kw_only=True):
    """Elements of the inputs, nested like `structure`; as many as the shortest input has."""

    rearranges = True

    structure: Structure

    @property
    def element_spec(self) -> Any:
        specs = [source.element_spec for source in self.inputs]
        return None if any(spec is None for spec in specs) else rebuild(self.structure, iter(specs))

    @property
    def cardinality(self) -> int:
        return shortest_cardinality([source.cardinality for source in self.inputs])

    def build(self, context: BuildContext) -> Stage:
        return ZipStage(self, self.build_inputs(context))


class ZipStage(Stage):
    """Buffers elements of inputs that returned more than others.

    If an element of one input fails, the corresponding elements of the other inputs are dropped, so that the rest stays
    aligned.
    """

    def __init__(self, operation: Zip, sources: Sequence[Stage]) -> None:
        super().__init__(operation.name, *sources)
        self._structure = operation.structure
        self._held: list[list[Any]] = [[] for _ in sources]
        self._to_drop = [0] * len(sources)
        self._ended = False

    def skip(self, count: int) -> int:
        """Skip in all inputs, as long as no elements of them are buffered."""
        if self._ended or any(self._held) or any(self._to_drop):
            return super().skip(count)
        skipped = min(source.skip(count) for source in self.inputs)
        self._ended = skipped < count
        return skipped

    def resume_point(self, count: int) -> ResumePoint:
        """The same count in all inputs; after an error they are no longer aligned."""
        return (
            super().resume_point(count)
            if self._had_errors or self._start_point.skip
            else self.resume_point_of_inputs(count)
        )

    def produce(self, want: int) -> Run:
        for index in range(len(self.inputs)):
            if self._ended or not self._fill(index, want):
                self._ended = True
                return []
        count = min(want, *map(len, self._held))
        columns = [held[:count] for held in self._held]
        self._held = [held[count:] for held in self._held]
        return as_list(list(elements_of(self._structure, iter(columns))))

    def _fill(self, index: int, want: int) -> bool:
        """Buffer at least one element of an input after dropping those that belong to an error; False at its end."""
        while self._to_drop[index] or not self._held[index]:
            held = self._held[index]
            if not held:
                held = self._pull(index, want)
                if not held:
                    return False
            dropped = min(self._to_drop[index], len(held))
            self._to_drop[index] -= dropped
            self._held[index] = held[dropped:]
        return True

    def _pull(self, index: int, want: int) -> list[Any]:
        try:
            return as_list(self.inputs[index].pull(want))
        except Exception as error:
            if is_element_error(error):
                self._drop_corresponding(index)
            raise

    def _drop_corresponding(self, index: int) -> None:
        """Drop what belongs to an element of one input that failed."""
        if self._to_drop[index]:
            self._to_drop[index] -= 1  # the corresponding element of another input failed too
        else:
            self._to_drop = [owed + (other != index) for other, owed in enumerate(self._to_drop)]

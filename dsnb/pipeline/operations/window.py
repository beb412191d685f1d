"""`Dataset.window`: makes datasets of consecutive elements, which may overlap."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from dsnb.elements.structure import Structure, StructureMismatch, columns_of, rebuild, structure_of
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.engine.to_numpy import mismatch
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.sources.elements import Elements
from dsnb.pipeline.specs import map_cardinality


class Window(Operation, frozen=True, kw_only=True):
    """A dataset of `size` elements, each `stride` after the one before, for every `shift` elements of the input.

    Attributes:
        make_dataset: Makes the dataset of a window from its operation.
        size: Elements of a window.
        shift: Distance between the starts of windows.
        stride: Distance between the elements of a window.
        drop_remainder: Whether smaller last windows are dropped.
    """

    make_dataset: Callable[[Operation], Any]
    size: int
    shift: int
    stride: int = 1
    drop_remainder: bool = False

    @property
    def name(self) -> str:
        return f"window({self.size})"

    @property
    def span(self) -> int:
        """How many elements of the input a full window spans, from its first to its last."""
        return (self.size - 1) * self.stride + 1

    @property
    def cardinality(self) -> int:
        """The number of positions where a window begins; with `drop_remainder`, where a full one begins."""
        last = self.span if self.drop_remainder else 1
        return map_cardinality(self.inputs[0].cardinality, lambda count: max(0, (count - last) // self.shift + 1))

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return WindowStage(self, source)


class WindowStage(Stage):
    """Buffers the elements from the start of the next window on.

    A failed element is in no window, as it is in no batch; the same holds for an element whose structure differs from
    the first.
    """

    def __init__(self, operation: Window, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._operation = operation
        self._run_length = AdaptiveRunLength()
        self._held: list[Any] = []
        self._gap = 0
        """How many elements to drop before the next window begins."""
        self._ended = False
        self._structure: Structure | None = None

    def produce(self, want: int) -> Run:
        operation = self._operation
        while not self._ended and len(self._held) < operation.span:
            self._pull(want)
        if not self._held or (operation.drop_remainder and len(self._held) < operation.span):
            return []
        out: list[Any] = []
        while len(out) < want and self._held and (self._ended or len(self._held) >= operation.span):
            if operation.drop_remainder and len(self._held) < operation.span:
                break
            try:
                out.append(self._window(self._held[: operation.span : operation.stride]))
            except StructureMismatch as odd:
                element = self._held.pop(odd.index * operation.stride)
                return self.fail_after(mismatch(element, self._structure or structure_of(element)), out)
            self._advance(operation.shift)
        return out

    def _pull(self, want: int) -> None:
        operation = self._operation
        needed = self._gap + operation.span - len(self._held) + (want - 1) * operation.shift
        began = perf_counter_ns()
        # Short runs, so that a slow function can be cancelled before the window is full.
        run = as_list(self.inputs[0].pull(min(self._run_length.want, needed)))
        self._run_length.note(perf_counter_ns() - began)
        self._ended = not run
        self._held += run[self._gap :]
        self._gap = max(0, self._gap - len(run))

    def _advance(self, shift: int) -> None:
        self._gap = max(0, shift - len(self._held))
        del self._held[:shift]

    def _window(self, elements: list[Any]) -> Any:
        if self._structure is None:
            self._structure = structure_of(elements[0])
        columns = columns_of(self._structure, elements)
        datasets = (self._operation.make_dataset(Elements(run=tuple(column))) for column in columns)
        return rebuild(self._structure, datasets)

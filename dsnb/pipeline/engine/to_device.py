"""Copies elements to a device while the loop works on earlier ones."""

from __future__ import annotations

from typing import Any

from dsnb.frameworks.placement import Placement
from dsnb.pipeline.engine.stage import AlignedStage, Run, Stage, as_list
from dsnb.pipeline.engine.to_numpy import NumpyConverter


class ToDeviceStage(AlignedStage):
    """Begins the copy of one element at each pull; `ArrivedElements` waits for its end."""

    def __init__(self, placement: Placement, source: Stage, *, writable: bool) -> None:
        super().__init__("to device", source)
        self._placement = placement
        self._converter = NumpyConverter(writable=writable, placement=placement)
        self._pulled: Run = []
        """The element being copied, kept because the framework's code may be interrupted."""

    def produce(self, want: int) -> Run:
        """Return one element: an error, such as a lack of memory, then takes the place of that element alone."""
        if not len(self._pulled):
            self._pulled = self.inputs[0].pull(min(want, 1))
        if not len(self._pulled):
            return []
        self._placement.clock.start()
        try:
            with self._placement.copying():
                elements, failure, _ = self._converter.convert(self._pulled)
                begun = [self._placement.begin_copy(element) for element in elements]
        except Exception:
            self._pulled = []
            raise
        finally:
            self._placement.clock.stop()
        self._pulled = []
        if failure is not None:
            raise failure
        return begun

    def close_inputs(self, unread: int) -> None:
        super().close_inputs(unread + len(self._pulled))


class ArrivedElements:
    """The last step of an iterator over elements that were copied to a device: waits until each has arrived."""

    def __init__(self, placement: Placement) -> None:
        self._finish_copy = placement.finish_copy
        self._placement = placement

    def fresh_copy(self) -> ArrivedElements:
        """Return a converter for other elements of the same placement."""
        return ArrivedElements(self._placement)

    def convert(self, run: Run) -> tuple[list[Any], Exception | None, list[Any]]:
        """Return the elements of a run, for use in this thread; no error and none left over."""
        return list(map(self._finish_copy, as_list(run))), None, []

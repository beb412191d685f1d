"""`Dataset.flat_map`: all elements of the datasets that a user's function returns, one dataset after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.inner_datasets import InnerDatasets
from dsnb.pipeline.engine.resume_point import ResumablePositions, ResumePoint
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation


class FlatMap(Operation, frozen=True, kw_only=True):
    """All elements of `function(element)` for one element after another."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"flat_map({function_name(self.function)})"

    @property
    def split_local(self) -> bool:
        return True

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return FlatMapStage(self.name, self.function, source, context)


class FlatMapStage(Stage):
    """Returns the runs of one inner dataset after another."""

    def __init__(self, name: str, function: Callable[..., Any], source: Stage, context: BuildContext) -> None:
        super().__init__(name, source)
        self._datasets = InnerDatasets(name, function, source, context)
        self._inner: Stage | None = None
        self._resumable_positions = ResumablePositions()

    def begin_at(self, point: ResumePoint) -> None:
        self._datasets.begin_at(point.counter)
        super().begin_at(point)

    def produce(self, want: int) -> Run:
        while self._inner is not None or self._open():
            run = self._inner.pull(want) if self._inner is not None else []
            if len(run):
                return run
            self._close_inner()
        return []

    def _open(self) -> bool:
        if not self._datasets.pulled:
            self.note_resumable_position(self._datasets.count)
        self._inner = inner = self._datasets.next()
        if inner is not None:
            self.adopt(inner)
        return inner is not None

    def _close_inner(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    def cancel(self) -> None:
        super().cancel()
        inner = self._inner
        if inner is not None:
            inner.cancel()

    def release(self, unread: int) -> None:
        self._close_inner()

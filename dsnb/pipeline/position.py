"""One iteration of a dataset and its reading position: the data to resume at the same element, also elsewhere.

Theory of operation. A pipeline's output follows from its operations, the root of its randomness and the number of its
iteration. So a position consists of these three and the number of elements that came out. Resuming builds the pipeline
again and skips, which costs nothing where `Stage.skip` costs nothing. Sources that read from a service do not follow
from these three; each has a position of its own (`SourcePositions`). Elements that were prefetched but not yielded are
produced again.

A position is plain data: text, numbers, lists and dicts, for JSON as well as pickle.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dsnb.cache.opened_files import OpenedFiles, current_opened_files
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.frameworks.placement import Placement
from dsnb.pipeline.determinism import difference, identity, refuse_inexact
from dsnb.pipeline.engine.source_positions import SourcePositions, keeps_error_positions, skip_consumed
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.engine.to_device import ToDeviceStage
from dsnb.pipeline.operation import BuildContext, Operation, walk
from dsnb.pipeline.operations.prefetch import Prefetch, PrefetchStage
from dsnb.pipeline.operations.with_options import build_pipeline, options_of

STATE_VERSION: Final = 1
_STATE_KIND: Final = "dsnb reading position"
_STATE_FIELDS: Final[dict[str, type]] = {
    "pipeline": list,
    "iteration": int,
    "entropy": int,
    "yielded": int,
    "failed": bool,
    "ended": bool,
    "sources": dict,
}


class IteratorPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far an iterator has read.

    Attributes:
        yielded: Elements delivered to the user, including errors in place of elements.
        failed: Whether there were such errors.
        ended: Whether the user received the end.
    """

    yielded: int = 0
    failed: bool = False
    ended: bool = False


class IterationCounter(Iterator[int]):
    """Counts the iterations of one dataset object; loading a position sets it."""

    def __init__(self) -> None:
        self._iterations = count()
        self.last = -1
        """The iteration that began last; -1 if none has begun."""

    def __next__(self) -> int:
        self.last = next(self._iterations)
        return self.last

    def continue_after(self, iteration: int) -> None:
        """Make the iteration after `iteration` the next one."""
        self._iterations, self.last = count(iteration + 1), iteration


class DatasetIteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of a pipeline.

    Attributes:
        operation: The pipeline.
        counter: Counts the iterations of the dataset.
        iteration: The number of this iteration; None for the next one when this one begins.
        entropy: The root of all unseeded randomness.
        source_positions: The positions of sources that read from a service.
        opened_files: Records the files that are opened, if the caller tracked them when this object was made; None
            otherwise.
        ended: Whether it was loaded at its end; then no stage is built that could count its sources' iterations.
        placement: How elements reach a framework; None for NumPy elements. It is no part of a position.
    """

    operation: Operation
    counter: IterationCounter
    iteration: int | None = None
    entropy: int = msgspec.field(default_factory=lambda: secrets.randbits(63))
    source_positions: SourcePositions = msgspec.field(default_factory=SourcePositions)
    opened_files: OpenedFiles | None = msgspec.field(default_factory=current_opened_files)
    ended: bool = False
    placement: Placement | None = None

    def numbered(self) -> DatasetIteration:
        """Return this iteration with its number."""
        return self if self.iteration is not None else replace(self, iteration=next(self.counter))

    def build(self) -> Stage:
        """Build the pipeline, with sources at their loaded positions."""
        assert self.iteration is not None, "the pass has not begun"
        placement, writable = self.placement, options_of(self.operation).writable is True
        context = BuildContext(
            entropy=self.entropy,
            iteration_path=(self.iteration,),
            source_positions=self.source_positions,
            opened_files=self.opened_files,
            copied_later=writable or (placement is not None and placement.copies),
        )
        stage = build_pipeline(self.operation, context)
        if placement is None or not placement.on_device:
            return stage
        copying = ToDeviceStage(placement, stage, writable=writable)
        ahead = Prefetch(inputs=(self.operation,), size=placement.ahead)
        return PrefetchStage(ahead, copying) if ahead.size else copying

    def state(self, stage: Stage | None, position: IteratorPosition) -> dict[str, Any]:
        """Return the reading position; `stage` is not used if the iteration has ended.

        Raises:
            FailedPreconditionError: the pipeline cannot be repeated exactly; the message names the operation.
        """
        refuse_inexact(self.operation)
        return {
            "kind": _STATE_KIND,
            "version": STATE_VERSION,
            "pipeline": identity(self.operation),
            "iteration": self.iteration,
            "entropy": self.entropy,
            "yielded": position.yielded,
            "failed": position.failed,
            "ended": position.ended,
            "sources": self._saved_sources(stage, position),
        }

    def _saved_sources(self, stage: Stage | None, position: IteratorPosition) -> dict[str, Any]:
        """Return the positions of sources that read from a service; at the end, the last iteration they read."""
        if stage is None or position.ended:
            return {str(at): {"repetition": numbers.last} for at, numbers in enumerate(self._source_counters())}
        return self.source_positions.collect(stage, _consumed_for_good(stage, position))

    def _source_counters(self) -> list[IterationCounter]:
        return [step.iteration_counter for step in walk(self.operation) if step.iteration_counter is not None]

    def load_state(self, state: Any) -> tuple[DatasetIteration, IteratorPosition]:
        """Return the iteration and the position that a state describes.

        Raises:
            InvalidArgumentError: it is not a position, or belongs to another pipeline.
            FailedPreconditionError: another version of dsnb wrote it.
        """
        _check_state(state)
        refuse_inexact(self.operation)
        other = difference(identity(self.operation), state["pipeline"])
        if other:
            raise InvalidArgumentError(
                f"the reading position is of another pipeline: {other}",
                did="the iterator stays where it is",
                hint="load it into the pipeline that it was taken from, with the same functions and arguments",
            )
        found = DatasetIteration(
            operation=self.operation,
            counter=self.counter,
            iteration=state["iteration"],
            entropy=state["entropy"],
            source_positions=SourcePositions(state["sources"]),
            ended=state["ended"],
            placement=self.placement,
        )
        return found, IteratorPosition(yielded=state["yielded"], failed=state["failed"], ended=state["ended"])

    def make_current(self) -> None:
        """Make the next iteration of the dataset the one after this."""
        assert self.iteration is not None, "the pass has not begun"
        self.counter.continue_after(self.iteration)
        for at, numbers in enumerate(self._source_counters() if self.ended else ()):
            last = self.source_positions.loaded(str(at))
            if isinstance(last, dict) and isinstance(last.get("repetition"), int):
                numbers.continue_after(last["repetition"])

    def seek(self, stage: Stage, position: IteratorPosition) -> None:
        """Move a pipeline of this iteration to a position."""
        skip_consumed(stage, position.yielded, failed=position.failed)


def _consumed_for_good(stage: Stage, position: IteratorPosition) -> int:
    """How many elements were consumed for good. After errors, operations that gather elements lose count: then 0."""
    return position.yielded if keeps_error_positions(stage) or not position.failed else 0


def _check_state(state: Any) -> None:
    if not isinstance(state, dict) or state.get("kind") != _STATE_KIND:
        keys = ", ".join(map(repr, [*state][:4])) if isinstance(state, dict) else ""
        shown = f"a dict with {keys or 'nothing'}" if isinstance(state, dict) else repr(state)
        raise InvalidArgumentError(
            f"`state` is no reading position of dsnb: {shown:.120}",
            did="the iterator stays where it is",
            hint="pass what `state_dict()` of an iterator returned",
        )
    if state.get("version") != STATE_VERSION:
        raise FailedPreconditionError(
            f"the reading position has version {state.get('version')!r}, and this dsnb reads version {STATE_VERSION}",
            did="the iterator stays where it is",
            hint="load it with the version of dsnb that wrote it",
        )
    for name, kind in _STATE_FIELDS.items():
        value = state.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise InvalidArgumentError(
                f"the reading position is damaged: its {name!r} is {value!r:.60}",
                did="the iterator stays where it is",
                hint="pass what `state_dict()` returned, unchanged",
            )

"""One pass over a dataset, and its reading position: what it takes to go on at the same element, also elsewhere.

Theory of operation. What a pipeline gives follows from its operations, the root of its randomness and the number of
its pass; so a position is these three and a count of the elements that came out. Resuming builds the pipeline again and
skips, which costs nothing where `Stage.skip` costs nothing. What does not follow from them, the sources that read from
a service, keeps a bookmark each (`engine/bookmarks`). Elements that were prefetched and not yielded are produced again.

A position is plain data: text, numbers, lists and dicts, for JSON as for pickle.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import field, replace
from itertools import count
from typing import Any, Final

from dsnb.cache.opened_files import OpenedFiles, current_opened_files
from dsnb.dataclass import dataclass
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.engine.bookmarks import SourcePositions, keeps_error_positions, skip_consumed
from dsnb.pipeline.engine.iterator import IteratorPosition
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.exactness import difference, identity, refuse_inexact
from dsnb.pipeline.operation import BuildContext, Operation, walk
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


class IterationCounter(Iterator[int]):
    """Counts the passes over one dataset object; a position that is loaded sets it."""

    def __init__(self) -> None:
        self._iterations = count()
        self.last = -1
        """The pass that began last; -1 if none has."""

    def __next__(self) -> int:
        self.last = next(self._iterations)
        return self.last

    def continue_after(self, iteration: int) -> None:
        """Let the pass after that one be the next."""
        self._iterations, self.last = count(iteration + 1), iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetIteration:
    """One pass of a pipeline.

    Attributes:
        operation: The pipeline.
        counter: Counts the passes over the dataset.
        iteration: Which of them this is; None for the next one, whichever that is when this pass begins.
        entropy: The root of what is drawn without a seed.
        opened_files: Where the files are noted that are opened, as asked for when the pass was made; None if nobody does.
        ended: Whether it was loaded at its end; then nothing is built that could count its passes.
    """

    operation: Operation
    counter: IterationCounter
    iteration: int | None = None
    entropy: int = field(default_factory=lambda: secrets.randbits(63))
    source_positions: SourcePositions = field(default_factory=SourcePositions)
    opened_files: OpenedFiles | None = field(default_factory=current_opened_files)
    ended: bool = False

    def numbered(self) -> DatasetIteration:
        """This pass, with its number."""
        return self if self.iteration is not None else replace(self, iteration=next(self.counter))

    def build(self) -> Stage:
        """The pipeline, from where the bookmarks say."""
        assert self.iteration is not None, "the pass has not begun"
        context = BuildContext(
            entropy=self.entropy,
            iteration_path=(self.iteration,),
            source_positions=self.source_positions,
            opened_files=self.opened_files,
            copied_later=options_of(self.operation).writable is True,
        )
        return build_pipeline(self.operation, context)

    def state(self, stage: Stage | None, position: IteratorPosition) -> dict[str, Any]:
        """The reading position; the pipeline is of no matter where it came to its end.

        Raises:
            FailedPreconditionError: naming the operation whose elements could not be had again.
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
        """What the sources that read from a service have to know; after the end, which pass they read last."""
        if stage is None or position.ended:
            return {str(at): {"repetition": numbers.last} for at, numbers in enumerate(self._source_counters())}
        return self.source_positions.collect(stage, _consumed_for_good(stage, position))

    def _source_counters(self) -> list[IterationCounter]:
        return [step.iteration_counter for step in walk(self.operation) if step.iteration_counter is not None]

    def load_state(self, state: Any) -> tuple[DatasetIteration, IteratorPosition]:
        """The pass that a position is in, and where.

        Raises:
            InvalidArgumentError: it is no position, or of another pipeline.
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
        )
        return found, IteratorPosition(yielded=state["yielded"], failed=state["failed"], ended=state["ended"])

    def make_current(self) -> None:
        """Have the next pass over the dataset be the one after this."""
        assert self.iteration is not None, "the pass has not begun"
        self.counter.continue_after(self.iteration)
        for at, numbers in enumerate(self._source_counters() if self.ended else ()):
            last = self.source_positions.loaded(str(at))
            if isinstance(last, dict) and isinstance(last.get("repetition"), int):
                numbers.continue_after(last["repetition"])

    def seek(self, stage: Stage, position: IteratorPosition) -> None:
        """Have a pipeline of this pass go on at a place."""
        skip_consumed(stage, position.yielded, failed=position.failed)


def _consumed_for_good(stage: Stage, position: IteratorPosition) -> int:
    """How many elements need never be had again. Where one failed, operations that gather lose count."""
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

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

from dsnb.cache.opened import OpenedFiles, current
from dsnb.dataclass import dataclass
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.engine.bookmarks import Bookmarks, keeps_count, leave_out
from dsnb.pipeline.engine.iterator import Place
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.exactness import difference, identity, refuse_inexact
from dsnb.pipeline.operation import BuildContext, Operation, walk
from dsnb.pipeline.operations.with_options import built, options_of

VERSION: Final = 1
_KIND: Final = "dsnb reading position"
_FIELDS: Final[dict[str, type]] = {
    "pipeline": list,
    "iteration": int,
    "entropy": int,
    "yielded": int,
    "failed": bool,
    "ended": bool,
    "sources": dict,
}


class PassNumbers(Iterator[int]):
    """Counts the passes over one dataset object; a position that is loaded sets it."""

    def __init__(self) -> None:
        self._numbers = count()
        self.last = -1
        """The pass that began last; -1 if none has."""

    def __next__(self) -> int:
        self.last = next(self._numbers)
        return self.last

    def go_on_behind(self, number: int) -> None:
        """Let the pass after that one be the next."""
        self._numbers, self.last = count(number + 1), number


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a pipeline.

    Attributes:
        operation: The pipeline.
        numbers: Counts the passes over the dataset.
        number: Which of them this is; None for the next one, whichever that is when this pass begins.
        entropy: The root of what is drawn without a seed.
        opened: Where the files are noted that are opened, as asked for when the pass was made; None if nobody does.
        ended: Whether it was loaded at its end; then nothing is built that could count its passes.
    """

    operation: Operation
    numbers: PassNumbers
    number: int | None = None
    entropy: int = field(default_factory=lambda: secrets.randbits(63))
    bookmarks: Bookmarks = field(default_factory=Bookmarks)
    opened: OpenedFiles | None = field(default_factory=current)
    ended: bool = False

    def begun(self) -> Pass:
        """This pass, with its number."""
        return self if self.number is not None else replace(self, number=next(self.numbers))

    def build(self) -> Stage:
        """The pipeline, from where the bookmarks say."""
        assert self.number is not None, "the pass has not begun"
        context = BuildContext(
            entropy=self.entropy,
            passes=(self.number,),
            bookmarks=self.bookmarks,
            opened=self.opened,
            copied_later=options_of(self.operation).writable is True,
        )
        return built(self.operation, context)

    def state(self, stage: Stage | None, place: Place) -> dict[str, Any]:
        """The reading position; the pipeline is of no matter where it came to its end.

        Raises:
            FailedPreconditionError: naming the operation whose elements could not be had again.
        """
        refuse_inexact(self.operation)
        return {
            "kind": _KIND,
            "version": VERSION,
            "pipeline": identity(self.operation),
            "iteration": self.number,
            "entropy": self.entropy,
            "yielded": place.yielded,
            "failed": place.failed,
            "ended": place.ended,
            "sources": self._sources(stage, place),
        }

    def _sources(self, stage: Stage | None, place: Place) -> dict[str, Any]:
        """What the sources that read from a service have to know; after the end, which pass they read last."""
        if stage is None or place.ended:
            return {str(at): {"repetition": numbers.last} for at, numbers in enumerate(self._sources_numbers())}
        return self.bookmarks.collect(stage, _kept_behind(stage, place))

    def _sources_numbers(self) -> list[PassNumbers]:
        return [step.pass_numbers for step in walk(self.operation) if step.pass_numbers is not None]

    def at(self, state: Any) -> tuple[Pass, Place]:
        """The pass that a position is in, and where.

        Raises:
            InvalidArgumentError: it is no position, or of another pipeline.
            FailedPreconditionError: another version of dsnb wrote it.
        """
        _check(state)
        refuse_inexact(self.operation)
        other = difference(identity(self.operation), state["pipeline"])
        if other:
            raise InvalidArgumentError(
                f"the reading position is of another pipeline: {other}",
                did="the iterator stays where it is",
                hint="load it into the pipeline that it was taken from, with the same functions and arguments",
            )
        found = Pass(
            operation=self.operation,
            numbers=self.numbers,
            number=state["iteration"],
            entropy=state["entropy"],
            bookmarks=Bookmarks(state["sources"]),
            ended=state["ended"],
        )
        return found, Place(yielded=state["yielded"], failed=state["failed"], ended=state["ended"])

    def make_current(self) -> None:
        """Have the next pass over the dataset be the one after this."""
        assert self.number is not None, "the pass has not begun"
        self.numbers.go_on_behind(self.number)
        for at, numbers in enumerate(self._sources_numbers() if self.ended else ()):
            last = self.bookmarks.loaded(str(at))
            if isinstance(last, dict) and isinstance(last.get("repetition"), int):
                numbers.go_on_behind(last["repetition"])

    def go_to(self, stage: Stage, place: Place) -> None:
        """Have a pipeline of this pass go on at a place."""
        leave_out(stage, place.yielded, failed=place.failed)


def _kept_behind(stage: Stage, place: Place) -> int:
    """How many elements need never be had again. Where one failed, operations that gather lose count."""
    return place.yielded if keeps_count(stage) or not place.failed else 0


def _check(state: Any) -> None:
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        keys = ", ".join(map(repr, [*state][:4])) if isinstance(state, dict) else ""
        shown = f"a dict with {keys or 'nothing'}" if isinstance(state, dict) else repr(state)
        raise InvalidArgumentError(
            f"`state` is no reading position of dsnb: {shown:.120}",
            did="the iterator stays where it is",
            hint="pass what `state_dict()` of an iterator returned",
        )
    if state.get("version") != VERSION:
        raise FailedPreconditionError(
            f"the reading position has version {state.get('version')!r}, and this dsnb reads version {VERSION}",
            did="the iterator stays where it is",
            hint="load it with the version of dsnb that wrote it",
        )
    for name, kind in _FIELDS.items():
        value = state.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise InvalidArgumentError(
                f"the reading position is damaged: its {name!r} is {value!r:.60}",
                did="the iterator stays where it is",
                hint="pass what `state_dict()` returned, unchanged",
            )

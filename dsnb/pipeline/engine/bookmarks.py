"""Bookmarks: what sources tell for a reading position whose elements do not follow from the pipeline alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dsnb.errors import FailedPreconditionError
from dsnb.pipeline.engine.stage import Stage

if TYPE_CHECKING:
    from dsnb.pipeline.operation import BuildContext


@runtime_checkable
class PositionedSource(Protocol):
    """The stage of such a source."""

    source_key: str
    """Which source of the pipeline, and which of its passes, it is."""

    def source_position(self, consumed: int) -> Any:
        """What a stage needs to go on behind its first `consumed` elements in the same order; plain data."""
        ...


class SourcePositions:
    """The bookmarks of one pass: those that a position brought, and the sources that make new ones.

    Args:
        loaded: What `collect` gave.
    """

    def __init__(self, loaded: dict[str, Any] | None = None) -> None:
        self._loaded = dict(loaded or {})
        self._final: dict[str, Any] = {}
        self._used = False
        self._refused: tuple[str, str] | None = None

    def register(self, context: BuildContext, name: str) -> tuple[str, Any]:
        """The place of a source that is being built, and its bookmark; None for a fresh one."""
        self._used = True
        if context.nested:  # how many of these there are, and which is which, only running could tell
            self.mark_unsupported(
                f"{name} is read inside of a function of the pipeline",
                "distribute the whole pipeline, not the datasets that its functions make",
            )
        source_key = "/".join(map(str, (context.provider, *context.iteration_path[1:])))
        return source_key, self._loaded.get(source_key)

    def loaded(self, source_key: str) -> Any:
        """The bookmark that a position brought for a place; None where it brought none."""
        return self._loaded.get(source_key)

    def mark_unsupported(self, obstacle: str, hint: str) -> None:
        """Learn of a source that has no bookmark."""
        self._refused = self._refused or (obstacle, hint)

    def set_final(self, source_key: str, position: Any) -> None:
        """Learn that a pass is over, and of the bookmark behind it."""
        self._final[source_key] = position

    def collect(self, stage: Stage, consumed: int) -> dict[str, Any]:
        """The bookmarks of all sources, when the first `consumed` elements of a pipeline need not be had again.

        Raises:
            FailedPreconditionError: one of them has none.
        """
        if self._refused is not None:
            raise no_position_error(*self._refused)
        if not self._used:
            return {}
        return {**self._final, **dict(_source_positions(stage, consumed))}


def _source_positions(stage: Stage, consumed: int) -> Iterator[tuple[str, Any]]:
    if isinstance(stage, PositionedSource):
        yield stage.source_key, stage.source_position(consumed)
    for source, count in stage.consumed_inputs(consumed):
        yield from _source_positions(source, count)


def no_position_error(obstacle: str, hint: str = "") -> FailedPreconditionError:
    """The error of a pipeline that has no reading position."""
    return FailedPreconditionError(
        f"there is no exact reading position here: {obstacle}",
        did="no position was taken; reading goes on",
        hint=hint or "docs/resuming.md tells what makes each operation exact",
    )


def skip_consumed(stage: Stage, count: int, *, failed: bool) -> None:
    """Leave out what was read before.

    Args:
        stage: A pipeline that nothing was read of.
        count: Elements, and errors in their places.
        failed: Whether there were errors among them: operations that gather may then have come to fewer elements than
            the cheap way of skipping takes for granted.
    """
    if failed and not keeps_error_positions(stage):
        Stage.skip(stage, count)
    elif count:  # else what comes first may be an error, of an element that `skip` leaves out
        stage.skip(count)


def keeps_error_positions(stage: Stage) -> bool:
    """Whether an error in a source's place is an error in the same place at the end of a pipeline."""
    return (
        (stage.one_to_one or not stage.inputs)
        and not stage.drops_prefix
        and all(map(keeps_error_positions, stage.inputs))
    )

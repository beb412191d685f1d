"""Positions of sources whose elements do not follow from the pipeline alone, as parts of a reading position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dsnb.errors import FailedPreconditionError
from dsnb.pipeline.engine.stage import Stage

if TYPE_CHECKING:
    from dsnb.pipeline.operation import BuildContext


@runtime_checkable
class PositionedSource(Protocol):
    """A stage of a source that has a position of its own."""

    source_key: str
    """Identifies the source in the pipeline, and the iteration of that source."""
    replayable: bool
    """Whether the same elements come again in the same order after a position."""

    def source_position(self, consumed: int) -> Any:
        """Return what a stage needs to continue after `consumed` elements in the same order, as plain data."""
        ...


class SourcePositions:
    """The source positions of one iteration: those that were loaded, and the sources that create new ones.

    Args:
        loaded: The result of `collect` to continue from.
    """

    def __init__(self, loaded: dict[str, Any] | None = None) -> None:
        self._loaded = dict(loaded or {})
        self._final: dict[str, Any] = {}
        self._used = False
        self._refused: tuple[str, str] | None = None

    def register(self, context: BuildContext, name: str) -> tuple[str, Any]:
        """Return the key of a source that is being built, and its loaded position; None for a source without one."""
        self._used = True
        if context.nested:  # only running the pipeline would show how many of these sources there are
            self.mark_unsupported(
                f"{name} is read inside of a function of the pipeline",
                "distribute the whole pipeline, not the datasets that its functions make",
            )
        source_key = "/".join(map(str, (context.provider, *context.iteration_path[1:])))
        return source_key, self._loaded.get(source_key)

    def loaded(self, source_key: str) -> Any:
        """Return the loaded position for a key, or None."""
        return self._loaded.get(source_key)

    def mark_unsupported(self, obstacle: str, hint: str) -> None:
        """Record that some source has no position; `collect` then raises."""
        self._refused = self._refused or (obstacle, hint)

    def set_final(self, source_key: str, position: Any) -> None:
        """Record the position of a source at the end of its iteration."""
        self._final[source_key] = position

    def collect(self, stage: Stage, consumed: int) -> dict[str, Any]:
        """Return the positions of all sources, given that the first `consumed` elements of the pipeline were consumed.

        Raises:
            FailedPreconditionError: a source has no position.
        """
        if self._refused is not None:
            raise no_position_error(*self._refused)
        if not self._used:
            return {}
        return {**self._final, **dict(_source_positions(stage, consumed))}


def _source_positions(stage: Stage, consumed: int, *, replayed: bool = False) -> Iterator[tuple[str, Any]]:
    if isinstance(stage, PositionedSource):
        if replayed and not stage.replayable:
            raise no_position_error(
                "an operation behind `distribute` holds elements that came before, and ranks cannot get them again in "
                "the same order",
                "put the operation that mixes elements before `distribute`",
            )
        yield stage.source_key, stage.source_position(consumed)
    buffers = consumed > 0 and type(stage).consumed_inputs is Stage.consumed_inputs
    for source, count in stage.consumed_inputs(consumed):
        yield from _source_positions(source, count, replayed=replayed or buffers)


def no_position_error(obstacle: str, hint: str = "") -> FailedPreconditionError:
    """Return the error for a pipeline that has no exact reading position."""
    return FailedPreconditionError(
        f"there is no exact reading position here: {obstacle}",
        did="no position was taken; reading continues",
        hint=hint or "docs/resuming.md tells what makes each operation exact",
    )


def skip_consumed(stage: Stage, count: int, *, failed: bool) -> None:
    """Drop the elements that were consumed before.

    Args:
        stage: A pipeline of which nothing was read.
        count: Elements to drop, including errors in place of elements.
        failed: Whether there were errors among them. Then operations that gather elements may have produced fewer than
            `skip` assumes, and elements are pulled instead.
    """
    if failed and not keeps_error_positions(stage):
        Stage.skip(stage, count)
    elif count:  # with a count of 0, `skip` could drop an error that comes first
        stage.skip(count)


def keeps_error_positions(stage: Stage) -> bool:
    """Whether an error at a source's position appears at the same position in the output of the pipeline."""
    return (
        (stage.one_to_one or not stage.inputs)
        and not stage.drops_prefix
        and all(map(keeps_error_positions, stage.inputs))
    )

"""`Dataset.from_generator`: the elements that a user's function yields; one split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import itemgetter
from types import GeneratorType
from typing import Any

import numpy as np

from dsnb.elements.spec import BYTES, STR, TensorSpec, leaf_spec
from dsnb.elements.structure import flatten, rebuild, structure_of
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, mark_out_of_band
from dsnb.pipeline.engine.calls import EarlyResultsStage, Extend, UserFunction
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.ownership import ensure_owned
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.engine.to_numpy import mismatch
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.splits import SourceStage, SplitProvider


class Generator(Operation, frozen=True, kw_only=True):
    """The elements that `function(*arguments)` yields; called once for each iteration."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    spec: Any = None

    @property
    def name(self) -> str:
        return f"from_generator({function_name(self.function)})"

    @property
    def element_spec(self) -> Any:
        """The spec that the user gave, or None."""
        return self.spec

    def split_provider(self) -> SplitProvider:
        """One split: one task reads everything."""
        return SplitProvider(self.name, 1)

    def build(self, context: BuildContext) -> Stage:
        return GeneratorStage(self, context)


class GeneratorStage(EarlyResultsStage, SourceStage):
    """The elements of one call of the user's function; a call of the engine is a `next` of its iterator."""

    results_are_elements = True

    takes_positions_when_needed = True

    def __init__(self, operation: Generator, context: BuildContext) -> None:
        super().__init__(operation.name, context, 1)
        self._operation = operation
        self._function = UserFunction(operation.function, operation.name, keep_results=True)
        self._values: Iterator[Any] | None = None
        self._ended = False
        self._kept: list[Any] = []
        """What was yielded before an interrupt, for the next pull."""
        self._interrupted = False
        """Whether an interrupt ended the generator, and the error that says so was not raised yet."""
        self._end_is_doubtful = False
        """Whether the last call of an iterator of another kind was interrupted: it may read from a generator."""
        self._allocate = context.allocate
        if context.low_latency:
            self.use_thread()

    @property
    def extend(self) -> Extend:
        return self._extend

    @property
    def returns_immutable(self) -> bool:
        return False  # each element is checked: a generator may yield numbers for long, and then a buffer

    def next_inputs(self, want: int) -> list[Any]:
        return [] if self._ended else [None] * want

    def put_back(self, inputs: list[Any]) -> None:
        """Do nothing: any number of further calls can be made."""

    def produce(self, want: int) -> Run:
        """Return the next elements; an error raised by the generator is followed by the end."""
        if self._kept:
            out, self._kept = self._kept[:want], self._kept[want:]
            return out
        if self._interrupted:
            self._interrupted = False
            raise self._ended_by_interrupt(
                f"the generator of {self.name} was interrupted, and Python cannot continue a generator that raised"
            )
        _, out, failure = self.call_next(want)
        if isinstance(failure, Exception):
            return self.fail_after(failure, out)
        if failure is not None:  # the user interrupted a cell
            self._kept = out
            raise failure
        return out

    @staticmethod
    def _ended_by_interrupt(what: str) -> FailedPreconditionError:
        error = FailedPreconditionError(
            what,
            did="the elements that came before were delivered; the epoch ends here, early",
            hint="iterate the dataset again, or load state_dict() into a new iterator, which calls the generator anew",
        )
        mark_out_of_band(error)
        return error

    def _extend(self, out: list[Any], calls: list[None]) -> BaseException | None:
        before = len(out)
        try:
            out.extend(self._elements(calls))
        except _SpecMismatch as unfit:
            # The element does not fit the spec, but the generator itself can continue.
            return unfit.error
        except BaseException as failure:  # noqa: BLE001 - the caller raises it
            explained = self._function.annotate_error(failure)
            # Only a generator ends when it raises, or the function that was to return one. An iterator of another kind
            # may go on after an interrupt.
            goes_on = self._values is not None and not isinstance(self._values, GeneratorType)
            self._ended = isinstance(explained, Exception) or not goes_on
            self._interrupted = self._ended and not isinstance(explained, Exception)
            self._end_is_doubtful = not self._ended
            return explained
        finally:
            self._function.exit_stray_child()
        # Another thread may have shortened `calls`, but never to fewer than were made.
        self._ended = len(out) - before < len(calls)
        doubtful, self._end_is_doubtful = self._end_is_doubtful and self._ended and len(out) == before, False
        if doubtful:
            return self._ended_by_interrupt(
                f"the iterator of {self.name} was interrupted, and then it ended: "
                "a generator that it reads from cannot continue after an interrupt"
            )
        return None

    def _elements(self, calls: list[None]) -> Iterator[Any]:
        # Not `islice`: another thread may shorten the list while the generator runs.
        values = map(itemgetter(1), zip(calls, self._open_iterator(), strict=False))
        mine = ensure_owned(values, self._allocate)
        spec = self._operation.spec
        return mine if spec is None else map(partial(_conform, spec), mine)

    def _open_iterator(self) -> Iterator[Any]:
        if self._values is None:
            self._values = iter(self._call_function() if self._splits.take(1) else ())
        return self._values

    def _call_function(self) -> Iterable[Any]:
        values = self._operation.function(*self._operation.arguments)
        if not hasattr(values, "__iter__"):
            raise InvalidArgumentError(
                f"{self.name} returned {type(values).__name__}, which cannot be iterated",
                hint="pass a generator function, or one that returns an iterable",
            )
        return values  # type: ignore[no-any-return]

    def release(self, unread: int) -> None:
        if self._threaded_calls is not None:
            self._threaded_calls.close(self._close)
        else:
            self._close()

    def _close(self) -> None:
        close = getattr(self._values, "close", None)
        if close is not None:
            # A generator that another thread is running cannot be closed, and errors of an abandoned generator are of
            # no interest.
            with suppress(Exception):
                close()


class _SpecMismatch(Exception):
    """An element does not fit the element spec; the generator itself can continue."""

    def __init__(self, error: InvalidArgumentError) -> None:
        super().__init__(str(error))
        self.error = error


def _conform(spec: Any, element: Any) -> Any:
    structure = structure_of(spec)
    try:
        fits = structure_of(element) == structure
    except InvalidArgumentError as error:
        raise _SpecMismatch(error) from None
    if not fits:
        raise _SpecMismatch(mismatch(element, structure))
    return rebuild(structure, map(_conform_leaf, flatten(spec), flatten(element)))


def _conform_leaf(spec: TensorSpec, leaf: Any) -> Any:
    if spec.dtype in (BYTES, STR) and not spec.shape:
        if isinstance(leaf, bytes if spec.dtype == BYTES else str):
            return leaf
        raise _SpecMismatch(_spec_mismatch_error(spec, leaf))
    try:
        array = np.asarray(leaf, spec.dtype)
    except (ValueError, TypeError, OverflowError):
        raise _SpecMismatch(_spec_mismatch_error(spec, leaf)) from None
    sizes = zip(spec.shape, array.shape, strict=False)
    if array.ndim != len(spec.shape) or not all(want is None or want == size for want, size in sizes):
        raise _SpecMismatch(_spec_mismatch_error(spec, leaf))
    return array if array.ndim else array[()]


def _spec_mismatch_error(spec: TensorSpec, leaf: Any) -> InvalidArgumentError:
    try:
        found = str(leaf_spec(leaf))
    except InvalidArgumentError:
        found = type(leaf).__name__
    return InvalidArgumentError(
        f"the generator yielded {found} where its element spec says {spec}",
        did="the element was left out; reading continues with the next",
        hint="yield what the element spec says, or leave `element_spec` out",
    )

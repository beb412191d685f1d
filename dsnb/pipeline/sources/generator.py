"""`Dataset.from_generator`: whatever a user's function yields; one split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.elements.spec import BYTES, STR, TensorSpec, leaf_spec
from dsnb.elements.structure import flatten, rebuild, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.beside import CallsBeside
from dsnb.pipeline.engine.calls import UserFunction
from dsnb.pipeline.engine.in_place import CallsInPlace
from dsnb.pipeline.engine.leaving import mismatch
from dsnb.pipeline.engine.origin import function_name
from dsnb.pipeline.engine.ownership import all_immutable, kept, owned
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.splits import SourceStage, SplitProvider


@dataclass(frozen=True, kw_only=True, eq=False)
class Generator(Operation):
    """What `function(*arguments)` yields, called anew for each pass."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    spec: Any = None

    @property
    def name(self) -> str:
        """With the function's name."""
        return f"from_generator({function_name(self.function)})"

    @property
    def element_spec(self) -> Any:
        """What the user said; None if nothing."""
        return self.spec

    def split_provider(self) -> SplitProvider:
        """One split: one task reads everything."""
        return SplitProvider(self.name, 1)

    def build(self, context: BuildContext) -> Stage:
        """A stage that calls the function at its first pull."""
        return GeneratorStage(self, context)


class GeneratorStage(SourceStage):
    """Elements of one call of the user's function."""

    def __init__(self, operation: Generator, context: BuildContext) -> None:
        super().__init__(operation.name, context, 1)
        self._operation = operation
        self._function = UserFunction(operation.function, operation.name, keep=True)
        self._values: Iterator[Any] | None = None
        self._ended = False
        self._plain = False
        self._room = context.room
        self._beside = CallsBeside(operation.name, self._extend) if context.prompt else None
        self._in_place: CallsInPlace | None = None

    def call_in_place(self) -> bool:
        """The generator's `next`."""
        self._beside, self._in_place = None, CallsInPlace(self._extend)
        return True

    def early(self) -> list[Any] | None:
        """What it yielded so far."""
        out = self._in_place.take() if self._in_place is not None else []
        return kept(out) if out and self._plain else out

    def produce(self, want: int) -> Run:
        """The next elements; after an error of the generator's comes the end."""
        out, failure = self._next(want)
        if isinstance(failure, Exception):
            return self.fail_after(failure, out)
        self._ended = self._ended or not out
        self._plain = all_immutable(out)
        return out

    def _next(self, want: int) -> tuple[list[Any], BaseException | None]:
        if self._in_place is not None:
            return self._next_in_place(self._in_place, want)
        out: list[Any] = []
        if self._beside is None:
            return out, None if self._ended else self._extend(out, [None] * want)
        while not out:  # a run that was cut short may have nothing more
            if self._beside.idle:
                if self._ended:
                    break
                self._beside.begin([None] * want)
            calls, out, failure = self._beside.take(want)
            if self._beside.going and self._plain:
                out = kept(out)
            if failure is not None:
                return out, failure
            if self._beside.idle and not self._beside.hurried and len(out) < len(calls):
                break
        return out, None

    def _next_in_place(self, calls: CallsInPlace, want: int) -> tuple[list[Any], BaseException | None]:
        while not self._ended:
            made = calls.make([None] * want)
            self.elements += made.taken
            self._delivered += made.taken
            if made.out or made.failure is not None or not (made.cut or made.taken == want):
                return made.out, made.failure
            want = 1  # somebody looked already, and nothing that is there may wait for another element
        return [], None

    def _extend(self, out: list[Any], calls: list[None]) -> Exception | None:
        try:
            out.extend(self._elements(calls))
        except _Unfit as unfit:
            return unfit.error
        except BaseException as failure:
            self._ended = True
            explained = self._function.explained(failure)
            if isinstance(explained, Exception):
                return explained
            raise
        finally:
            self._function.end_stranded()
        return None

    def _elements(self, calls: list[None]) -> Iterator[Any]:
        # Not `islice`: the list may get shorter while the generator is at work.
        values = map(itemgetter(1), zip(calls, self._opened(), strict=False))
        mine = values if self._plain else owned(values, self._room)
        spec = self._operation.spec
        return mine if spec is None else map(partial(_conform, spec), mine)

    def _opened(self) -> Iterator[Any]:
        if self._values is None:
            self._values = iter(self._started() if self._positions.take(1) else ())
        return self._values

    def _started(self) -> Iterable[Any]:
        values = self._operation.function(*self._operation.arguments)
        if not hasattr(values, "__iter__"):
            raise InvalidArgumentError(
                f"{self.name} returned {type(values).__name__}, which cannot be iterated",
                hint="pass a generator function, or one that returns an iterable",
            )
        return values  # type: ignore[no-any-return]

    def release(self, unread: int) -> None:
        """Close the generator."""
        if self._beside is not None:
            self._beside.close(self._close)
        else:
            self._close()

    def _close(self) -> None:
        close = getattr(self._values, "close", None)
        if close is not None:
            # A generator that another thread is running cannot be closed, and whoever closes has no use for the
            # errors of a generator that he gave up.
            with suppress(Exception):
                close()

    def cancel(self) -> None:
        """Wake the reader, though the generator may go on."""
        super().cancel()
        for calls in (self._beside, self._in_place):
            if calls is not None:
                calls.cancel()


class _Unfit(Exception):
    """An element that is not what the element spec says; the generator itself can go on."""

    def __init__(self, error: InvalidArgumentError) -> None:
        super().__init__(str(error))
        self.error = error


def _conform(spec: Any, element: Any) -> Any:
    structure = structure_of(spec)
    try:
        fits = structure_of(element) == structure
    except InvalidArgumentError as error:
        raise _Unfit(error) from None
    if not fits:
        raise _Unfit(mismatch(element, structure))
    return rebuild(structure, map(_conform_leaf, flatten(spec), flatten(element)))


def _conform_leaf(spec: TensorSpec, leaf: Any) -> Any:
    if spec.dtype in (BYTES, STR) and not spec.shape:
        if isinstance(leaf, bytes if spec.dtype == BYTES else str):
            return leaf
        raise _Unfit(_wrong(spec, leaf))
    try:
        array = np.asarray(leaf, spec.dtype)
    except (ValueError, TypeError, OverflowError):
        raise _Unfit(_wrong(spec, leaf)) from None
    sizes = zip(spec.shape, array.shape, strict=False)
    if array.ndim != len(spec.shape) or not all(want is None or want == size for want, size in sizes):
        raise _Unfit(_wrong(spec, leaf))
    return array if array.ndim else array[()]


def _wrong(spec: TensorSpec, leaf: Any) -> InvalidArgumentError:
    try:
        found = str(leaf_spec(leaf))
    except InvalidArgumentError:
        found = type(leaf).__name__
    return InvalidArgumentError(
        f"the generator yielded {found} where its element spec says {spec}",
        did="the element was left out; reading goes on with the next",
        hint="yield what the element spec says, or leave `element_spec` out",
    )

"""`Dataset.group_by_window`: gathers elements with the same key into windows and passes each to a user's function."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
from msgspec.structs import replace

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.calls import CallingStage, UserFunction, call_once
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.operations.flat_map import FlatMapStage
from dsnb.pipeline.sources.elements import Elements
from dsnb.wire.messages import StageReport


class GroupByWindow(Operation, frozen=True, kw_only=True):
    """All elements of `reduce(key, window)`, for windows of up to `window_size(key)` elements with the same key.

    Attributes:
        make_dataset: Makes the dataset of a window from its operation.
        key: Takes an element; returns its key.
        reduce: Takes a key and a window; returns a dataset.
        window_size: How many elements a window has, or a function that takes a key and returns that.
    """

    make_dataset: Callable[[Operation], Any]
    key: Callable[..., Any]
    reduce: Callable[..., Any]
    window_size: int | Callable[..., Any]

    @property
    def name(self) -> str:
        return f"group_by_window({function_name(self.key)})"

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return FlatMapStage(self.name, self.reduce, GroupStage(self, source), context)


class GroupStage(CallingStage):
    """Yields pairs of a key and a window dataset: full windows first, at the end the others in order of keys."""

    def __init__(self, operation: GroupByWindow, source: Stage) -> None:
        super().__init__(
            f"groups of {operation.name}", source, UserFunction(operation.key, operation.name, keep_results=False)
        )
        self._make_dataset = operation.make_dataset
        self._window_size = operation.window_size
        self._groups: dict[int, list[Any]] = {}
        self._sizes: dict[int, int] = {}
        self._ready: deque[Any] = deque()
        self._run_length = AdaptiveRunLength()
        self._ended = False

    def produce(self, want: int) -> Run:
        while not self._ready and not self._ended:
            began = perf_counter_ns()
            run = self.next_inputs(self._run_length.want)
            self._group(run) if run else self._flush()
            self._run_length.note(perf_counter_ns() - began)
        out: list[Any] = []
        while self._ready and len(out) < want:
            if isinstance(self._ready[0], Exception):
                if not out:
                    raise self._ready.popleft()
                break
            out.append(self._ready.popleft())
        return out

    def _group(self, run: list[Any]) -> None:
        """Add elements to their groups; an error is queued after the windows that were complete before it."""
        keys: list[Any] = []
        failure = self.function.extend(keys, run)
        for number, (key, element) in enumerate(zip(keys, run, strict=False)):
            try:
                self._add(_integer(self.name, "the key", key), element)
            except Exception as error:  # noqa: BLE001 - its place is in the queue
                self._pending_inputs = run[number + 1 :] + self._pending_inputs
                self._ready.append(error)
                return
            except BaseException:
                self._pending_inputs = run[number:] + self._pending_inputs
                raise
        if isinstance(failure, Exception):
            self._pending_inputs = run[len(keys) + 1 :] + self._pending_inputs
            self._ready.append(failure)
        elif failure is not None:
            self._pending_inputs = run[len(keys) :] + self._pending_inputs
            raise failure

    def _add(self, key: int, element: Any) -> None:
        size = self._sizes.get(key) or self._size_of(key)
        group = self._groups.setdefault(key, [])
        group.append(element)
        if len(group) >= size:
            self._ready.append(self._window(key, self._groups.pop(key)))
            del self._sizes[key]

    def _size_of(self, key: int) -> int:
        if not callable(self._window_size):
            size = self._window_size
        else:
            asked = call_once(
                UserFunction(self._window_size, self.function.operation, keep_results=False), np.int64(key)
            )
            size = _integer(self.name, "the window size", asked)
            if size < 1:
                raise InvalidArgumentError(
                    f"Window size must be greater than zero, but got {size} for the key {key}",
                    did="the element was left out; reading continues with the next",
                    hint="return 1 or more from `window_size_func`",
                )
        self._sizes[key] = size
        return size

    def _flush(self) -> None:
        self._ended = True
        self._ready += (self._window(key, self._groups[key]) for key in sorted(self._groups))
        self._groups.clear()

    def _window(self, key: int, elements: list[Any]) -> tuple[Any, Any]:
        return np.int64(key), self._make_dataset(Elements(run=tuple(elements)))

    def report(self, depth: int) -> StageReport:
        """Counters of this stage; elements in incomplete windows count as buffered."""
        return replace(super().report(depth), buffered=sum(map(len, list(self._groups.values()))))


def _integer(name: str, what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(
            f"{what} of {name} is {value!r} ({type(value).__name__}), not a whole number",
            did="the element was left out; reading continues with the next",
            hint="return an int",
        ) from None

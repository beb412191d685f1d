"""`Dataset.unique`: keeps the first of equal elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from dsnb.elements.data_classes import field_names
from dsnb.elements.structure import field_values
from dsnb.pipeline.engine.calls import CallingStage, UserFunction
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.engine.to_numpy import numpy_leaf
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, SameSpec

_SHORT = 64
"""Keys up to this size in bytes are stored as they are; longer ones are stored as a digest."""


class Unique(SameSpec, frozen=True, kw_only=True):
    """The elements that did not occur before."""

    @property
    def cardinality(self) -> int:
        """Unknown, except that an empty input stays empty."""
        return UNKNOWN_CARDINALITY if self.inputs[0].cardinality else 0

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return UniqueStage(self.name, source, UserFunction(_key, self.name, keep_results=False, call=_key))


class UniqueStage(CallingStage):
    """Stores a key for every element seen: the value itself if it is short, else 16 bytes of digest."""

    def __init__(self, name: str, source: Stage, function: UserFunction) -> None:
        super().__init__(name, source, function)
        self._seen: set[Any] = set()

    def produce(self, want: int) -> Run:
        while run := self.next_inputs(want):
            keys: list[Any] = _integer_keys(run)
            failure = None if keys else self.function.extend(keys, run)
            out = self._new(run, keys)
            if failure is not None:
                return self.deliver_before(out, run, len(keys), failure)
            if out:
                return out
        return []

    def _new(self, run: list[Any], keys: list[Any]) -> list[Any]:
        seen, out = self._seen, []
        for element, key in zip(run, keys, strict=False):  # without a key for an element that failed
            if key not in seen:
                seen.add(key)
                out.append(element)
        return out


def _integer_keys(run: list[Any]) -> list[Any]:
    """Make the keys of a run of NumPy integers of one type at once; empty for any other run."""
    kinds = set(map(type, run))
    plain = len(kinds) == 1 and issubclass(next(iter(kinds)), np.integer) and np.timedelta64 not in kinds
    return np.array(run).tolist() if plain else []


def _key(element: Any) -> Any:
    """Return a hashable key that is equal for equal elements."""
    if element is None or isinstance(element, (str, bytes, int)):
        return element
    if isinstance(element, (np.integer, np.bool_)):
        return element.item()
    if isinstance(element, dict):
        return tuple(_key(element[key]) for key in sorted(element))
    if isinstance(element, (tuple, list)):
        return tuple(map(_key, element))
    fields = field_names(type(element))
    return _array_key(element) if fields is None else tuple(map(_key, field_values(element, fields)))


def _array_key(leaf: Any) -> Any:
    array = np.asarray(numpy_leaf(leaf))
    if array.dtype.kind in "fc":
        # 0.0 and -0.0 count as equal, and so do all NaNs.
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array + 0)
    data = array.tobytes()
    return array.shape, data if len(data) <= _SHORT else xxhash.xxh3_128_digest(data)

"""`Dataset.unique`: each element once."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from dsnb.dataclass import dataclass
from dsnb.elements.data_classes import field_names
from dsnb.elements.structure import field_values
from dsnb.pipeline.engine.calls import CallingStage, UserFunction
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.pipeline.engine.to_numpy import numpy_leaf
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY, BuildContext, SameSpec

_SHORT = 64
"""Bytes up to which a value is remembered as it is; a longer one is remembered by its digest."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Unique(SameSpec):
    """Elements that were not there before."""

    @property
    def cardinality(self) -> int:
        """Known only of nothing."""
        return UNKNOWN_CARDINALITY if self.inputs[0].cardinality else 0

    def build(self, context: BuildContext) -> Stage:
        """A stage that remembers."""
        (source,) = self.build_inputs(context)
        return UniqueStage(self.name, source, UserFunction(_key, self.name, keep_results=False, call=_key))


class UniqueStage(CallingStage):
    """Remembers every element that came: itself where it is short, else 16 bytes."""

    def __init__(self, name: str, source: Stage, function: UserFunction) -> None:
        super().__init__(name, source, function)
        self._seen: set[Any] = set()

    def produce(self, want: int) -> Run:
        """The next elements that are new; goes on until there is one."""
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
        for element, key in zip(run, keys, strict=False):  # there may be an element more, which has no key
            if key not in seen:
                seen.add(key)
                out.append(element)
        return out


def _integer_keys(run: list[Any]) -> list[Any]:
    """The keys of a run of NumPy integers of one type, made at once; none for any other run."""
    kinds = set(map(type, run))
    plain = len(kinds) == 1 and issubclass(next(iter(kinds)), np.integer) and np.timedelta64 not in kinds
    return np.array(run).tolist() if plain else []


def _key(element: Any) -> Any:
    """What tells elements apart."""
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
        # One zero and one NaN, as people see them.
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array + 0)
    data = array.tobytes()
    return array.shape, data if len(data) <= _SHORT else xxhash.xxh3_128_digest(data)

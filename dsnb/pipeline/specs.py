"""How operations change element specs and cardinalities, by the rules that tf.data documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsnb.elements.spec import TensorSpec
from dsnb.elements.structure import flatten, rebuild, structure_of
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY


def map_leaves(function: Callable[[TensorSpec], TensorSpec], spec: Any) -> Any:
    """Return a spec of the same structure with each leaf changed; None stays None."""
    return None if spec is None else rebuild(structure_of(spec), map(function, flatten(spec)))


def add_dimension(spec: Any, size: int | None) -> Any:
    """Return the spec of a batch of `size` elements."""
    return map_leaves(lambda leaf: TensorSpec((size, *leaf.shape), leaf.dtype), spec)


def drop_dimension(spec: Any) -> Any:
    """Return the spec of one row of a batch."""
    return map_leaves(lambda leaf: TensorSpec(leaf.shape[1:], leaf.dtype), spec)


def are_compatible(first: Any, second: Any) -> bool:
    """Whether elements of two specs can be in one dataset: same structure, and leaves of equal dtype and rank."""
    if structure_of(first) != structure_of(second):
        return False
    pairs = zip(flatten(first), flatten(second), strict=True)
    return all(a.dtype == b.dtype and len(a.shape) == len(b.shape) for a, b in pairs)


def merge_specs(first: Any, second: Any) -> Any:
    """Return a spec that fits the elements of two compatible specs: sizes that differ become unknown."""
    if first is None or second is None:
        return None
    pairs = zip(flatten(first), flatten(second), strict=True)
    return rebuild(structure_of(first), (_merge_leaf(a, b) for a, b in pairs))


def _merge_leaf(first: TensorSpec, second: TensorSpec) -> TensorSpec:
    sizes = zip(first.shape, second.shape, strict=True)
    return TensorSpec((a if a == b else None for a, b in sizes), first.dtype)


def total_cardinality(cardinalities: Sequence[int]) -> int:
    """Return the cardinality of datasets read one after another."""
    if INFINITE_CARDINALITY in cardinalities:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in cardinalities else sum(cardinalities)


def shortest_cardinality(cardinalities: Sequence[int]) -> int:
    """Return the cardinality of datasets that are zipped."""
    if UNKNOWN_CARDINALITY in cardinalities:
        return UNKNOWN_CARDINALITY
    return min((c for c in cardinalities if c != INFINITE_CARDINALITY), default=INFINITE_CARDINALITY)


def map_cardinality(cardinality: int, function: Callable[[int], int]) -> int:
    """Apply a function to a known, finite cardinality; infinite and unknown ones stay."""
    return function(cardinality) if cardinality >= 0 else cardinality

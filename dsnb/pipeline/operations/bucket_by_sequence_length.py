"""`Dataset.bucket_by_sequence_length`: batches elements of similar length, so that little padding is needed."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from dsnb.elements.structure import flatten, rebuild, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.padding import Padding
from dsnb.pipeline.operations.group_by_window import GroupByWindow


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Assigns elements to buckets and makes batches of full buckets.

    Attributes:
        length: Returns the length of an element.
        boundaries: Ascending; bucket k contains the lengths from boundary k - 1 to boundary k, exclusive.
        sizes: The batch size of each bucket; one more than there are boundaries.
        padding: How to pad; None for batches without padding.
        pad_to_boundary: Whether unspecified sizes are padded to the largest length of the bucket.
        drop_remainder: Whether smaller last batches are dropped.
    """

    length: Callable[..., Any]
    boundaries: tuple[int, ...]
    sizes: tuple[int, ...]
    padding: Padding | None
    pad_to_boundary: bool
    drop_remainder: bool

    def check(self) -> None:
        """Check that boundaries and sizes are consistent.

        Raises:
            InvalidArgumentError: they are not.
        """
        if len(self.sizes) != len(self.boundaries) + 1:
            raise InvalidArgumentError(
                f"len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1, and they are {len(self.sizes)} and "
                f"{len(self.boundaries)}",
                hint="the first bucket lies below the first boundary, the last one from the last boundary on",
            )
        if any(low >= high for low, high in pairwise(self.boundaries)):
            raise InvalidArgumentError(
                f"`bucket_boundaries` {list(self.boundaries)} do not rise", hint="sort them, each once"
            )

    def bucket_of(self, *element: Any) -> int:
        """Return the number of an element's bucket."""
        length = operator.index(self.length(*element))
        bucket = bisect_right(self.boundaries, length)
        if self.pad_to_boundary and bucket == len(self.boundaries):
            raise InvalidArgumentError(
                "When pad_to_bucket_boundary=True, elements must have length < max(bucket_boundaries): "
                f"an element has the length {length}",
                did="the element was left out; reading continues with the next",
                hint="add a boundary, or cut or filter the long ones before",
            )
        return bucket

    def size(self, bucket: Any) -> int:
        """Return the batch size of a bucket."""
        size: int = self.sizes[bucket]
        return size

    def batch(self, bucket: Any, window: Any) -> Any:
        """Turn a dataset of the elements of a full bucket into one of their batch."""
        size = self.sizes[bucket]
        if self.padding is None:
            return window.batch(size, self.drop_remainder)
        padding = self.padding
        if self.pad_to_boundary:
            padding = replace(padding, shapes=self._shapes(window, self.boundaries[bucket] - 1))
        return window.padded_batch(size, padding.shapes, padding.values, self.drop_remainder)

    def _shapes(self, window: Any, largest: int) -> Any:
        """Return the shape of each leaf, with the largest length of the bucket where the user gave no size."""
        assert self.padding is not None
        with iter(window) as elements:
            first = next(elements)
        structure = structure_of(first)
        given = self.padding.shapes_for(structure)
        shapes = [
            (None,) * getattr(leaf, "ndim", 0) if shape is None else shape
            for leaf, shape in zip(flatten(first), given, strict=True)
        ]
        return rebuild(structure, (tuple(largest if size is None else size for size in shape) for shape in shapes))


class BucketBySequenceLength(GroupByWindow, frozen=True, kw_only=True):
    """Groups elements by length; each window becomes a batch."""

    buckets: Buckets

    @property
    def name(self) -> str:
        return f"bucket_by_sequence_length({function_name(self.buckets.length)})"

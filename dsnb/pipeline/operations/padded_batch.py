"""`Dataset.padded_batch`: lays out consecutive elements of different sizes as one, with padding."""

from __future__ import annotations

from functools import partial
from typing import Any

from dsnb.elements.spec import TensorSpec
from dsnb.elements.structure import flatten, rebuild, structure_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.batching import BatchStage
from dsnb.pipeline.engine.padding import Padding, Shape, fill_value_of
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.operations.batch import Batch


class PaddedBatch(Batch, frozen=True, kw_only=True):
    """Like `Batch`, with leaves padded to one size."""

    padding: Padding = Padding()

    @property
    def name(self) -> str:
        return f"padded_batch({self.size})"

    @property
    def element_spec(self) -> Any:
        """The input's spec with one more dimension, and with the sizes that the user gave."""
        spec = self.inputs[0].element_spec
        if spec is None:
            return None
        structure = structure_of(spec)
        count = self.size if self.drop_remainder else None
        pairs = zip(flatten(spec), self.padding.shapes_for(structure), strict=True)
        return rebuild(structure, (_batch_spec(leaf, shape, count) for leaf, shape in pairs))

    def check(self) -> None:
        """Check shapes and values against the input's spec, as far as it is known.

        Raises:
            InvalidArgumentError: they do not fit.
        """
        spec = self.inputs[0].element_spec
        if spec is None:
            return
        structure = structure_of(spec)
        leaves = flatten(spec)
        try:
            for leaf, shape in zip(leaves, self.padding.shapes_for(structure), strict=True):
                _check_shape(leaf, shape)
            for leaf, value in zip(leaves, self.padding.values_for(structure), strict=True):
                fill_value_of(value, leaf.dtype)
        except InvalidArgumentError as error:
            # The text is the same as while reading, except that no element was dropped.
            raise InvalidArgumentError(error.what, hint=error.hint) from None

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return BatchStage(
            self.name, source, self.size, self.drop_remainder, partial(self.padding.assemble, allocate=context.allocate)
        )


def _batch_spec(leaf: TensorSpec, shape: Shape | None, count: int | None) -> TensorSpec:
    if shape is None:
        return TensorSpec((count, *leaf.shape), leaf.dtype)
    return TensorSpec((count, *shape), leaf.dtype)


def _check_shape(leaf: TensorSpec, shape: Shape | None) -> None:
    if shape is None:
        return
    small = any(
        size is not None and has is not None and has > size for has, size in zip(leaf.shape, shape, strict=False)
    )
    if len(shape) != len(leaf.shape) or small:
        raise InvalidArgumentError(
            f"`padded_shapes` says {shape} for a leaf of the spec {leaf}",
            hint="give as many sizes as the leaf has dimensions, none smaller than its own; () for a scalar",
        )

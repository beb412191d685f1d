"""Marks a dataset that each task of a DYNAMIC job reads whole, such as the indices of `choose_from_datasets`."""

from __future__ import annotations

from typing import ClassVar

from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Unchanged


class Replicate(Unchanged, frozen=True, kw_only=True):
    """The input unchanged. An operation wraps those of its inputs whose splits must not be divided among tasks.

    Example:
        >>> from dsnb.pipeline.operations.zip import Zip
        >>> from dsnb.pipeline.splits import split_providers
        >>> from dsnb.pipeline.sources.range import Range
        >>> from dsnb.elements.structure import structure_of
        >>> pairs = Zip(inputs=(Range(stop=9), Replicate(inputs=(Range(stop=5),))), structure=structure_of((0, 0)))
        >>> split_providers(pairs)
        (SplitProvider(source='range(9)', count=9, divisible=True),)
    """

    replicated: ClassVar[bool] = True

    def build(self, context: BuildContext) -> Stage:
        """Return the input's stage, built to read everything."""
        return self.inputs[0].build(context.inner())

"""`Dataset.batch`: lays out consecutive elements as one, with one more dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

from dsnb.pipeline.engine.assemble import batch_of, batches_of
from dsnb.pipeline.engine.batching import BatchStage
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.specs import add_dimension, map_cardinality


class Batch(Operation, frozen=True, kw_only=True):
    """Combines `size` elements into one; the last batch may be smaller unless `drop_remainder` is set."""

    copies = True
    size: int
    drop_remainder: bool = False

    @property
    def name(self) -> str:
        return f"batch({self.size})"

    @property
    def element_spec(self) -> Any:
        """The input's spec with one more dimension, whose size is known if all batches are full."""
        return add_dimension(self.inputs[0].element_spec, self.size if self.drop_remainder else None)

    @property
    def cardinality(self) -> int:
        spare = 0 if self.drop_remainder else self.size - 1
        return map_cardinality(self.inputs[0].cardinality, lambda count: (count + spare) // self.size)

    @property
    def inputs_per_element(self) -> int:
        return self.size

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        assemble = partial(batch_of, allocate=context.allocate)
        return BatchStage(
            self.name,
            source,
            self.size,
            self.drop_remainder,
            assemble,
            assemble_many=batches_of,
            copied_later=context.copied_later,
        )

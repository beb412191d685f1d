"""The tree of operations: counted, walked and built from left to right."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.errors import UnimplementedError
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import BuildContext, Operation, count_sources, walk
from tests.pipeline.driving import Feed, context


class Leaf(Operation):
    def build(self, context: BuildContext) -> Stage:
        SEEN.append(context.provider)
        return Stage(self.name)


class Join(Operation):
    def build(self, context: BuildContext) -> Stage:
        return Stage(self.name, *self.build_inputs(context))


SEEN: list[int] = []


def test_sources_are_counted_at_each_use_and_built_with_their_numbers() -> None:
    leaf = Leaf()
    tree = Join(inputs=(Join(inputs=(leaf, leaf)), leaf))
    SEEN.clear()
    tree.build(context())
    assert SEEN == [0, 1, 2]
    assert count_sources(tree) == 3


def test_a_tree_is_walked_inputs_first() -> None:
    first, second = Leaf(), Leaf()
    tree = Join(inputs=(first, second))
    assert [*walk(tree)] == [first, second, tree]


def test_passes_nest_and_seeds_follow_them() -> None:
    outer = context(entropy=9, iteration_path=(2,))
    assert outer.in_iteration(1).in_iteration(0).iteration_path == (2, 1, 0)
    assert outer.in_iteration(1).seed(5) == [5, 2, 1]
    assert outer.seed(None) == [9, 2]


def test_inner_datasets_have_no_splits() -> None:
    assert context(splits=Feed([1]).task()).inner().splits is None


@pytest.mark.parametrize("what", ["cannot be cut into splits"])
def test_defaults_promise_nothing(what: str) -> None:
    leaf: Any = Leaf()
    assert leaf.element_spec is None
    assert leaf.cardinality == -2
    with pytest.raises(UnimplementedError, match=what):
        leaf.split_provider()
    assert Join(inputs=(leaf,)).split_provider() is None

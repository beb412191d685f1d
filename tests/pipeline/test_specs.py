"""Specs and cardinalities follow from what operations do, without running anything."""

from __future__ import annotations

import numpy as np
import pytest

from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.operation import INFINITE_CARDINALITY as INF
from dsnb.pipeline.operation import UNKNOWN_CARDINALITY as UNKNOWN
from dsnb.pipeline.specs import (
    add_dimension,
    are_compatible,
    drop_dimension,
    map_cardinality,
    merge_specs,
    shortest_cardinality,
    total_cardinality,
)

SPEC = {"x": TensorSpec((2, None), "f4"), "y": (TensorSpec((), "i8"),)}


def test_a_batch_has_one_dimension_more_and_unbatching_takes_it_off() -> None:
    batched = add_dimension(SPEC, 8)
    assert batched == {"x": TensorSpec((8, 2, None), "f4"), "y": (TensorSpec((8,), "i8"),)}
    assert drop_dimension(batched) == SPEC


def test_an_unknown_spec_stays_unknown() -> None:
    assert add_dimension(None, 8) is drop_dimension(None) is merge_specs(None, SPEC) is merge_specs(SPEC, None) is None


@pytest.mark.parametrize(
    "other, fits",
    [
        (TensorSpec((3, 2), "f4"), True),
        (TensorSpec((3, None), "f4"), True),
        (TensorSpec((3,), "f4"), False),
        (TensorSpec((3, 2), "f8"), False),
        ((TensorSpec((3, 2), "f4"),), False),
    ],
    ids=["size", "unknown size", "rank", "dtype", "structure"],
)
def test_datasets_can_follow_each_other_if_only_sizes_differ(other: object, fits: bool) -> None:
    assert are_compatible(TensorSpec((4, 2), "f4"), other) is fits


def test_merging_keeps_what_both_know() -> None:
    assert merge_specs(TensorSpec((4, 2), np.float32), TensorSpec((3, 2), np.float32)) == TensorSpec(
        (None, 2), np.float32
    )


@pytest.mark.parametrize(
    "cardinalities, one_after_the_other, side_by_side",
    [
        ([2, 3], 5, 2),
        ([2, INF], INF, 2),
        ([INF, INF], INF, INF),
        ([2, UNKNOWN], UNKNOWN, UNKNOWN),
        ([INF, UNKNOWN], INF, UNKNOWN),
    ],
    ids=str,
)
def test_cardinalities_combine_by_tf_data_s_rules(
    cardinalities: list[int], one_after_the_other: int, side_by_side: int
) -> None:
    assert total_cardinality(cardinalities) == one_after_the_other
    assert shortest_cardinality(cardinalities) == side_by_side


@pytest.mark.parametrize("cardinality, doubled", [(0, 0), (4, 8), (INF, INF), (UNKNOWN, UNKNOWN)])
def test_only_a_known_finite_cardinality_is_scaled(cardinality: int, doubled: int) -> None:
    assert map_cardinality(cardinality, lambda known: 2 * known) == doubled

"""`dsnb.testing`: a check of users' pipelines that passes what is right and names what is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.testing import assert_resumable
from tests.support.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=2) as cluster:
        yield cluster


def test_a_pipeline_on_this_machine_is_checked_in_order() -> None:
    assert_resumable(dsnb.Dataset.range(12).shuffle(5).map(lambda x: {"x": x, "y": np.ones(2)}).batch(3).prefetch(2))


def test_an_endless_pipeline_is_checked_as_far_as_asked() -> None:
    assert_resumable(dsnb.Dataset.range(3).shuffle(3).repeat(), most=10)


def test_the_width_of_text_may_differ(cluster: Cluster) -> None:
    """Over gRPC, batches of text in one frame have the width of the widest."""
    ds = dsnb.Dataset.from_tensor_slices(["x" * n for n in range(1, 9)]).batch(2)
    assert_resumable(ds, service=cluster.service, processing_mode="distributed_epoch", positions=[0, 3])


def test_errors_count_as_what_stands_in_their_places() -> None:
    def picky(x: int) -> int:
        if x % 4 == 1:
            raise ValueError(f"{x} is odd")
        return x

    assert_resumable(dsnb.Dataset.range(12).map(picky).batch(2))


def test_a_function_that_remembers_is_found_out_with_position_and_element() -> None:
    counter = itertools.count()
    dataset = dsnb.Dataset.range(4).map(lambda x: x + 10 * next(counter))
    with pytest.raises(
        AssertionError, match=r"position 0 \(stopped once\): element 0 is 40 after resuming, and 0 without"
    ):
        assert_resumable(dataset)


def test_only_the_positions_that_are_asked_for_are_checked() -> None:
    counter = itertools.count()
    dataset = dsnb.Dataset.range(4).map(lambda x: x + 10 * next(counter))
    with pytest.raises(AssertionError, match=r"position 3 "):
        assert_resumable(dataset, positions=[3])
    assert_resumable(dataset, positions=[])


def test_what_has_no_position_is_refused_by_name() -> None:
    dataset = dsnb.Dataset.range(4).map(str, num_parallel_calls=2, deterministic=False)
    with pytest.raises(FailedPreconditionError, match=r"map\(str\) hands out what is ready first"):
        assert_resumable(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["parallel_epochs", "distributed_epoch", dsnb.ShardingPolicy.DATA])
def test_a_pipeline_is_checked_through_a_service(cluster: Cluster, mode: Any) -> None:
    assert_resumable(dsnb.Dataset.range(9).shuffle(4), service=cluster.service, processing_mode=mode)


def test_operations_behind_a_service_are_counted_by_rows(cluster: Cluster) -> None:
    distributed = dsnb.Dataset.range(7).apply(dsnb.distribute("parallel_epochs", cluster.service))
    assert_resumable(distributed.shuffle(3).batch(4).prefetch(1))


def test_a_service_that_would_give_other_elements_is_found_out(cluster: Cluster) -> None:
    counter = itertools.count()
    dataset = dsnb.Dataset.range(4).map(lambda x: x + 10 * next(counter))
    with pytest.raises(AssertionError, match=r"came once too often|never came"):
        assert_resumable(dataset, service=cluster.service, positions=[1])


def test_an_endless_read_from_a_service_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="20 elements or more"):
        assert_resumable(dsnb.Dataset.range(5).repeat(), service=cluster.service, most=20)

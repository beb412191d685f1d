"""Ranks that read batches of a prime number of rows: how many rows an epoch leaves out, by `at_end`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dsnb
from tests.support.cluster import Cluster
from tests.support.marks import slow
from tests.support.reading import run_in_threads

ROWS, BATCH, EPOCHS = 101, 4, 3


@pytest.mark.parametrize("at_end", ["drop", slow("pad"), slow("repeat")])
@pytest.mark.parametrize("workers, world_size", [(3, 2), slow(1, 2), slow(1, 3), slow(3, 3)])
def test_an_epoch_leaves_out_less_than_a_batch_for_each_rank_and_with_fillers_none(
    workers: int, world_size: int, at_end: Any
) -> None:
    rows = dsnb.Dataset.from_random_access(range(ROWS), shuffle=True).batch(BATCH)
    with Cluster(workers) as cluster:

        def read(rank: int) -> list[list[Any]]:
            ds = rows.apply(
                dsnb.distribute("distributed_epoch", cluster.service, job_name="train", rank=rank,
                                world_size=world_size, at_end=at_end)
            )  # fmt: skip
            return [list(ds) for _ in range(EPOCHS)]

        ranks = run_in_threads([lambda rank=rank: read(rank) for rank in range(world_size)], 120.0)
    for epoch in zip(*ranks, strict=True):
        assert len({len(rank) for rank in epoch}) == 1
        batches = [batch for rank in epoch for batch in rank]
        if at_end == "pad":
            batches = [batch for batch, filler in batches if not filler]
        read_rows = Counter(int(x) for batch in batches for x in batch)
        left_out = ROWS - len(read_rows)
        assert left_out < world_size * BATCH if at_end == "drop" else left_out == 0
        assert at_end == "repeat" or max(read_rows.values()) == 1

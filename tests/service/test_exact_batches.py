"""An epoch over a source of known length has the same batches for any number of workers, and its length is known."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.pipeline.dataset import UnknownLengthError
from dsnb.testing import assert_resumable

ROWS, SIZE = 61, 8
SOURCES = {
    "range": dsnb.Dataset.range(ROWS),
    "rows": dsnb.Dataset.from_tensor_slices(np.arange(ROWS)),
    "items": dsnb.Dataset.from_random_access(range(ROWS), shuffle=True),
    "shuffle": dsnb.Dataset.range(ROWS).shuffle(20),
}


def rows_of(batches: Any) -> list[int]:
    return sorted(row for batch in batches for row in batch.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_epoch_has_as_many_batches_as_len_says(source: str, workers: int) -> None:
    with dsnb.start(workers=workers) as svc:
        ds = SOURCES[source].map(lambda x: x).batch(SIZE)
        read = ds.apply(dsnb.distribute("distributed_epoch", svc))
        for _ in range(2):
            batches = list(read)
            assert len(batches) == len(read) == len(pickle.loads(pickle.dumps(read))) == 8
            assert sorted(map(len, batches)) == [ROWS % SIZE, *[SIZE] * 7]
            assert rows_of(batches) == list(range(ROWS))
        assert len(read.prefetch(1)) == 8
        assert len(list(read.repeat(2))) == len(read.repeat(2)) == 16


def test_a_dropped_remainder_is_the_last_rows_of_the_source() -> None:
    with dsnb.start(workers=3) as svc:
        ds = dsnb.Dataset.range(ROWS).batch(SIZE, drop_remainder=True)
        read = ds.apply(dsnb.distribute("distributed_epoch", svc))
        assert rows_of(read) == list(range(ROWS - ROWS % SIZE))
        assert len(read) == 7


@pytest.mark.parametrize(
    "mode, settings, dataset",
    [
        ("distributed_epoch", {"job_name": "shared"}, dsnb.Dataset.range(ROWS).batch(SIZE)),
        ("parallel_epochs", {}, dsnb.Dataset.range(ROWS).batch(SIZE)),
        ("distributed_epoch", {}, dsnb.Dataset.range(ROWS).take(9).batch(SIZE)),
    ],
)
def test_len_is_unknown_where_it_depends_on_other_clients_or_on_workers(
    mode: str, settings: dict[str, Any], dataset: dsnb.Dataset
) -> None:
    with dsnb.start(workers=1) as svc:
        read = dataset.apply(dsnb.distribute(mode, svc, **settings))
        with pytest.raises(UnknownLengthError):
            len(read)


@pytest.mark.slow
def test_batches_stay_whole_when_a_worker_leaves() -> None:
    with dsnb.start(workers=3) as svc:
        ds = dsnb.Dataset.range(500).batch(SIZE)
        with iter(ds.apply(dsnb.distribute("distributed_epoch", svc, max_outstanding_requests=3))) as elements:
            batches = [next(elements) for _ in range(5)]
            svc.scale(1)
            batches += elements
    assert len(batches) == 63
    assert rows_of(batches) == list(range(500))


@pytest.mark.slow
def test_a_position_between_batches_resumes_with_whole_batches() -> None:
    with dsnb.start(workers=2) as svc:
        assert_resumable(dsnb.Dataset.range(ROWS).batch(SIZE), service=svc, processing_mode="distributed_epoch")
        ds = dsnb.Dataset.range(ROWS).batch(SIZE).apply(dsnb.distribute("distributed_epoch", svc))
        with iter(ds) as elements:
            first = [next(elements) for _ in range(3)]
            state = elements.state_dict()
        with iter(ds) as elements:
            elements.load_state_dict(state)
            batches = [*first, *elements]
    assert len(batches) == 8
    assert rows_of(batches) == list(range(ROWS))

"""An operation in place on a tensor of one trainer never reaches another trainer, a recording or the source."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.support.reading import run_in_threads
from tests.support.requires import require_peer

torch = require_peer("torch")

COUNT = 300


def value(number: int) -> int:
    return 1 + number % 250


@pytest.mark.slow
@pytest.mark.parametrize("loader", [False, True], ids=["iter_torch", "to_torch"])
@pytest.mark.parametrize("size", [(28, 28), (128, 512), (600, 4096)], ids=["784 bytes", "64 KiB", "2.4 MB"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_none_of_600_checks_of_the_other_trainer_finds_damage(isolation: Any, size: Any, loader: bool) -> None:
    """Each element is checked when it arrives, and again when the writer has had the elements after it."""
    count = COUNT if size != (600, 4096) else COUNT // 5
    dataset = dsnb.Dataset.range(count).map(lambda number: np.full(size, 1 + int(number) % 250, np.uint8))
    with dsnb.start(workers=1, name="owners", isolation=isolation) as service:

        def batches(name: str) -> Any:
            cache = dsnb.CrossTrainerCache(name, on_lag="wait", start_together=2)
            shared = dataset.apply(
                dsnb.distribute("parallel_epochs", service, job_name="owners", cross_trainer_cache=cache)
            )
            return iter(shared.to_torch()) if loader else shared.iter_torch()

        def writer() -> int:
            written = 0
            for tensor in islice(batches("writer"), count):
                tensor.mul_(0).sub_(1)
                written += int((tensor == 255).all())
            return written

        def checker() -> tuple[int, int]:
            intact, kept = 0, []
            for number, tensor in enumerate(islice(batches("checker"), count)):
                intact += int((tensor == value(number)).all())
                kept = [*kept[-7:], (number, tensor)]
                first, oldest = kept[0]
                intact += int((oldest == value(first)).all())
            return intact, 2 * count

        assert run_in_threads([writer, checker], 100.0) == [count, (2 * count, 2 * count)]


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_operations_in_place_do_not_reach_a_recording(place: str, tmp_path: Any) -> None:
    dataset = dsnb.Dataset.range(20).map(lambda x: np.full((300, 300), int(x), np.float32))
    recorded = dataset.cache(None if place == "memory" else tmp_path)
    for _epoch in range(3):
        for number, tensor in enumerate(recorded.iter_torch()):
            assert bool((tensor == number).all())
            tensor.fill_(-1)


@pytest.mark.parametrize(
    "change",
    [lambda ds: ds, lambda ds: ds.batch(4), lambda ds: ds.shuffle(8, seed=1).batch(4)],
    ids=["rows", "batches", "shuffled batches"],
)
def test_operations_in_place_do_not_reach_the_source(change: Callable[[Any], Any]) -> None:
    data = np.arange(1 << 18, dtype=np.float64).reshape(32, -1)
    pristine = data.copy()
    for _epoch in range(2):
        for tensor in change(dsnb.Dataset.from_tensor_slices(data)).iter_torch():
            tensor.zero_()
    np.testing.assert_array_equal(data, pristine)


class Kept(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]  # mypy does not know its type
    """A dataset that hands out parts of a tensor that it keeps, small ones or large ones."""

    def __init__(self, size: int) -> None:
        self.rows = torch.ones((20, size))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100_000])
def test_operations_in_place_of_a_trainer_reach_neither_the_dataset_nor_a_recording_on_the_workers(
    size: int, tmp_path: Any
) -> None:
    """The workers are threads of this process, so that the dataset and its recording in memory are within reach."""
    kept = Kept(size)
    source = dsnb.Dataset.from_random_access(kept)
    with dsnb.start(workers=1, name="kept") as service:
        for recorded in (source, source.cache(), source.cache(tmp_path)):
            for _epoch in range(3):
                for tensor in recorded.apply(dsnb.distribute("parallel_epochs", service)).to_torch():
                    assert bool((tensor == 1).all())
                    tensor.zero_()
    assert bool((kept.rows == 1).all())

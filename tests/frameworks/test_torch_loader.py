"""`to_torch` returns a DataLoader: its length, epochs and reading position, of local and distributed datasets."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.notebook.service import DataService
from dsnb.pipeline.dataset import UnknownLengthError
from tests.support.requires import require_peer

torch = require_peer("torch")

Dataset = dsnb.Dataset


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=2, name="loader") as service:
        yield service


def shuffled() -> Dataset:
    """A dataset whose epochs differ, as a fresh process makes it."""
    return Dataset.range(60).shuffle(60, seed=5).batch(4)


def rows(loader: Any) -> list[int]:
    return [int(row) for batch in loader for row in batch]


def through(state: dict[str, Any]) -> dict[str, Any]:
    """A state as another process gets it."""
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


def test_it_is_a_data_loader_without_workers_whose_batches_are_the_elements() -> None:
    loader = Dataset.range(7).batch(3).to_torch()
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert isinstance(loader.dataset, torch.utils.data.IterableDataset)
    assert (loader.num_workers, loader.batch_size) == (0, None)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]


def test_its_length_is_that_of_the_dataset() -> None:
    assert len(Dataset.range(7).batch(3).to_torch()) == 3
    with pytest.raises(UnknownLengthError):
        len(Dataset.range(7).filter(lambda x: x > 1).to_torch())
    with pytest.raises(TypeError, match="never ends"):
        len(Dataset.range(7).repeat().to_torch())


def test_only_a_known_length_is_promised_to_frameworks_that_look_for_one() -> None:
    assert hasattr(Dataset.range(7).to_torch().dataset, "__len__")
    assert not hasattr(Dataset.range(7).filter(lambda x: x > 1).to_torch().dataset, "__len__")


def test_each_loop_is_the_next_epoch() -> None:
    loader = Dataset.range(50).shuffle(50, seed=1).batch(5).to_torch()
    first, second = rows(loader), rows(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))


def test_two_loops_at_a_time_are_two_epochs() -> None:
    loader = Dataset.range(6).batch(2).to_torch()
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == [
        ([n, n + 1], [n, n + 1]) for n in (0, 2, 4)
    ]


def test_a_state_taken_after_step_k_continues_at_the_next_one() -> None:
    whole = shuffled().to_torch()
    epochs = [rows(whole), rows(whole)]
    for k in (0, 1, 7, 14):
        loader = shuffled().to_torch()
        before = rows(islice(loader, k)) if k else []
        again = shuffled().to_torch()
        again.load_state_dict(through(loader.state_dict()))
        assert before + rows(again) == epochs[0]
        assert rows(again) == epochs[1]


def test_a_state_taken_within_the_loop_and_after_a_break_is_the_same() -> None:
    loader = Dataset.range(20).batch(2).to_torch()
    within: dict[str, Any] = {}
    for step, _ in enumerate(loader):
        if step == 3:
            within = through(loader.state_dict())
            break
    assert through(loader.state_dict()) == within
    loader.load_state_dict(within)
    assert rows(loader) == list(range(8, 20))


def test_a_state_from_the_end_of_an_epoch_continues_with_the_next_epoch() -> None:
    loader = shuffled().to_torch()
    rows(loader)
    state = through(loader.state_dict())
    again = shuffled().to_torch()
    again.load_state_dict(state)
    assert rows(again) == rows(loader)


def test_asking_for_the_state_before_the_first_loop_does_not_count_as_an_epoch() -> None:
    first = rows(shuffled().to_torch())
    loader = shuffled().to_torch()
    state = through(loader.state_dict())
    assert rows(loader) == first
    loader.load_state_dict(state)
    assert rows(loader) == first


def test_a_wrong_state_is_refused_and_changes_nothing() -> None:
    loader = Dataset.range(4).batch(2).to_torch()
    with pytest.raises(InvalidArgumentError, match="no reading position"):
        loader.load_state_dict({"epoch": 3})
    assert rows(loader) == [0, 1, 2, 3]


def test_a_loader_is_not_pickled_as_processes_of_its_own_would_need() -> None:
    loader = Dataset.range(4).batch(2).to_torch()
    for part in (loader, loader.dataset):
        with pytest.raises(FailedPreconditionError, match="leave num_workers at 0"):
            pickle.dumps(part)


WITH_WORKERS = """
import dsnb, torch
dataset = dsnb.Dataset.range(4).batch(2).to_torch().dataset
try:
    next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))
except dsnb.errors.FailedPreconditionError as error:
    print("refused" if "leave num_workers at 0" in str(error) else error)
"""


@pytest.mark.slow
def test_a_loader_with_forked_workers_over_its_dataset_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITH_WORKERS], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout, done.returncode) == ("refused\n", 0), done.stderr


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # torchdata looks at all names of torch
def test_torchdata_keeps_the_position_of_a_loader_it_makes_of_the_dataset() -> None:
    stateful = require_peer("torchdata.stateful_dataloader").StatefulDataLoader
    expected = rows(shuffled().to_torch())

    def make() -> Any:
        return stateful(shuffled().to_torch().dataset, batch_size=None, num_workers=0)

    loader = make()
    before = rows(islice(loader, 4))
    again = make()
    again.load_state_dict(loader.state_dict())
    assert before + rows(again) == expected


# ---- from a service


def distributed(service: DataService, job: str, mode: str = "distributed_epoch") -> Dataset:
    dataset = Dataset.range(90).map(lambda x: x).batch(5)
    return dataset.apply(dsnb.distribute(mode, service, job_name=job))


def test_a_distributed_dataset_trains_by_a_loader_too(service: DataService) -> None:
    loader = distributed(service, "train").to_torch()
    for _epoch in range(2):
        assert sorted(rows(loader)) == list(range(90))


def test_the_position_of_a_distributed_dataset_is_exact_at_step_k(service: DataService) -> None:
    for k in (1, 5, 17):
        loader = distributed(service, f"until {k}").to_torch()
        before = rows(islice(loader, k))
        state = through(loader.state_dict())
        del loader
        again = distributed(service, f"after {k}").to_torch()
        again.load_state_dict(state)
        assert sorted(before + rows(again)) == list(range(90))
        assert len(before) == 5 * k


def test_a_loader_goes_back_to_an_earlier_position_of_the_same_job(service: DataService) -> None:
    loader = distributed(service, "back").to_torch()
    elements = iter(loader)
    before = rows(islice(elements, 4))
    state = through(loader.state_dict())
    rows(islice(elements, 3))
    loader.load_state_dict(state)
    assert sorted(before + rows(loader)) == list(range(90))
    assert list(elements) == []


def test_what_was_copied_ahead_of_the_loop_is_read_again_after_a_resume(service: DataService) -> None:
    elements = distributed(service, "ahead").iter_torch(device="meta", prefetch=6)
    count = sum(len(batch) for batch in islice(elements, 4))
    state = through(elements.state_dict())
    elements.close()
    again = distributed(service, "ahead again").to_torch()
    again.load_state_dict(state)
    assert len(rows(again)) == 90 - count


def test_time_spent_on_tensors_is_shown_apart_from_the_loop(service: DataService) -> None:
    elements = distributed(service, "timed").iter_torch(writable=True)
    assert sum(len(batch) for batch in elements) == 90
    job = service.status().job("timed")
    assert job is not None
    (trainer,) = job.trainers
    assert trainer.convert_ns > 0
    assert trainer.convert_ns + trainer.wait_ns + trainer.decode_ns <= trainer.active_ns

"""Dataclasses and named tuples go through every operation and a worker as what the user's functions expect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsnb
from tests.support.cluster import Cluster


@dataclass
class Sample:
    image: Any
    label: Any
    extra: Any = None


class Pair(NamedTuple):
    sample: Sample
    nothing: None


def make(x: Any) -> Sample:
    return Sample(np.full(3, x), int(x))


def check(sample: Any) -> Any:
    """What a user's function may rely on: its own class, on the worker."""
    assert isinstance(sample, Sample)
    assert sample.extra is None
    return sample


def check_pair(sample: Any, nothing: None) -> Any:
    return check(sample)


BASE = dsnb.Dataset.range(12)
MADE = BASE.map(make)
SPEC = Sample(dsnb.TensorSpec((3,), np.int64), dsnb.TensorSpec((), np.int64))
DATASETS = {
    "map": MADE.map(check),
    "parallel map": BASE.map(make, num_parallel_calls=2).map(check),
    "nested in a named tuple": BASE.map(lambda x: Pair(make(x), None)).map(lambda pair: check(pair.sample)),
    "nested in a tuple": BASE.map(lambda x: (make(x), None)).map(check_pair),
    "batch": MADE.batch(4).map(check),
    "unbatch": MADE.batch(4).unbatch().map(check),
    "rebatch": MADE.batch(4).rebatch(3).map(check),
    "padded_batch": BASE.map(lambda x: Sample(np.arange(int(x) % 3), x)).padded_batch(3).map(check),
    "shuffle": MADE.shuffle(5, seed=1).map(check),
    "prefetch": MADE.prefetch(2).map(check),
    "zip": dsnb.Dataset.zip((MADE, BASE)).map(lambda sample, x: check(sample)),
    "zip of a dataclass": dsnb.Dataset.zip(Sample(BASE, BASE)).map(check),  # type: ignore[arg-type]
    "cache": MADE.cache().map(check),
    "slices": dsnb.Dataset.from_tensor_slices(Sample(np.arange(6), np.arange(6))).map(check),
    "tensors": dsnb.Dataset.from_tensors(Sample(np.arange(6), 3)).map(check),
    "interleave": BASE.interleave(lambda x: dsnb.Dataset.range(2).map(make)).map(check),
    "scan": BASE.scan(np.int64(0), lambda state, x: (state + x, make(x))).map(check),
    "writable": MADE.with_options(dsnb.Options(writable=True)).map(check),
    "group_by_window": MADE.group_by_window(lambda s: s.label % 2, lambda _, w: w.batch(2), window_size=2).map(check),
    "generator": dsnb.Dataset.from_generator(lambda: (make(i) for i in range(3)), element_spec=SPEC).map(check),
}


def classes(dataset: dsnb.Dataset) -> Any:
    """The classes of what two passes give, or the error that ends them."""
    try:
        return {type(element) for _ in range(2) for element in dataset}
    except Exception as error:  # noqa: BLE001 - told beside the name of the dataset
        return error


@pytest.mark.slow
@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_the_users_classes_go_through_an_operation(dataset: dsnb.Dataset) -> None:
    assert classes(dataset) == {Sample}


@pytest.mark.slow
def test_the_users_classes_go_through_all_operations_on_a_worker_and_arrive() -> None:
    with Cluster(workers=1) as one:
        distributed = dsnb.distribute("parallel_epochs", one.service)
        found = {name: classes(dataset.apply(distributed)) for name, dataset in DATASETS.items()}
    assert found == {name: {Sample} for name in DATASETS}


@pytest.mark.slow
def test_a_recording_in_a_directory_is_read_back_as_the_pipelines_classes(tmp_path: Path) -> None:
    dataset = MADE.cache(str(tmp_path / "recording")).map(check)
    with Cluster(workers=1) as one:
        distributed = dataset.apply(dsnb.distribute("parallel_epochs", one.service))
        for elements in (list(dataset), list(distributed), list(dataset), list(distributed)):
            assert [int(element.label) for element in elements] == list(range(12))
            assert {type(element) for element in elements} == {Sample}

"""`Dataset`: describes, never runs by itself, and says what it is."""

from __future__ import annotations

import doctest
import pickle
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsnb.pipeline.dataset
import dsnb.pipeline.engine.assemble
import dsnb.pipeline.engine.function_location
import dsnb.pipeline.engine.ownership
import dsnb.pipeline.engine.run_length
import dsnb.pipeline.engine.to_numpy
import dsnb.pipeline.file_datasets
import dsnb.pipeline.splits
from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.dataset import Dataset, UnknownLengthError
from dsnb.pipeline.file_datasets import TextLineDataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from tests.pipeline.driving import failing_at, plain, run, values

MODULES = [
    dsnb.pipeline.dataset,
    dsnb.pipeline.file_datasets,
    dsnb.pipeline.splits,
    dsnb.pipeline.engine.assemble,
    dsnb.pipeline.engine.to_numpy,
    dsnb.pipeline.engine.function_location,
    dsnb.pipeline.engine.ownership,
    dsnb.pipeline.engine.run_length,
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


CHAIN_STEPS: dict[str, Any] = {
    "map": lambda ds: ds.map(lambda x: x + 1),
    "filter": lambda ds: ds.filter(lambda x: x % 3 != 0),
    "batch and unbatch": lambda ds: ds.batch(4).unbatch(),
    "shuffle": lambda ds: ds.shuffle(6, seed=2),
    "repeat": lambda ds: ds.repeat(2),
    "take": lambda ds: ds.take(17),
    "skip": lambda ds: ds.skip(3),
    "take_while": lambda ds: ds.take_while(lambda x: x != 14),
    "scan": lambda ds: ds.scan(0, lambda total, x: (total + x, total)),
    "unique": lambda ds: ds.map(lambda x: x % 7).unique(),
    "shard": lambda ds: ds.shard(3, 1),
    "padded_batch": lambda ds: ds.padded_batch(4).unbatch(),
    "rebatch": lambda ds: ds.batch(5).rebatch([2, 3]).unbatch(),
    "window": lambda ds: ds.window(5, shift=3, stride=2).flat_map(lambda window: window),
    "group_by_window": lambda ds: ds.group_by_window(lambda x: x % 3, lambda _, window: window, 2),
    "bucket_by_sequence_length": lambda ds: ds.bucket_by_sequence_length(int, [4, 9], [2, 3, 4]).unbatch(),
    "choose_from_datasets": lambda ds: Dataset.choose_from_datasets([ds, ds], Dataset.range(2).repeat(6)),
    "sample_from_datasets": lambda ds: Dataset.sample_from_datasets([ds, Dataset.range(9)], seed=4),
    "concatenate": lambda ds: ds.concatenate(Dataset.range(4)),
    "enumerate": lambda ds: ds.enumerate().map(lambda i, x: i + x),
    "zip": lambda ds: Dataset.zip(ds, Dataset.range(30)).map(lambda x, y: x * y),
    "flat_map": lambda ds: ds.flat_map(lambda x: Dataset.from_tensors(x).repeat(x % 3)),
    "interleave": lambda ds: ds.interleave(lambda x: Dataset.range(x % 4), 3, 2),
    "prefetch": lambda ds: ds.prefetch(3),
    "parallel map": lambda ds: ds.map(lambda x: 2 * x, num_parallel_calls=2),
}


@given(
    st.lists(st.sampled_from(sorted(CHAIN_STEPS)), max_size=4),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_any_chain_gives_the_same_elements_whatever_the_lengths_of_runs(names: list[str], wants: list[int]) -> None:
    ds = Dataset.range(20)
    for name in names:
        ds = CHAIN_STEPS[name](ds)
    found = run(ds, wants)
    assert found == run(ds, [1])
    if ds.cardinality() >= 0:
        assert ds.cardinality() == len(found)


@given(
    st.lists(st.sampled_from(sorted(CHAIN_STEPS)), max_size=3),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.lists(st.integers(0, 19), max_size=3),
)
def test_errors_stand_in_the_same_places_whatever_the_lengths_of_runs(
    names: list[str], wants: list[int], bad: list[int]
) -> None:
    ds = Dataset.range(20).map(failing_at(*bad))
    for name in names:
        ds = CHAIN_STEPS[name](ds)
    assert [plain(x) for x in run(ds, wants)] == [plain(x) for x in run(ds, [1])]


def test_nothing_runs_before_somebody_iterates() -> None:
    calls: list[int] = []

    def generate() -> Iterator[int]:
        calls.append(1)
        yield 1

    ds = Dataset.from_generator(generate).map(lambda x: calls.append(2) or x).batch(2)
    assert (ds.element_spec, ds.cardinality(), repr(ds) != "") == (None, UNKNOWN_CARDINALITY, True)
    elements = iter(ds)
    assert calls == []
    elements.close()


def test_a_dataset_is_left_as_it_is_by_its_methods() -> None:
    ds = Dataset.range(3)
    ds.map(lambda x: x + 1).batch(2)
    assert values(ds) == [0, 1, 2]


def decode(x: int) -> int:
    return x


def test_the_repr_reads_like_the_code() -> None:
    ds = Dataset.range(9).map(decode).shuffle(5).batch(2)
    assert repr(ds) == "Dataset(range(9) | map(decode) | shuffle(5) | batch(2), element_spec=unknown until read)"
    pair = Dataset.zip(Dataset.range(3), Dataset.range(4).take(2))
    scalar = "TensorSpec((), int64)"
    assert repr(pair) == f"Dataset(zip(range(3), range(4) | take(2)), element_spec=({scalar}, {scalar}))"
    assert repr(TextLineDataset("a")) == "TextLineDataset(text_lines(1), element_spec=TensorSpec((), str))"


def test_len_is_the_number_of_elements_where_it_is_known() -> None:
    assert len(Dataset.range(10).batch(3)) == 4


@pytest.mark.parametrize(
    "ds, said", [(Dataset.range(3).repeat(), "never ends"), (Dataset.range(3).filter(bool), "filter(bool)")], ids=str
)
def test_len_elsewhere_is_a_type_error_with_advice(ds: Dataset, said: str) -> None:
    with pytest.raises(TypeError, match=r"take|cardinality") as caught:
        len(ds)
    assert isinstance(caught.value, UnknownLengthError)
    assert said in caught.value.what


def test_a_dataset_without_length_can_be_listed_and_is_true() -> None:
    ds = Dataset.range(3).filter(bool)
    assert plain(list(ds)) == [1, 2]
    assert ds
    assert Dataset.range(0)


def test_cardinality_tells_without_an_error() -> None:
    assert Dataset.range(3).repeat().cardinality() == INFINITE_CARDINALITY
    assert Dataset.range(3).flat_map(Dataset.range).cardinality() == UNKNOWN_CARDINALITY


def test_as_numpy_iterator_is_the_same_as_iter() -> None:
    assert [type(x) for x in Dataset.range(2).as_numpy_iterator()] == [np.int64, np.int64]


def test_apply_gives_what_the_function_makes() -> None:
    ds = Dataset.range(5)
    assert values(ds.apply(lambda given: given.take(2) if given is ds else given)) == [0, 1]


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_a_dataset_travels_without_its_history(pickler: Any) -> None:
    ds = Dataset.range(30).shuffle(30, seed=1)
    first = values(ds)
    again = pickler.loads(pickler.dumps(ds))
    assert values(again) == first
    assert again.element_spec == TensorSpec((), np.int64)


def test_datasets_are_told_apart_by_what_they_are() -> None:
    first, second = Dataset.range(3), Dataset.range(4)
    assert first.operation != second.operation
    assert len({first.operation, second.operation}) == 2


def test_a_name_of_tf_data_that_is_another_one_here_is_told() -> None:
    with pytest.raises(AttributeError, match=r"'Dataset' object has no attribute 'snapshot'; `cache\(folder\)` does"):
        _ = Dataset.range(3).snapshot  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'Dataset' object has no attribute 'mapp'$") as caught:
        _ = Dataset.range(3).mapp  # type: ignore[attr-defined]
    assert caught.value.name == "mapp"  # by which Python asks "Did you mean: 'map'?"

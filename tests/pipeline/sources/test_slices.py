"""`from_tensor_slices`: rows are elements."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest
from msgspec.structs import replace

from dsnb.elements.spec import STR, TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.sources.slices import SlicesStage
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, by_turns, context, run, values

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024 - the test needs an untyped one


def test_rows_of_one_array_come_as_runs_that_are_arrays() -> None:
    array = np.arange(12).reshape(6, 2)
    ds = Dataset.from_tensor_slices(array)
    assert values(ds) == array.tolist()
    run = ds.operation.build(replace(context(), copied_later=True)).pull(4)
    assert isinstance(run, np.ndarray)
    assert not run.flags.writeable
    assert np.array_equal(run, array[:4])


@pytest.mark.parametrize("shape", [(2,), (70_000,), (0,), (3, 0)], ids=str)
def test_rows_are_copies_that_share_nothing_with_the_source_and_keep_little(shape: tuple[int, ...]) -> None:
    ds = Dataset.from_tensor_slices(np.ones((40, *shape)))
    (source,) = ds.operation.columns  # type: ignore[attr-defined]
    rows = run(ds)
    assert [row.shape for row in rows] == [shape] * 40
    for row in rows:
        assert not np.shares_memory(row, source)
        assert not row.flags.writeable
        assert row.base is None or row.base.nbytes <= max(row.nbytes, 64 << 10)


@pytest.mark.parametrize("wants", [[1], [2, 1], [1024]], ids=str)
def test_rows_of_nested_arrays_are_nested_alike(wants: list[int]) -> None:
    ds = Dataset.from_tensor_slices({"x": np.arange(3), "y": (["a", "b", "c"], [[1], [2], [3]])})
    found = [(int(e["x"]), e["y"][0], e["y"][1].tolist()) for e in run(ds, wants)]
    assert found == [(0, "a", [1]), (1, "b", [2]), (2, "c", [3])]


def test_a_named_tuple_stays_one() -> None:
    (first, _) = list(Dataset.from_tensor_slices(Pair([1, 2], ["a", "b"])))
    assert type(first) is Pair
    assert first == (1, "a")


def test_spec_and_length_are_known() -> None:
    ds = Dataset.from_tensor_slices((np.zeros((5, 28), "f4"), ["a"] * 5))
    assert ds.element_spec == (TensorSpec((28,), "f4"), TensorSpec((), STR))
    assert len(ds) == 5


@pytest.mark.parametrize(
    "wrong", [1, (np.zeros(3), 2), (), np.float32(1)], ids=["int", "one scalar", "nothing", "scalar"]
)
def test_leaves_without_rows_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Dataset.from_tensor_slices(wrong)
    assert "from_tensors" in caught.value.hint


def test_unequal_lengths_are_refused_and_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\[3, 4\]"):
        Dataset.from_tensor_slices((np.zeros(3), np.zeros(4)))


def test_user_functions_cannot_change_the_rows() -> None:
    def write(row: np.ndarray) -> np.ndarray:
        row[0] = 1
        return row

    with pytest.raises(ValueError, match="read-only"):
        list(Dataset.from_tensor_slices(np.zeros((2, 2))).map(write))


def test_rows_stay_read_only_behind_a_pickle() -> None:
    operation = pickle.loads(pickle.dumps(Dataset.from_tensor_slices(np.zeros((2, 2))).operation))
    stage = operation.build(context())
    assert isinstance(stage, SlicesStage)
    assert not any(row.flags.writeable for row in stage.pull(2))


def test_several_tasks_share_the_rows() -> None:
    ds = Dataset.from_tensor_slices(list(range(11)))
    feed = Feed([provider.count for provider in split_providers(ds.operation)], piece=3)
    first, second = by_turns([ds.operation.build(context(splits=feed.task())) for _ in range(2)])
    assert sorted(first + second) == list(range(11))
    assert first
    assert second

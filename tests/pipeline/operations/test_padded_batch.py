"""`padded_batch`: elements of different sizes as one, filled up; what does not fit is left out by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import context, failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
ROWS = Dataset.range(1, 5).map(lambda n: np.full(n, n))


def padded(rows: list[list[int]], width: int | None, filling: int) -> list[list[int]]:
    wide = max(map(len, rows)) if width is None else width
    return [row + [filling] * (wide - len(row)) for row in rows]


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=20),
    st.integers(1, 6),
    st.none() | st.integers(5, 8),
    st.integers(-3, 3),
    st.booleans(),
    WANTS,
)
def test_it_is_batch_of_rows_made_equally_long(
    rows: list[list[int]], size: int, width: int | None, filling: int, drop: bool, wants: list[int]
) -> None:
    ds = Dataset.range(len(rows)).map(lambda i: np.array(rows[i], np.int64))
    ds = ds.padded_batch(size, [width], filling, drop_remainder=drop)
    cut = [rows[first : first + size] for first in range(0, len(rows), size)]
    expected = [padded(part, width, filling) for part in cut if not drop or len(part) == size]
    assert [batch.tolist() for batch in run(ds, wants)] == expected


def test_the_example_of_the_original() -> None:
    """Each leaf with its own sizes and filling, in every dimension."""
    ds = Dataset.range(1, 3).map(lambda n: (np.full((n, 2 * n), n, np.float32), {"a": n, "b": np.arange(n)}))
    (batch,) = ds.padded_batch(2, ([3, None], {"a": [], "b": None}), (-1.0, {"a": None, "b": 7}))
    assert batch[0].tolist() == [
        [[1, 1, -1, -1], [-1] * 4, [-1] * 4],
        [[2, 2, 2, 2], [2, 2, 2, 2], [-1] * 4],
    ]
    assert batch[0].dtype == np.float32
    assert (batch[1]["a"].tolist(), batch[1]["b"].tolist()) == ([1, 2], [[0, 7], [0, 1]])


def test_one_value_fills_up_all_leaves() -> None:
    (batch,) = Dataset.range(1, 3).map(lambda n: (np.ones(n), np.ones(n, int))).padded_batch(2, padding_values=-1)
    assert plain(batch) == ([[1, -1], [1, 1]], [[1, -1], [1, 1]])


def test_text_is_filled_up_with_nothing() -> None:
    words = Dataset.from_tensor_slices([1, 2]).map(lambda n: (np.array(["long", "x"][:n]), "b" * n))
    (batch,) = words.padded_batch(2)
    assert plain(batch) == ([["long", ""], ["long", "x"]], ["b", "bb"])


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", "c8", "M8[s]", "m8[ms]"])
def test_the_default_filling_is_the_zero_of_each_dtype(dtype: str) -> None:
    (batch,) = Dataset.range(1, 3).map(lambda n: np.ones(n).astype(dtype)).padded_batch(2)
    assert batch.dtype == dtype
    assert batch[0, 1] == np.zeros((), dtype)


def test_an_element_that_is_larger_is_left_out_and_the_others_stay() -> None:
    found = outcomes(ROWS.padded_batch(2, [2]))
    assert [plain(x) for x in found] == [[[1, 0], [2, 2]], "InvalidArgumentError", "InvalidArgumentError"]
    assert "Attempted to pad to a smaller size than the input element: (3,)" in str(found[1])


def test_an_element_of_another_rank_or_dtype_is_left_out() -> None:
    odd: dict[int, Any] = {1: np.zeros((1, 1)), 3: np.zeros(1, np.float32)}
    found = outcomes(Dataset.range(5).map(lambda x: odd.get(int(x), np.zeros(x))).padded_batch(3))
    assert [type(x).__name__ for x in found] == ["InvalidArgumentError", "InvalidArgumentError", "ndarray"]
    assert found[2].shape == (3, 4)


def test_an_error_from_further_up_leaves_what_was_gathered() -> None:
    found = outcomes(Dataset.range(1, 6).map(failing_at(2)).map(lambda n: np.full(n, n)).padded_batch(2))
    assert [plain(x) for x in found] == ["RuntimeError", [[1, 0, 0], [3, 3, 3]], [[4, 4, 4, 4, 0], [5, 5, 5, 5, 5]]]


@pytest.mark.parametrize(
    "shapes, filling",
    [([2, 2], None), ([1], None), ("x", None), (([3], [3]), None), ([1.5], None), ([-2], None), ([3], "text"),
     ([3], 0.5), ([3], (1, 2))],
    ids=["rank", "too small", "text", "nested", "half", "negative", "text for a number", "no int", "nested filling"],
)  # fmt: skip
def test_what_can_never_fit_is_refused_at_the_call_where_the_spec_is_known(shapes: Any, filling: Any) -> None:
    ds = Dataset.from_tensor_slices(np.zeros((4, 2), int))
    with pytest.raises(InvalidArgumentError) as caught:
        ds.padded_batch(2, shapes, filling)
    assert (caught.value.did, bool(caught.value.hint)) == ("", True)
    unknown = ds.map(lambda x: x).padded_batch(2, shapes, filling)
    assert {type(x) for x in outcomes(unknown)} == {InvalidArgumentError}, "and while reading where it is not"


def test_the_spec_has_the_sizes_that_were_given() -> None:
    ds = Dataset.from_tensor_slices((np.zeros((9, 3), "f4"), np.zeros(9, int)))
    assert ds.padded_batch(2, ([5], []), drop_remainder=True).element_spec == (
        TensorSpec((2, 5), "f4"),
        TensorSpec((2,), int),
    )
    assert ds.padded_batch(2).element_spec == (TensorSpec((None, 3), "f4"), TensorSpec((None,), int))
    assert ds.padded_batch(4).cardinality() == 3


def test_scalars_are_batched_as_batch_does() -> None:
    assert values(Dataset.range(5).padded_batch(2)) == values(Dataset.range(5).batch(2))


def test_a_batch_is_read_only_inside_the_pipeline_too() -> None:
    assert not ROWS.padded_batch(3).operation.build(context()).pull(1)[0].flags.writeable

"""Which leaves frameworks take, and what dsnb says where a framework is missing."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.frameworks.leaves import is_text, plain_layout, unsupported_leaf_error

RECORD = np.zeros(1, [("a", np.int32), ("b", np.float64)])


def no_module(name: str) -> Any:
    return None


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_missing_framework_is_an_error_with_the_line_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", no_module)
    dataset = dsnb.Dataset.range(3)
    with pytest.raises(FailedPreconditionError, match=f"pip install 'dsnb\\[{name}\\]'"):
        dataset.iter_torch() if name == "torch" else dataset.iter_jax()
    if name == "torch":
        with pytest.raises(FailedPreconditionError, match="torch, which is not installed"):
            dataset.to_torch()


def test_pin_memory_is_a_truth_value_or_auto() -> None:
    for wrong in ("yes", 1, None):
        with pytest.raises(InvalidArgumentError, match=r"pin_memory.*\n.*True, False or \"auto\""):
            dsnb.Dataset.range(3).iter_torch(pin_memory=wrong)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6)[::-1],
        np.arange(6)[::2],
        np.arange(6).reshape(2, 3).T,
        np.broadcast_to(np.arange(3), (2, 3)),
        np.arange(3, dtype=">f4"),
        np.zeros(17, np.uint8)[1:].view(np.float32),
    ],
    ids=["reversed", "every other", "transposed", "broadcast", "byte order", "not aligned"],
)
def test_arrays_that_a_framework_cannot_use_as_they_are_are_copied(array: Any) -> None:
    copy = plain_layout(array)
    np.testing.assert_array_equal(copy, array)
    assert copy.flags.c_contiguous
    assert copy.flags.aligned
    assert copy.dtype.isnative
    assert copy.dtype == array.dtype.newbyteorder("=")
    assert not np.shares_memory(copy, array)


def test_other_arrays_are_not_copied() -> None:
    for array in (np.arange(6), np.zeros((2, 3)), np.zeros((0, 4)), np.array(5)):
        assert plain_layout(array) is array


@pytest.mark.parametrize(
    "leaf, line",
    [
        (np.array(["2026-01-01"], "M8[D]"), 'x.astype("M8[s]").astype(np.int64)'),
        (np.timedelta64(5, "m"), 'x / np.timedelta64(1, "s")'),
        (RECORD, "{name: x[name] for name in x.dtype.names}"),
        (RECORD[0], "{name: x[name] for name in x.dtype.names}"),
        (np.zeros(3, np.longdouble), "x.astype(np.float64)"),
        (dsnb.Dataset.range(3), "flat_map"),
    ],
    ids=["dates", "a duration", "records", "a record", "long doubles", "a window"],
)
def test_the_error_of_an_unsupported_leaf_has_the_line_that_converts_it(leaf: Any, line: str) -> None:
    error = unsupported_leaf_error(leaf, "torch")
    assert isinstance(error, InvalidArgumentError)
    assert line in str(error)
    assert "which torch does not have" in str(error)


def test_the_lines_that_convert_do_so() -> None:
    dates = np.array(["1970-01-02", "1970-01-03"], "M8[D]")
    assert dates.astype("M8[s]").astype(np.int64).tolist() == [86400, 172800]
    assert np.timedelta64(5, "m") / np.timedelta64(1, "s") == 300.0
    assert {name: RECORD[name].tolist() for name in RECORD.dtype.names or ()} == {"a": [0], "b": [0.0]}


def test_text_is_recognised_alone_and_in_arrays() -> None:
    assert all(map(is_text, ("a", b"a", np.array(["a"]), np.array([b"a"]))))
    assert not any(map(is_text, (1, np.int64(1), np.zeros(2), np.array("2026-01-01", "M8[D]"))))

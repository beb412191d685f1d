"""torch, Hugging Face and plain datasets train through a service in ten lines, each item once in an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.errors import InvalidArgumentError
from tests.pipeline.driving import outcomes
from tests.support.requires import require_peer

torch = require_peer("torch")
datasets = require_peer("datasets")

ROWS = 64


MapStyle: Any = torch.utils.data.Dataset


class Points(MapStyle):  # type: ignore[misc]  # mypy does not know its type
    """Points of a line, for a model to find: y = 3 x - 1."""

    def __init__(self, count: int) -> None:
        self.x = torch.linspace(-1, 1, count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return {"x": self.x[index : index + 1], "y": 3 * self.x[index : index + 1] - 1, "index": index}


def rows_of(kind: str) -> Any:
    """The same rows as each kind of dataset."""
    points = Points(ROWS)
    if kind == "torch":
        return points
    plain = [points[index] for index in range(ROWS)]
    if kind == "list":
        return plain
    columns = {"x": [row["x"].tolist() for row in plain], "y": [row["y"].tolist() for row in plain]}
    return datasets.Dataset.from_dict({**columns, "index": list(range(ROWS))}).with_format(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "numpy", "list"])
def test_a_small_model_trains_on_each_item_once_in_an_epoch(kind: str) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with dsnb.start(workers=2) as svc:
        ds = dsnb.Dataset.from_random_access(rows_of(kind), shuffle=True, seed=1).batch(8)
        for _ in range(12):
            seen = []
            for batch in ds.apply(dsnb.distribute("distributed_epoch", svc)):
                x, y = (torch.tensor(batch[name], dtype=torch.float32) for name in ("x", "y"))
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                seen += batch["index"].tolist()
            assert sorted(seen) == list(range(ROWS))
    assert model.weight.item() == pytest.approx(3, abs=0.1)
    assert model.bias.item() == pytest.approx(-1, abs=0.1)


def test_tensors_become_copies() -> None:
    points = Points(4)
    for row in dsnb.Dataset.from_random_access(points).with_options(dsnb.Options(writable=True)):
        row["x"][:] = 9
    assert points.x.max() <= 1


def test_a_tensor_without_a_counterpart_in_numpy_is_an_error_that_says_so() -> None:
    ds = dsnb.Dataset.from_random_access([torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), torch.ones(2)])
    first, error, last = outcomes(ds)
    assert (first.tolist(), last.tolist()) == ([0, 0], [1, 1])
    assert isinstance(error, InvalidArgumentError)
    assert "bfloat16" in str(error)
    assert "tensor.float()" in str(error)


def test_items_of_a_hugging_face_dataset_are_fetched_by_runs() -> None:
    calls: list[int] = []

    def note(batch: Any) -> Any:
        calls.append(len(batch["index"]))
        return batch

    rows = datasets.Dataset.from_dict({"index": list(range(100))}).with_transform(note)
    assert [int(row["index"]) for row in dsnb.Dataset.from_random_access(rows)] == list(range(100))
    assert len(calls) < 20


def test_a_list_column_of_a_hugging_face_dataset_is_an_array() -> None:
    rows = datasets.Dataset.from_dict({"tokens": [[1, 2], [3]], "text": ["a", "b"]})
    first, second = dsnb.Dataset.from_random_access(rows)
    np.testing.assert_array_equal(first["tokens"], [1, 2])
    assert (second["tokens"].tolist(), second["text"]) == ([3], "b")


@pytest.mark.parametrize("kind", ["torch", "numpy", "list"])
def test_equal_datasets_make_equal_pipelines(kind: str) -> None:
    first, second = (fingerprint(dsnb.Dataset.from_random_access(rows_of(kind)).operation) for _ in range(2))
    assert not first.unhashable
    assert first.digest == second.digest


def test_tensors_differ_by_their_numbers_dtype_and_shape() -> None:
    tensors = [
        torch.arange(6.0), torch.arange(6.0).reshape(2, 3), torch.arange(6), torch.arange(6.0).to(torch.bfloat16),
        torch.arange(1.0, 7.0), torch.nn.Parameter(torch.arange(6.0)), torch.arange(6.0).to_sparse(),
    ]  # fmt: skip
    assert len({fingerprint(tensor).digest for tensor in tensors}) == len(tensors)
    assert fingerprint(torch.arange(6.0).reshape(2, 3).T.contiguous().T) == fingerprint(torch.arange(6.0).reshape(2, 3))

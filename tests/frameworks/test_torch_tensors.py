"""Elements as torch tensors: structure, dtypes, memory, and reading positions."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from tests.support.requires import require_peer

torch = require_peer("torch")

Dataset = dsnb.Dataset

NUMBERS = "?bBhHiIlLqQefdFD"


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass
class Sample:
    image: Any
    name: str


def test_the_structure_stays_and_text_stays() -> None:
    def build(x: Any) -> Any:
        return {"pair": Pair(np.full(2, x), x), "sample": Sample(np.ones(1), "a"), "list": [b"b", None, 1.5], "x": x}

    (element,) = Dataset.range(3, 4).map(build).iter_torch()
    assert type(element["pair"]) is Pair
    assert element["pair"].image.tolist() == [3, 3]
    assert element["pair"].label.item() == 3
    assert type(element["sample"]) is Sample
    assert element["sample"].name == "a"
    assert element["list"][:2] == [b"b", None]
    assert element["list"][2].dtype is torch.float64
    assert element["x"].shape == ()
    assert element["x"].dtype is torch.int64


def test_arrays_of_text_stay_arrays() -> None:
    (batch,) = Dataset.range(2).map(lambda x: (x, f"n{x}")).batch(2).iter_torch()
    assert batch[0].tolist() == [0, 1]
    assert batch[1].tolist() == ["n0", "n1"]
    assert isinstance(batch[1], np.ndarray)


@pytest.mark.parametrize("code", NUMBERS)
def test_each_dtype_of_numbers_becomes_the_same_in_torch(code: str) -> None:
    values = np.array([0, 1, 1], code)
    row, scalar = next(Dataset.from_tensors((values, values[1])).iter_torch())
    assert str(row.dtype) == f"torch.{values.dtype.name}"
    assert row.dtype is scalar.dtype
    np.testing.assert_array_equal(row.numpy(), values)
    np.testing.assert_array_equal(scalar.numpy(), values[1])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_are_views(name: str) -> None:
    ml_dtypes = require_peer("ml_dtypes")
    values = np.array([[0.5, 1.0, -2.0]], getattr(ml_dtypes, name))
    (tensor,) = Dataset.from_tensor_slices(values).iter_torch()
    assert tensor.dtype is getattr(torch, name)
    assert tensor.float().tolist() == [0.5, 1.0, -2.0]


def test_arrays_in_any_layout_arrive() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (
        table[::-1],
        table.T,
        table[:, ::2],
        table.astype(">f4"),
        np.broadcast_to(table[0], (2, 4)),
        table[:0],
    ):
        (tensor,) = Dataset.range(1).map(lambda _, view=view: view).iter_torch()
        np.testing.assert_array_equal(tensor.numpy(), view)
        tensor += 1  # in place, also where rows shared memory
    assert table[0, 0] == 0


def test_an_array_without_dimensions_is_a_tensor_whose_changes_stay_its_own() -> None:
    number = np.array(3.0)
    dataset = Dataset.range(2).map(lambda _: number)
    for _epoch in range(2):
        for tensor in dataset.iter_torch():
            assert tensor.shape == ()
            assert tensor.add_(1).item() == 4
    assert number == 3


def test_an_array_of_objects_is_the_same_error_as_without_torch() -> None:
    dataset = Dataset.range(1).map(lambda _: np.array([1, None], dtype=object))
    said = []
    for elements in (iter(dataset), dataset.iter_torch()):
        with pytest.raises(InvalidArgumentError) as raised:
            next(elements)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert said[0].startswith("an element contains an array of objects, which is not supported")


def test_an_unsupported_leaf_is_the_error_of_its_element() -> None:
    def dated(x: Any) -> Any:
        return np.datetime64("2026-01-01") if x == 2 else x

    elements = Dataset.range(4).map(dated).iter_torch()
    found: list[Any] = []
    while True:
        try:
            found.append(int(next(elements)))
        except InvalidArgumentError as error:
            found.append(str(error).splitlines()[0])
        except StopIteration:
            break
    assert found == [0, 1, "an element contains a value of the dtype datetime64[D], which torch does not have", 3]


def test_a_tensor_uses_the_memory_of_its_element_and_keeps_it() -> None:
    made: list[weakref.ref[Any]] = []

    class Kept(np.ndarray):
        pass

    def make(x: Any) -> Any:
        memory = np.full(4000, x).view(Kept)
        made.append(weakref.ref(memory))
        return np.asarray(memory)

    dataset = Dataset.range(1).map(make)
    (plain,) = dataset
    del plain
    tensor = next(dataset.iter_torch())
    address = tensor.data_ptr()
    gc.collect()
    assert tensor.sum().item() == 0
    alias = next(Dataset.from_tensors(np.arange(3)).iter_torch())
    alias.mul_(2)
    assert alias.tolist() == [0, 2, 4]
    assert address == tensor.data_ptr()


def test_a_torch_that_refuses_read_only_arrays_by_dlpack_gets_them_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As releases before DLPack 1.0 do."""

    def refuse(array: Any) -> Any:
        raise BufferError("Cannot export readonly array since signalling readonly is unsupported by DLPack")

    monkeypatch.setattr(torch, "from_dlpack", refuse)
    (batch,) = Dataset.from_tensors((np.arange(3), np.float32(2), np.zeros((0, 3)))).iter_torch()
    assert batch[0].mul_(2).tolist() == [0, 2, 4]
    assert batch[1].item() == 2
    assert batch[2].shape == (0, 3)


def test_writable_tensors_have_memory_of_their_own() -> None:
    (tensor,) = Dataset.from_tensors(np.arange(3)).iter_torch(writable=True)
    assert tensor.add_(1).tolist() == [1, 2, 3]
    (tensor,) = Dataset.from_tensors(np.arange(3)).with_options(dsnb.Options(writable=True)).iter_torch()
    assert tensor.add_(1).tolist() == [1, 2, 3]


def test_operations_in_place_change_neither_the_source_nor_a_recording() -> None:
    data = np.arange(1 << 18, dtype=np.float64).reshape(64, -1)
    pristine = data.copy()
    for dataset in (Dataset.from_tensor_slices(data), Dataset.from_tensor_slices(data).cache()):
        for _epoch in range(2):
            for row, tensor in zip(pristine, dataset.iter_torch(), strict=True):
                np.testing.assert_array_equal(tensor.numpy(), row)
                tensor.mul_(0).sub_(0.5)
    np.testing.assert_array_equal(data, pristine)


def test_a_position_holds_for_numpy_tensors_and_devices_alike() -> None:
    dataset = Dataset.range(20).shuffle(20, seed=3, reshuffle_each_iteration=False).batch(3)
    whole = [batch.tolist() for batch in dataset]
    elements = dataset.iter_torch()
    assert [next(elements).tolist() for _ in range(3)] == whole[:3]
    state = json.loads(json.dumps(elements.state_dict()))
    for again in (dataset.iter_torch(), iter(dataset)):
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == whole[3:]


def test_what_is_copied_ahead_is_not_counted_as_read() -> None:
    """torch's device "meta" has shapes without data, so the path to a device runs on any machine."""
    dataset = Dataset.range(20).batch(2)
    elements = dataset.iter_torch(device="meta", prefetch=4)
    assert [next(elements).shape for _ in range(3)] == [(2,)] * 3
    state = elements.state_dict()
    elements.close()
    again = iter(dataset)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[n, n + 1] for n in range(6, 20, 2)]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_elements_and_errors_keep_their_order_on_the_way_to_a_device(prefetch: int) -> None:
    def fail(x: Any) -> Any:
        if x == 3:
            raise ValueError("three")
        return np.zeros(int(x))

    elements = Dataset.range(6).map(fail).iter_torch(device="meta", prefetch=prefetch)
    found: list[Any] = []
    while True:
        try:
            tensor = next(elements)
            assert tensor.device.type == "meta"
            found.append(len(tensor))
        except ValueError as error:
            found.append(str(error))
        except StopIteration:
            break
    assert found == [0, 1, 2, "three", 4, 5]
    assert [report.name for report in Dataset.range(2).iter_torch(device="meta", prefetch=prefetch).start().reports()][
        -2:
    ] == ["to device", "range(2)"]


def test_a_device_that_is_not_there_is_refused_at_the_call() -> None:
    dataset = Dataset.range(3)
    with pytest.raises(InvalidArgumentError, match="`device` is 'gpu', which torch does not know"):
        dataset.iter_torch(device="gpu")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here, so nothing is refused")
    with pytest.raises(FailedPreconditionError, match="torch finds no CUDA device here"):
        dataset.to_torch(device="cuda")
    with pytest.raises(FailedPreconditionError, match="page-locked memory needs a CUDA device"):
        dataset.iter_torch(pin_memory=True)


def test_pinned_batches_arrive_on_a_cuda_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    data = np.arange(1 << 20, dtype=np.float32).reshape(64, -1)
    for pin_memory in (True, False):
        for prefetch in (0, 2):
            batches = Dataset.from_tensor_slices(data).batch(8).iter_torch("cuda", prefetch, pin_memory)
            for at, batch in enumerate(batches):
                np.testing.assert_array_equal(batch.add(1).cpu().numpy(), data[8 * at : 8 * at + 8] + 1)

"""Elements as JAX arrays: structure, dtypes, shardings, memory, and reading positions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import InvalidArgumentError
from tests.frameworks.small_model import batches
from tests.support.requires import require_peer

jax = require_peer("jax")

pytestmark = pytest.mark.filterwarnings("default")  # JAX's own

Dataset = dsnb.Dataset


def test_the_structure_stays_and_text_stays() -> None:
    elements = Dataset.range(2).map(lambda x: {"x": (np.full(2, x, np.float32), x), "name": "a"}).iter_jax()
    first, second = elements
    assert isinstance(first["x"][0], jax.Array)
    assert first["name"] == "a"
    assert first["x"][1].shape == ()
    assert second["x"][0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("code", "?bBhHiIefF")
def test_each_dtype_of_numbers_becomes_the_same_in_jax(code: str) -> None:
    values = np.array([0, 1, 1], code)
    row, scalar = next(Dataset.from_tensors((values, values[1])).iter_jax())
    assert row.dtype == scalar.dtype == values.dtype
    np.testing.assert_array_equal(row, values)


def test_small_floats_stay_what_they_are() -> None:
    ml_dtypes = require_peer("ml_dtypes")
    (row,) = Dataset.from_tensor_slices(np.array([[0.5, -2.0]], ml_dtypes.bfloat16)).iter_jax()
    assert row.dtype == ml_dtypes.bfloat16
    assert row.tolist() == [0.5, -2.0]


def test_dates_are_refused_with_the_line_that_converts_them() -> None:
    with pytest.raises(InvalidArgumentError, match=r"which jax does not have(.|\n)*x\.astype\(\"M8\[s\]\"\)"):
        next(Dataset.range(1).map(lambda _: np.array(["2026-01-01"], "M8[D]")).iter_jax())


def test_arrays_that_jax_got_stay_as_they_were_when_later_elements_come() -> None:
    """JAX uses an element's memory, which is freed only when JAX is done with it."""
    with dsnb.start(workers=1, name="jax", isolation="process") as service:
        data = Dataset.range(24).map(lambda x: np.full((600, 1024), x, np.float32))
        distributed = data.apply(dsnb.distribute("distributed_epoch", service, job_name="jax"))
        kept = list(distributed.iter_jax())
        assert sorted(int(array[0, 0]) for array in kept) == list(range(24))
        assert all(bool((array == array[0, 0]).all()) for array in kept)
        del kept


def test_operations_in_jax_change_neither_the_source_nor_a_recording() -> None:
    data = np.arange(1 << 18, dtype=np.float32).reshape(64, -1)
    pristine = data.copy()
    double = jax.jit(lambda x: x * 0, donate_argnums=0)
    for dataset in (Dataset.from_tensor_slices(data), Dataset.from_tensor_slices(data).cache()):
        for _epoch in range(2):
            for row, array in zip(pristine, dataset.iter_jax(), strict=True):
                np.testing.assert_array_equal(array, row)
                double(array)
    np.testing.assert_array_equal(data, pristine)


def test_a_position_continues_with_jax_arrays() -> None:
    dataset = Dataset.range(20).batch(3)
    elements = dataset.iter_jax()
    next(elements)
    again = dataset.iter_jax()
    again.load_state_dict(elements.state_dict())
    assert [array.tolist() for array in again][:2] == [[3, 4, 5], [6, 7, 8]]


def test_a_model_learns_from_jax_arrays() -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # nothing is known of JAX here
    def step(weights: Any, x: Any, y: Any) -> Any:
        return weights - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(weights)

    weights = jax.numpy.zeros((4, 1))
    for _epoch in range(3):
        for x, y in batches().iter_jax():
            weights = step(weights, x, y)
    assert weights.ravel().tolist() == pytest.approx([1.0] * 4, abs=0.02)


def test_anything_but_a_sharding_or_a_device_is_refused_at_the_call() -> None:
    with pytest.raises(InvalidArgumentError, match="neither a sharding nor a device of JAX"):
        Dataset.range(3).iter_jax("data")


def test_a_device_may_be_given() -> None:
    device = jax.devices()[0]
    assert [array.devices() for array in Dataset.range(2).iter_jax(device)] == [{device}] * 2


TWO_DEVICES = """
import jax, numpy as np, dsnb
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((2,), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
rows = dsnb.Dataset.range(8).map(lambda x: {"x": np.full(3, x, np.float32)}).batch(4)
for batch in dsnb.Dataset.zip({"batch": rows, "step": dsnb.Dataset.range(2)}).iter_jax(sharding):
    assert batch["batch"]["x"].sharding == sharding
    assert {len(part.data) for part in batch["batch"]["x"].addressable_shards} == {2}
    assert batch["step"].sharding.is_fully_replicated
    print(int(batch["step"]), batch["batch"]["x"][:, 0].tolist())
"""


@pytest.mark.slow
def test_a_batch_is_divided_over_the_devices_of_a_sharding() -> None:
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.stdout.splitlines() == ["0 [0.0, 1.0, 2.0, 3.0]", "1 [4.0, 5.0, 6.0, 7.0]"], done.stderr

"""Elements as JAX arrays, on one device or as the process's part of a sharded array.

On the processor, JAX uses the memory of an array where it can; that memory belongs to this reader alone, and JAX keeps
the array alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsnb.errors import InvalidArgumentError
from dsnb.frameworks.leaves import is_text, load_framework, plain_layout, unsupported_leaf_error
from dsnb.frameworks.placement import DevicePlacement, Placement


def jax_placement(sharding: Any, prefetch: int) -> Placement:
    """Return the placement of one iterator.

    Args:
        sharding: A sharding of JAX, a device, or None for JAX's default device.
        prefetch: Elements to copy ahead of the loop, unless all devices are processors.

    Raises:
        FailedPreconditionError: JAX is not installed.
        InvalidArgumentError: `sharding` is something else.
    """
    jax = load_framework("jax")
    place, devices = _placing(jax, sharding)
    convert = _array_maker(place)
    if all(device.platform == "cpu" for device in devices):
        return Placement(convert)
    return DevicePlacement(convert, prefetch)


def _placing(jax: Any, sharding: Any) -> tuple[Callable[[Any], Any], Any]:
    """Return the function that places an array, and the devices on which it does."""
    if sharding is None:
        return jax.device_put, jax.local_devices()[:1]
    if isinstance(sharding, jax.Device):
        return lambda array: jax.device_put(array, sharding), [sharding]
    if not isinstance(sharding, jax.sharding.Sharding):
        raise InvalidArgumentError(
            f"`sharding` is {sharding!r:.80}, neither a sharding nor a device of JAX",
            hint='pass NamedSharding(mesh, PartitionSpec("data")), jax.devices()[0], or None',
        )
    replicated = sharding
    if isinstance(sharding, jax.sharding.NamedSharding):  # a number has no dimension to divide
        replicated = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())

    def place(array: Any) -> Any:
        return jax.make_array_from_process_local_data(sharding if array.ndim else replicated, array)

    return place, sharding.addressable_devices


def _array_maker(place: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(leaf: Any) -> Any:
        if is_text(leaf):
            return leaf
        if not isinstance(leaf, (np.ndarray, np.generic)) or not _known(leaf.dtype):
            raise unsupported_leaf_error(leaf, "jax")
        return place(plain_layout(np.asarray(leaf)))

    return convert


def _known(dtype: Any) -> bool:
    if dtype.names or dtype.kind in "MmOT":
        return False
    largest = 16 if dtype.kind == "c" else 8
    return bool(dtype.itemsize <= largest)

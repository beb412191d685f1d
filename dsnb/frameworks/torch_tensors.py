"""Elements as torch tensors: in their own memory, in page-locked memory, or on a device.

A tensor uses the memory of its array wherever it can: that memory belongs to this reader alone, so an operation in
place reaches no other reader, no recording and no source. torch has no read-only tensors.

The path to a CUDA device: the tensor is copied to page-locked memory, from which the copy to the device runs on a
stream of its own while the loop computes. torch's allocator of page-locked memory keeps and reuses blocks, and knows
which copies still read from one; the loop's stream waits for an event instead of the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import numpy as np

from dsnb.elements.structure import flatten
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.frameworks.leaves import is_text, load_framework, plain_layout, unsupported_leaf_error
from dsnb.frameworks.placement import DevicePlacement, Placement

_CODES: Final = frozenset("?bBhHiIlLqQefdFD")
"""The codes of the dtypes that torch has."""
_DLPACK_VERSION: Final = (1, 0)
"""The first version of DLPack that can describe read-only arrays."""
_BITS: Final = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


def torch_placement(device: Any, prefetch: int, pin_memory: bool | str, *, writable: bool) -> Placement:
    """Return the placement of one iterator.

    Args:
        device: A device as torch takes it; None for the processor.
        prefetch: Elements to copy ahead of the loop, if there is a device.
        pin_memory: Whether tensors go through page-locked memory; "auto" for CUDA devices only.
        writable: Whether tensors of the processor are copies in ordinary memory.

    Raises:
        FailedPreconditionError: torch is not installed, or page-locked memory needs a device that is not there.
        InvalidArgumentError: torch does not know the device.
    """
    torch = load_framework("torch")
    place = _device(torch, device)
    pin = place.type == "cuda" if pin_memory == "auto" else bool(pin_memory)
    if pin and not torch.cuda.is_available():
        raise FailedPreconditionError(
            "page-locked memory needs a CUDA device, and torch finds none here",
            did="nothing was read",
            hint='leave `pin_memory` at "auto"',
        )
    convert = tensor_maker(torch, copy=writable and place.type == "cpu" and not pin, pin=pin)
    if place.type == "cpu":
        return Placement(convert, copies=writable or pin)
    if place.type == "cuda":
        return _CudaPlacement(torch, place, convert, prefetch)
    return DevicePlacement(_moved(torch, place, convert), prefetch, copies=True)


def _device(torch: Any, device: Any) -> Any:
    try:
        place = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgumentError(
            f"`device` is {device!r}, which torch does not know", hint='pass "cpu", "cuda", "cuda:1" or a torch.device'
        ) from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise FailedPreconditionError(
            f"`device` is {str(place)!r}, and torch finds no CUDA device here",
            did="nothing was read",
            hint="pass device=None, or install the build of torch for this machine's GPU",
        )
    return place


def tensor_maker(torch: Any, *, copy: bool = False, pin: bool = False) -> Callable[[Any], Any]:
    """Return a function that makes a tensor of a NumPy leaf; text stays as it is.

    Args:
        torch: The module.
        copy: Whether each tensor gets memory of its own.
        pin: Whether it is copied to page-locked memory.
    """
    share = _memory_sharer(torch)

    def convert(leaf: Any) -> Any:
        tensor = share(leaf.copy() if copy and isinstance(leaf, (np.ndarray, np.generic)) else leaf)
        return tensor.pin_memory() if pin and isinstance(tensor, torch.Tensor) else tensor

    return convert if copy or pin else share


def _memory_sharer(torch: Any) -> Callable[[Any], Any]:
    """Return the fastest function that makes a tensor of a leaf's own memory, also of a read-only array's.

    `torch.from_dlpack` takes read-only arrays in newer releases only; `torch.from_numpy` warns of them.
    """
    from_dlpack = torch.from_dlpack

    def share_described(array: Any) -> Any:
        # Given the array itself, torch first looks for devices and older protocols, at the cost of a tensor.
        return from_dlpack(array.__dlpack__(max_version=_DLPACK_VERSION))

    def share(leaf: Any) -> Any:
        # The usual leaves, without the checks of all that a leaf may be: those would cost as much as the tensor.
        if type(leaf) is np.ndarray:
            flags = leaf.flags
            if flags.c_contiguous and flags.aligned:
                try:
                    return from_dlpack(leaf.__dlpack__(max_version=_DLPACK_VERSION))
                except BufferError:  # DLPack cannot describe its dtype
                    pass
        return _share_any(torch, share_described, leaf)

    read_only = np.zeros(1)
    read_only.flags.writeable = False
    try:
        share_described(read_only)
    except (BufferError, RuntimeError, TypeError):
        return partial(_share_any, torch, partial(_share_by_numpy, torch))
    return share


def _share_any(torch: Any, share: Callable[[Any], Any], leaf: Any) -> Any:
    array, kind = _as_plain_array(torch, leaf)
    if array is None:
        return leaf
    tensor = share(array)
    return tensor if kind is None else tensor.view(kind)


def _as_plain_array(torch: Any, leaf: Any) -> tuple[Any, Any]:
    """Return a leaf as an array that torch takes, and the dtype to view its tensor as, if any; no array for text."""
    if is_text(leaf):
        return None, None
    if not isinstance(leaf, (np.ndarray, np.generic)):
        raise unsupported_leaf_error(leaf, "torch")
    array = plain_layout(np.asarray(leaf))
    return (array, None) if array.dtype.char in _CODES else _as_bits(torch, array, leaf)


def _as_bits(torch: Any, array: Any, leaf: Any) -> tuple[Any, Any]:
    """Return an array of a dtype of `ml_dtypes` as unsigned numbers, and torch's dtype of the same name."""
    kind = getattr(torch, array.dtype.name, None)
    bits = _BITS.get(array.dtype.itemsize)
    if array.dtype.names or array.dtype.kind in "MmcO" or bits is None or not isinstance(kind, torch.dtype):
        raise unsupported_leaf_error(leaf, "torch")
    return array.view(bits), kind


class _Alias:
    """Describes the memory of an array without NumPy's read-only flag, and keeps the array alive."""

    __slots__ = ("__array_interface__", "_array")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        description = array.__array_interface__
        self.__array_interface__ = {**description, "data": (description["data"][0], False)}
        self._array = array


def _share_by_numpy(torch: Any, array: Any) -> Any:
    if array.dtype.char == "Q":  # C's second name of uint64, which `from_numpy` does not know
        array = array.view(np.uint64)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))


def _moved(torch: Any, device: Any, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    tensor = torch.Tensor

    def move(leaf: Any) -> Any:
        made = convert(leaf)
        return made.to(device, non_blocking=True) if isinstance(made, tensor) else made

    return move


class _CudaPlacement(DevicePlacement):
    """Copies to a CUDA device on a stream of its own; the loop's stream waits for the event of each element."""

    def __init__(self, torch: Any, device: Any, convert: Callable[[Any], Any], ahead: int) -> None:
        super().__init__(_moved(torch, device, convert), ahead, copies=True)
        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copying(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return stream

    def begin_copy(self, element: Any) -> Any:
        return element, self._stream.record_event()

    def finish_copy(self, begun: Any) -> Any:
        element, copied = begun
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        for leaf in flatten(element):
            if isinstance(leaf, self._torch.Tensor):
                leaf.record_stream(stream)  # its memory may be reused only after the loop's work with it
        return element

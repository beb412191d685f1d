"""Converts what datasets of other libraries return: torch tensors, PIL images and lists of numbers become arrays.

Nothing is imported for it. An object of a library exists only where the library is loaded, and is recognised by the
module of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dsnb.elements.copying import IMMUTABLE
from dsnb.elements.data_classes import field_names, instance_factory
from dsnb.elements.structure import field_values
from dsnb.errors import InvalidArgumentError

_NUMBERS: Final = (bool, int, float)

Convert = Callable[[Any], Any]


def to_arrays(value: Any) -> Any:
    """Return a value with foreign leaves as arrays; anything else stays as it is.

    Args:
        value: Leaves, nested in tuples, dicts, lists, named tuples and dataclasses.

    Raises:
        InvalidArgumentError: a tensor has no counterpart in NumPy.

    Example:
        >>> to_arrays({"tokens": [1, 2, 3], "label": 1})
        {'tokens': array([1, 2, 3]), 'label': 1}
    """
    cls = type(value)
    if cls in IMMUTABLE or cls is np.ndarray:
        return value
    if cls is list:
        return _list_to_array(value)
    if cls is tuple:
        return tuple(map(to_arrays, value))
    if isinstance(value, Mapping):  # also the mappings of tokenizers, which are no dicts
        return {key: to_arrays(child) for key, child in value.items()}
    keys = field_names(cls)
    if keys is not None:
        return instance_factory(cls, keys)([to_arrays(child) for child in field_values(value, keys)])
    convert = _converter(cls)  # type: ignore[arg-type]  # a class is hashable
    return value if convert is None else convert(value)


def _list_to_array(values: list[Any]) -> Any:
    """Return an array for a list of numbers of one type, also nested to a rectangle; else the converted list."""
    if _kind_of_numbers(values) is not None:
        try:
            array = np.array(values)
        except (ValueError, OverflowError):  # lists of different lengths, or numbers of more than 64 bits
            return list(map(to_arrays, values))
        if array.dtype.kind in "bif":
            return array
    return list(map(to_arrays, values))


def _kind_of_numbers(values: list[Any]) -> type | None:
    """Return the type of all numbers in nested lists; None if there are none, several types, or something else."""
    kinds = {_kind_of_numbers(value) if type(value) is list else type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in _NUMBERS else None


@lru_cache(maxsize=1024)
def _converter(cls: type) -> Convert | None:
    names = {(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__}
    if ("torch", "Tensor") in names:
        return _tensor_to_array
    if ("PIL", "Image") in names or issubclass(cls, np.memmap):
        return np.asarray
    return None


def _tensor_to_array(tensor: Any) -> Any:
    try:
        return tensor.numpy(force=True)
    except TypeError as error:
        raise InvalidArgumentError(
            f"a tensor of {tensor.dtype} cannot be read as an array: {error}",
            did="the element was left out; reading continues with the next",
            hint="convert it in the dataset, as in tensor.float() or tensor.to_dense()",
        ) from None

"""Serialises results: arrays as `.npy`, the structure around them as JSON, and objects with `to_cache` by themselves.

A result is split into parts first, so that a part that cannot be stored is found, with its path, before anything is
written. Pickles are written and read only if the user allows them.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import cloudpickle
import msgspec
import numpy as np

from dsnb.cache.results.model_storage import ModelStorage
from dsnb.cache.results.training import Cacheable, class_name, imported_class
from dsnb.code.fingerprint.parts import type_name
from dsnb.elements.data_classes import field_names, instance_factory
from dsnb.errors import DataLossError, DsnbError

_ARRAYS: Final = "arrays.npy"  # one after another, as numpy.load reads them from an open file
_PICKLES: Final = "pickles"
_TREE: Final = "result.json"
_DEEPEST: Final = 200
_PLAIN: Final = frozenset({type(None), bool, str, float})
_SEQUENCES: Final[dict[str, Callable[[Any], Any]]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}

Tree = list[Any]


class NotSerializableError(DsnbError):
    """A part of a result cannot be serialised."""


class ResultParts(msgspec.Struct, kw_only=True):
    """The parts of a result.

    Attributes:
        tree: The structure around the arrays, in JSON types: ["kind", ...] for each value.
        arrays: The arrays, in the order of their numbers in the tree.
        cacheables: The objects that write themselves into a folder, in the order of their numbers.
        pickles: The pickled values, in the order of their numbers.
    """

    tree: Tree = msgspec.field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = msgspec.field(default_factory=list)
    cacheables: list[Cacheable] = msgspec.field(default_factory=list)
    pickles: list[bytes] = msgspec.field(default_factory=list)


# ------------------------------------------------------------------------------------------------------------ splitting


def split_into_parts(value: Any, *, pickles: bool) -> ResultParts:
    """Split a result into parts.

    Raises:
        NotSerializableError: a part cannot be serialised, and pickles are not allowed or failed.
    """
    return _PartsBuilder(pickles=pickles).build(value)


class _PartsBuilder:
    def __init__(self, *, pickles: bool) -> None:
        self._parts = ResultParts()
        self._pickles = pickles

    def build(self, value: Any) -> ResultParts:
        self._parts.tree = self._node(value, "", 0)
        return self._parts

    def _node(self, value: Any, path: str, depth: int) -> Tree:
        kind = type(value)
        if kind in _PLAIN:
            return ["plain", value]
        if kind is int:
            return ["int", hex(value)]  # JSON readers differ on long integers
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if depth < _DEEPEST:
            node = self._around(value, path, depth + 1)
            if node is not None:
                return node
        return self._leaf(value, path)

    def _around(self, value: Any, path: str, depth: int) -> Tree | None:
        """The node of a value that has parts: a container, named tuple or dataclass; None for other values."""
        kind = type(value)
        if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
            return [kind.__name__, [self._node(item, f"{path}[{n}]", depth) for n, item in enumerate(value)]]
        if kind is dict:
            pairs = [[self._node(key, f"{path} key", depth), self._node(item, f"{path}[{key!r}]", depth)]
                     for key, item in value.items()]  # fmt: skip
            return ["dict", pairs]
        names = None if isinstance(value, Cacheable) else field_names(kind)
        if names is None or imported_class(class_name(kind)) is None or not _has_only_fields(value, names):
            return None
        items = [self._node(getattr(value, name), f"{path}.{name}", depth) for name in names]
        return ["fields", class_name(kind), list(names), items]

    def _leaf(self, value: Any, path: str) -> Tree:
        if type(value) is np.ndarray and _survives_npy(value.dtype):
            self._parts.arrays.append(value)
            return ["array", len(self._parts.arrays) - 1]
        if isinstance(value, np.generic) and _survives_npy(value.dtype):
            self._parts.arrays.append(np.asarray(value))
            return ["scalar", len(self._parts.arrays) - 1]
        if isinstance(value, Cacheable) and imported_class(class_name(type(value))) is type(value):
            self._parts.cacheables.append(value)
            return ["own", len(self._parts.cacheables) - 1, class_name(type(value)), *_resource_identity(value)]
        return self._pickle_node(value, path)

    def _pickle_node(self, value: Any, path: str) -> Tree:
        what = f"the result{' at ' + path if path else ''} is a {type_name(type(value))}"
        if not self._pickles:
            raise NotSerializableError(
                f"{what}, which cannot be stored without pickle",
                hint="return arrays, numbers, text and structures of them; give its class `to_cache` and `from_cache`; "
                "or allow pickles=True",
            )
        try:
            data = cloudpickle.dumps(value)
        except Exception as error:
            raise NotSerializableError(
                f"{what}, which cannot be pickled: {type(error).__name__}: {error}", hint="return what can be kept"
            ) from error
        self._parts.pickles.append(data)
        return ["pickle", len(self._parts.pickles) - 1]


def _resource_identity(value: Any) -> tuple[str, str]:
    """The name and the fingerprint of an object that writes itself, such as a `Resource`; "" for each it lacks."""
    name, output = getattr(value, "name", ""), getattr(value, "output_fingerprint", "")
    return name if isinstance(name, str) else "", output if isinstance(output, str) else ""


def _has_only_fields(value: Any, names: tuple[str, ...]) -> bool:
    """Whether the fields alone determine this value: it has no added attributes, and none is missing."""
    if not isinstance(value, tuple) and set(getattr(value, "__dict__", names)) != set(names):
        return False
    return all(hasattr(value, name) for name in names)


def _survives_npy(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype come back unchanged from `.npy`."""
    if dtype.hasobject or dtype.metadata:
        return False
    try:
        return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype
    except (TypeError, ValueError):
        return False


# ----------------------------------------------------------------------------------------------------- writing, reading


def write_parts(parts: ResultParts, directory: Path, model_storage: ModelStorage) -> None:
    """Write the parts of a result into a folder."""
    (directory / _TREE).write_text(json.dumps(parts.tree))
    if parts.arrays:
        with (directory / _ARRAYS).open("wb") as file:
            for array in parts.arrays:
                np.lib.format.write_array(file, array, allow_pickle=False)
    for number, value in enumerate(parts.cacheables):
        folder = directory / f"own-{number}"
        folder.mkdir()
        value.to_cache(folder, model_storage)
    if parts.pickles:
        (directory / _PICKLES).mkdir()
    for number, data in enumerate(parts.pickles):
        (directory / _PICKLES / str(number)).write_bytes(data)


def read_result(directory: Path, model_storage: ModelStorage, *, name: str, pickles: bool) -> Any:
    """Restore a result that `write_parts` wrote. Its arrays are not shared, and are writable.

    Args:
        directory: The folder that holds the result.
        model_storage: The storage for parts that write themselves.
        name: The name of the step, for parts that have no name of their own.
        pickles: Whether to read pickles.

    Raises:
        DataLossError: a class of the result is not defined here, or the result holds a pickle that may not be read.
    """
    arrays = list(_arrays(directory / _ARRAYS))

    def restore_cacheable(number: int, kind: str, label: str, output: str) -> Any:
        cls = imported_class(kind)
        if cls is None or not issubclass(cls, Cacheable):
            raise DataLossError(f"the result needs the class {kind}, which is not defined here")
        return cls.from_cache(label or f"{name}-{number}", directory / f"own-{number}", model_storage, output)

    def load_pickle(number: int) -> Any:
        if not pickles:
            raise DataLossError("the result contains a pickle, and pickles are not allowed")
        return pickle.loads((directory / _PICKLES / str(number)).read_bytes())

    def build(node: Tree) -> Any:
        return builders[node[0]](build, *node[1:])

    builders: dict[str, Callable[..., Any]] = {
        **_PLAIN_BUILDERS,
        "array": lambda _, number: arrays[number],
        "scalar": lambda _, number: arrays[number][()],
        "own": lambda _, *what: restore_cacheable(*what),
        "pickle": lambda _, number: load_pickle(number),
    }
    return build(json.loads((directory / _TREE).read_text()))


def _arrays(path: Path) -> Iterator[np.ndarray[Any, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        while not _at_end(file):
            yield np.lib.format.read_array(file, allow_pickle=False)


def _at_end(file: IO[bytes]) -> bool:
    offset = file.tell()
    ended = not file.read(1)
    file.seek(offset)
    return ended


Build = Callable[[Tree], Any]


def _fields(build: Build, kind: str, names: list[str], items: list[Tree]) -> Any:
    cls = imported_class(kind)
    if cls is None or field_names(cls) != tuple(names):
        raise DataLossError(f"the result needs the class {kind} with the fields {names}, which is not defined here")
    return instance_factory(cls, tuple(names))([build(item) for item in items])


def _sequence(name: str) -> Callable[[Build, list[Tree]], Any]:
    return lambda build, items: _SEQUENCES[name](build(item) for item in items)


_PLAIN_BUILDERS: Final[dict[str, Callable[..., Any]]] = {
    "plain": lambda _, value: value,
    "int": lambda _, digits: int(digits, 16),
    "bytes": lambda _, text: base64.b64decode(text),
    "complex": lambda _, real, imaginary: complex(real, imaginary),
    **{name: _sequence(name) for name in _SEQUENCES},
    "dict": lambda build, pairs: {build(key): build(item) for key, item in pairs},
    "fields": _fields,
}

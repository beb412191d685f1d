"""Serialises pipelines: what a client registers and a worker restores, and the one-line description for reports."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable
from functools import cache
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

from dsnb.code.fingerprint.fingerprint import Fingerprint, fingerprint
from dsnb.code.fingerprint.values import array_bytes
from dsnb.code.imports import ModuleSource, add_import_path, import_path
from dsnb.code.pickling import Pickler, Unpickler
from dsnb.elements.spec import dtype_from_text, dtype_to_text
from dsnb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.pickle_diagnosis import unpicklable_error
from dsnb.wire.blobs import blob_digest

Array = np.ndarray[Any, Any]

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_KIND = b"dsnb graph "
_HEADER = _KIND + b"2, Python "


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """A large array that is stored outside the pickle.

    Attributes:
        digest: xxh3-128 of its bytes, in hexadecimal digits.
        data: Its bytes in C order; a view of the user's own array if that is contiguous, so it must be sent before the
            user can write to it.
        nbytes: The size of `data`.
    """

    digest: str
    data: memoryview
    nbytes: int


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline that is ready to be registered.

    Attributes:
        definition: The bytes for `restore`.
        blobs: The large arrays that it refers to, each once.
        fingerprint: Identifies the pipeline, also across kernels.
    """

    definition: bytes
    blobs: tuple[Blob, ...]
    fingerprint: Fingerprint


def serialise(operation: Operation) -> Graph:
    """Serialise a pipeline, including everything that a cell or a local module defined for it.

    Args:
        operation: The pipeline.

    Raises:
        InvalidArgumentError: something cannot be pickled; the message names the operation and the variable.

    Example:
        >>> graph = serialise(operation)
        >>> restore(graph.definition, {blob.digest: blob.data for blob in graph.blobs}.__getitem__)
    """
    operations = inputs_first(operation)
    blobs = _Blobs()
    found = fingerprint(operation)
    try:
        definition = _dump(operations, blobs.extract, tuple(file.read() for file in found.sources))
    except MemoryError:
        raise
    except Exception as error:
        raise unpicklable_error(operations, error, _try_pickle) from error
    header = _HEADER + PYTHON.encode() + b"\n" + pickle.dumps(import_path())
    return Graph(definition=header + definition, blobs=blobs.all(), fingerprint=found)


def restore(definition: bytes, fetch: Callable[[str], Any]) -> Operation:
    """Restore a pipeline that `serialise` wrote; large arrays are read-only views of what `fetch` returns.

    Modules that the writer's process could import can be imported here afterwards, if their folders exist here: folders
    missing in `sys.path` are appended to it.

    Args:
        definition: The bytes of the graph.
        fetch: Returns a buffer with the bytes of the blob with a given digest; called once for each.

    Raises:
        FailedPreconditionError: another Python version wrote it, or a module that it needs is not installed here.
        DataLossError: a blob's size differs from the size in the graph.
    """
    _check_header(definition)
    file = BytesIO(definition)
    file.seek(definition.index(b"\n") + 1)
    add_import_path(pickle.load(file))
    try:
        operations = Unpickler(file, _array_loader(fetch)).load_graph()
    except ModuleNotFoundError as error:
        raise FailedPreconditionError(
            f"the pipeline needs the module {error.name!r}, which this worker does not have",
            hint="install it where the workers run, or keep the code that needs it outside site-packages",
        ) from error
    last = operations[-1]
    assert isinstance(last, Operation)
    return last


def describe(operation: Operation) -> str:
    """Describe a pipeline in one line, as `list_files | map(decode) | batch(32)` or `zip(range(3), range(5))`."""
    line: list[str] = []
    step: Operation | None = operation
    while step is not None:
        if len(step.inputs) > 1:
            line.append(f"{step.name}({', '.join(map(describe, step.inputs))})")
            break
        line.append(step.name)
        step = step.inputs[0] if step.inputs else None
    return " | ".join(reversed(line))


def inputs_first(operation: Operation) -> tuple[Operation, ...]:
    """Return the operations of a tree, each once. Pickling in this order needs no recursion, whatever the length."""
    order: dict[int, Operation] = {}
    waiting = [operation]
    while waiting:
        step = waiting[-1]
        missing = [source for source in step.inputs if id(source) not in order]
        waiting += reversed(missing)
        if not missing:
            order.setdefault(id(step), step)
            waiting.pop()
    return tuple(order.values())


def _dump(value: Any, extract_array: Callable[[Array], Any], sources: tuple[ModuleSource, ...] = ()) -> bytes:
    file = BytesIO()
    Pickler(file, extract_array, sources=sources).dump_graph(value)
    return file.getvalue()


def _try_pickle(value: Any) -> Exception | None:
    try:
        _dump(value, lambda _array: "left out")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling runs user code, which may raise anything
        return error
    return None


def _check_header(definition: bytes) -> None:
    header, _, _ = definition[:64].partition(b"\n")
    if header.startswith(_KIND) and not header.startswith(_HEADER):
        raise FailedPreconditionError(
            "the pipeline was written by another version of dsnb",
            did="it was not run",
            hint="register the dataset again with the version that the workers have",
        )
    if not header.startswith(_HEADER):
        raise InvalidArgumentError("these bytes are no pipeline that this version of dsnb can read")
    python = header.removeprefix(_HEADER).decode()
    if python != PYTHON:
        # Bytecode of another version would crash instead of failing.
        raise FailedPreconditionError(
            f"the pipeline was written by Python {python}, and this worker runs Python {PYTHON}",
            hint=f"start the workers with Python {python}",
        )


class _Blobs:
    """Collects the large arrays of one graph, equal ones once."""

    def __init__(self) -> None:
        self._extracted: dict[int, tuple[Array, tuple[str, str, tuple[int, ...]]]] = {}
        self._blobs: dict[str, Blob] = {}

    def extract(self, array: Array) -> tuple[str, str, tuple[int, ...]]:
        if id(array) not in self._extracted:
            in_order = np.ascontiguousarray(array)
            data = array_bytes(in_order)
            digest = blob_digest(data)
            self._blobs.setdefault(digest, Blob(digest=digest, data=data, nbytes=data.nbytes))
            # Keep the array, so that its id is not reused for another one.
            self._extracted[id(array)] = array, (digest, dtype_to_text(array.dtype), array.shape)
        return self._extracted[id(array)][1]

    def all(self) -> tuple[Blob, ...]:
        return tuple(self._blobs.values())


def _array_loader(fetch: Callable[[str], Any]) -> Callable[[tuple[str, str, Iterable[int]]], Array]:
    """Return a function that returns the arrays of one graph, each blob fetched once."""

    @cache
    def buffer(digest: str) -> Any:
        return fetch(digest)

    @cache
    def array(digest: str, dtype: str, shape: tuple[int, ...]) -> Array:
        return _view(buffer(digest), dtype_from_text(dtype), shape, digest)

    return lambda pid: array(pid[0], pid[1], tuple(pid[2]))


def _view(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], digest: str) -> Array:
    flat = np.frombuffer(buffer, np.uint8)
    wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if flat.nbytes != wanted:
        raise DataLossError(f"the blob {digest} has {flat.nbytes} bytes where the pipeline's array has {wanted}")
    array: Array = flat.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array

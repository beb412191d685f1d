"""Decomposition of values for a fingerprint: containers, arrays, and instances of any class."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO, IOBase, StringIO
from typing import Any

import msgspec
import numpy as np
import xxhash

from dsnb.code.fingerprint.parts import (
    Decomposer,
    Decomposition,
    encode_parts,
    is_atom,
    library_reference,
    short_repr,
    type_name,
    unhashable,
)
from dsnb.code.library_names import importable_name
from dsnb.code.usercode import extension_module

_OURS = __name__.partition(".")[0]


def array_digest(array: np.ndarray[Any, Any]) -> str:
    """The xxh3-128 of an array's dtype, shape and bytes in C order, in hexadecimal digits; independent of strides."""
    digest = xxhash.xxh3_128(encode_parts(repr(array.dtype), array.shape))
    if array.size and array.dtype.itemsize:
        digest.update(array_bytes(array))
    return digest.hexdigest()


def array_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """An array's bytes in C order; a read-only view of the array itself if it is contiguous."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat).toreadonly()


# ----------------------------------------------------------------------------------------------------------- containers


def _decompose_sequence(value: list[Any] | tuple[Any, ...]) -> Decomposition:
    edges = tuple((f"[{number}]", item) for number, item in enumerate(value))
    return Decomposition(type(value).__name__, edges=edges, detail=f"{type(value).__name__} of {len(value)}")


def _decompose_set(value: set[Any] | frozenset[Any]) -> Decomposition:
    edges = tuple(("{}", item) for item in value)
    return Decomposition(type(value).__name__, edges=edges, detail=f"set of {len(value)}", unordered=True)


def _decompose_dict(value: Mapping[Any, Any]) -> Decomposition:
    keys = [key if is_atom(key) else type_name(type(key)) for key in value]
    return Decomposition("dict", edges=tuple(_items(value)), detail=f"dict of {short_repr(keys)}")


def _items(value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for number, (key, item) in enumerate(value.items()):
        if is_atom(key):
            yield f"[{key!r}]", item
        else:
            yield f"key {number}", key
            yield f"[key {number}]", item


# --------------------------------------------------------------------------------------------------------------- arrays


def _decompose_array(value: np.ndarray[Any, Any]) -> Decomposition:
    detail = f"{value.dtype} {value.shape}"
    if value.dtype.hasobject:
        return Decomposition(
            "array", encode_parts(repr(value.dtype), value.shape), (("items", value.reshape(-1).tolist()),), detail
        )
    return Decomposition("array", encode_parts(array_digest(value)), detail=detail)


def _decompose_buffer(value: bytearray | memoryview) -> Decomposition:
    view = memoryview(value)
    content = encode_parts(type(value).__name__, view.format, list(view.shape or ()), view.tobytes())
    return Decomposition("value", content, detail=f"{type(value).__name__} of {view.nbytes} bytes")


def _decompose_dtype(dtype: np.dtype[Any]) -> Decomposition:
    return Decomposition("value", encode_parts("dtype", repr(dtype)), detail=repr(dtype))


def _decompose_scalar(scalar: np.generic) -> Decomposition | None:
    if scalar.dtype.hasobject:
        return None
    return Decomposition("value", encode_parts("scalar", repr(scalar.dtype), scalar.tobytes()), detail=repr(scalar))


_TENSOR_CLASSES = {"torch.Tensor", "torch.nn.parameter.Parameter"}


def _decompose_tensor(tensor: Any) -> Decomposition | None:
    """By the bytes of a dense tensor; None for another one. What torch pickles of it contains addresses."""
    if tensor.layout != sys.modules["torch"].strided or tensor.is_quantized:
        return None
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = dense.reshape(-1).view(sys.modules["torch"].uint8).numpy()
    about = type(tensor).__qualname__, str(tensor.dtype), tuple(tensor.shape), bool(tensor.requires_grad)
    return Decomposition("array", encode_parts(*about, array_digest(raw)), detail=f"tensor {tensor.dtype} {about[2]}")


# ------------------------------------------------------------------------------------------------------------ instances

_RANDOM = "a random generator, whose state running the pipeline changes: pass a seed"
_GENERATOR = "a generator cannot be begun again: pass the function that makes it"
# Classes by name, so that this module need not import them. Instances of the first set count as equal.
_WITHOUT_VALUE = {
    "_thread.lock", "_thread.RLock", "threading.Event", "threading.Condition", "threading.Semaphore",
    "threading.Barrier", "logging.Logger",
}  # fmt: skip
_UNHASHABLE_CLASSES = {
    "numpy.random._generator.Generator": _RANDOM,
    "numpy.random.mtrand.RandomState": _RANDOM,
    "numpy.random.bit_generator.BitGenerator": _RANDOM,
    "_random.Random": _RANDOM,
    "_socket.socket": "a connection: connect inside the function",
    "builtins.generator": _GENERATOR,
    "builtins.async_generator": _GENERATOR,
    "builtins.coroutine": "a coroutine: pass the function that makes it",
}


def decompose_by_hook(value: Any) -> Decomposition | None:
    """The decomposition by `__dsnb_fingerprint__`; None if the class does not define it."""
    hook: Callable[[Any], Any] | None = getattr(type(value), "__dsnb_fingerprint__", None)
    if hook is None or isinstance(value, type):
        return None
    try:
        stands_for = hook(value)
    except Exception as error:  # noqa: BLE001 - user code: whatever it raises, the value has no fingerprint
        return unhashable(value, f"its __dsnb_fingerprint__ raised {type(error).__name__}: {error}")
    # The class is identified by its name alone: the hook exists to leave out everything else.
    edges, name = (("fingerprint", stands_for),), type_name(type(value))
    return Decomposition(
        "object", encode_parts(type(value).__qualname__), edges, name, self_described=not _is_trusted_class(type(value))
    )


def decompose_by_base(value: Any) -> Decomposition | None:
    """The decomposition that a class determines: of locks, unhashable objects, dtypes, NumPy scalars and tensors."""
    if type_name(type(value)) in _TENSOR_CLASSES:
        return _decompose_tensor(value)
    for name in _bases(value):
        if name in _WITHOUT_VALUE:
            return Decomposition("object", encode_parts(name), detail=name)
        if name in _UNHASHABLE_CLASSES:
            return unhashable(value, _UNHASHABLE_CLASSES[name])
    if isinstance(value, IOBase) and not isinstance(value, BytesIO | StringIO):
        return unhashable(value, "an open file: pass its path")
    if isinstance(value, np.dtype):
        return _decompose_dtype(value)
    return _decompose_scalar(value) if isinstance(value, np.generic) else None


def _bases(value: Any) -> list[str]:
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in type(value).__mro__]


def decompose_instance(value: Any) -> Decomposition:
    """The decomposition of any other object: its class, and its state as pickle would get it."""
    decompose: Callable[[Any], Decomposition] | None = getattr(type(value), "__dsnb_decompose__", None)
    if decompose is not None:  # an operation
        return decompose(value)
    if type(value).__module__.partition(".")[0] == _OURS and _has_fields(value):
        return Decomposition(
            "object", edges=(("class", type(value)), *_fields(value)), detail=f"a {type_name(type(value))}"
        )
    name = importable_name(value)
    if name:
        return library_reference(name)
    try:
        reduced = reduced_form(value)
    except Exception as error:  # noqa: BLE001 - user code: `__reduce__` may raise anything
        return unhashable(value, f"it says of itself: {error}")
    return _decompose_by_name(value, reduced) if isinstance(reduced, str) else _decompose_reduced(value, reduced)


def reduced_form(value: Any) -> Any:
    """The reduction that pickle uses: by `copyreg` if the class is registered there (as `re.Pattern`), else its own."""
    registered = copyreg.dispatch_table.get(type(value))
    return registered(value) if registered is not None else value.__reduce_ex__(4)


def _decompose_reduced(value: Any, reduced: tuple[Any, ...]) -> Decomposition:
    make, arguments, *rest = reduced
    state, items, pairs = (*rest, None, None, None)[:3]
    edges: list[tuple[str, Any]] = [("class", type(value))]
    if make not in {copyreg.__newobj__, copyreg.__newobj_ex__}:  # type: ignore[attr-defined]
        edges.append(("made by", make))
    edges += [(f"argument {n}", item) for n, item in enumerate(arguments) if item is not type(value)]
    edges += _state(value, state)
    if isinstance(value, np.ndarray) and type(value).__reduce__ is np.ndarray.__reduce__:
        edges += _state(value, getattr(value, "__dict__", None))  # which ndarray.__reduce__ omits
    edges += [("items", [*part]) for part in (items, pairs) if part is not None]
    own = _is_self_described(type(value))
    return Decomposition("object", edges=tuple(edges), detail=f"a {type_name(type(value))}", self_described=own)


def _is_trusted_class(cls: type) -> bool:
    top = cls.__module__.partition(".")[0]
    return top in sys.stdlib_module_names or top in {"numpy", _OURS}


def _is_self_described(cls: type) -> bool:
    plain = all(getattr(cls, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
    return not _is_trusted_class(cls) and (cls in copyreg.dispatch_table or not plain)


def _decompose_by_name(value: Any, name: str) -> Decomposition:
    """A singleton that pickle stores by name, such as NumPy's ufuncs."""
    module = sys.modules.get(pickle.whichmodule(value, name))  # type: ignore[attr-defined]
    if module is None or getattr(module, name, None) is not value:
        return unhashable(value, f"it is pickled by the name {name!r}, and that name does not refer to it")
    if extension_module(module.__name__) is not None:
        return Decomposition("function", encode_parts(name), (("module", module),), name)
    return library_reference(f"{module.__name__}.{name}")


def _state(value: Any, state: Any) -> Iterator[tuple[str, Any]]:
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            derived = _cached_property_names(type(value))
            named = {str(name): item for name, item in part.items() if name not in derived}
            yield from ((f".{name}", item) for name, item in sorted(named.items(), key=lambda pair: pair[0]))
        elif part is not None:
            yield "state", part


def _cached_property_names(cls: type) -> set[str]:
    """The names of cached properties. Their values follow from the rest of the state, and exist only after use."""
    members = [pair for base in cls.__mro__ for pair in vars(base).items()]
    return {name for name, member in members if isinstance(member, functools.cached_property)}


def _has_fields(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that take part in equality: the others are derived from them."""
    if isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    else:
        names = [field.name for field in dataclasses.fields(value) if field.compare]
    return ((name, getattr(value, name)) for name in names)


VALUE_DECOMPOSERS: dict[type, Decomposer] = {
    list: _decompose_sequence,
    tuple: _decompose_sequence,
    set: _decompose_set,
    frozenset: _decompose_set,
    dict: _decompose_dict,
    types.MappingProxyType: _decompose_dict,
    np.ndarray: _decompose_array,
    np.memmap: _decompose_array,
    bytearray: _decompose_buffer,
    memoryview: _decompose_buffer,
}

"""Reads and writes `tf.train.Example` messages as dicts of arrays.

An Example holds named features, each a list of bytes, floats or 64-bit integers:

    Example { Features features = 1 }        Features { map<string, Feature> feature = 1 }
    Feature { oneof { BytesList = 1, FloatList = 2, Int64List = 3 } }, each list { repeated ... value = 1 }

This code parses and writes the wire format itself: the numbers of a list are packed in the message, so an array is one
view or one vectorised pass, whereas the protobuf library would first make a Python object of each number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from dsnb.arguments import buffer, checked, instance, optional, short_repr
from dsnb.elements.spec import BYTES, STR, TensorSpec
from dsnb.elements.varint import varint
from dsnb.errors import DataLossError, InvalidArgumentError
from dsnb.pipeline.engine.assemble import UnbatchableElement, stack_leaves

Array = np.ndarray[Any, Any]
Values = list[bytes] | Array

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KINDS: Final = {_BYTES_LIST: "bytes", _FLOAT_LIST: "floats", _INT64_LIST: "integers"}
_MAX_VARINT_BYTES: Final = 10
"""Maximum size of a 64-bit varint, in bytes."""


def _features_rule(name: str, value: Any) -> Mapping[str, TensorSpec]:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"`{name}` is {type(value).__name__}", hint='pass a dict: {"label": dsnb.TensorSpec((), "int64")}'
        )
    return value


_DICT = instance(Mapping, hint='pass a dict, as in {"label": 0}')


@checked(serialized=buffer, features=optional(_features_rule), defaults=optional(_DICT))
def parse_example(
    serialized: bytes, features: Mapping[str, TensorSpec] | None = None, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Parse a serialised `tf.train.Example` into a dict of arrays; for `map` after a `TFRecordDataset`.

    Args:
        serialized: The bytes of one record.
        features: The shape and dtype of each wanted feature; others in the record are ignored. One size may be None: it
            then follows from the number of values. A shape of () means a single value. Integers may be read as any
            integer dtype or bool, floats as any float dtype, and bytes as bytes or str (UTF-8). None returns all
            features as arrays of one dimension, sorted by name.
        defaults: Values for features that a record does not have. Without a default, a feature with a size of None is
            empty.

    Returns:
        A dict in the order of `features`.

    Raises:
        DataLossError: the bytes are not an Example.
        InvalidArgumentError: a feature is missing, or has values of another kind or number.

    Example:
        >>> record = serialize_example({"label": 3, "image": [[0.5, 1.0]], "name": "seven"})
        >>> parse_example(record, {"label": TensorSpec((), "int32"), "image": TensorSpec((1, 2), "float32")})
        {'label': np.int32(3), 'image': array([[0.5, 1. ]], dtype=float32)}
    """
    try:
        found = _features(serialized)
        if features is None:
            return {name: _without_spec(*_feature(found[name])) for name in sorted(found)}
        known = {name: _feature(found[name]) for name in features if name in found}
    except (IndexError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise DataLossError(
            f"`serialized`: a record of {len(serialized):,} bytes is no tf.train.Example",
            hint="if the file holds something else, decode its records yourself: TFRecordDataset yields their bytes",
        ) from error
    return {name: _with_spec(name, spec, known.get(name), defaults or {}) for name, spec in features.items()}


# ---- reading the message


def _features(message: bytes) -> dict[str, bytes]:
    """Return the `Feature` messages by name; the last one if a name occurs twice, as the format requires."""
    found: dict[str, bytes] = {}
    for features in _nested(message, 1):
        for entry in _nested(features, 1):
            name, feature = b"", b""
            for number, wire_type, value in _fields(entry):
                if wire_type == _BYTES and number == 1:
                    name = value
                elif wire_type == _BYTES and number == 2:
                    feature = value
            found[name.decode()] = feature
    return found


def _feature(message: bytes) -> tuple[int, Values]:
    """Return which of the three lists a feature holds, and its values; 0 if it holds none."""
    kind, lists = 0, list[bytes]()
    for number, wire_type, value in _fields(message):
        if wire_type == _BYTES and number in _KINDS:
            lists = [*lists, value] if number == kind else [value]
            kind = number
    parts = [part for one in lists for part in _fields(one) if part[0] == 1]
    if kind == _BYTES_LIST:
        return kind, [value for _, _, value in parts]
    return kind, (_floats if kind == _FLOAT_LIST else _integers)([(wire_type, value) for _, wire_type, value in parts])


def _nested(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, wire_type, value in _fields(message) if number == wanted and wire_type == _BYTES)


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an int for a varint, else bytes."""
    at, end = 0, len(message)
    while at < end:
        key = message[at]
        # Nearly all keys and many sizes are a single byte.
        key, at = (key, at + 1) if key < 0x80 else _varint(message, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, wire_type, value
            continue
        if wire_type == _BYTES:
            size = message[at]
            size, at = (size, at + 1) if size < 0x80 else _varint(message, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, end)
        if at + size > end or not key >> 3:
            raise ValueError("a field reaches beyond its message")
        yield key >> 3, wire_type, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = message[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number is too long")


def _floats(parts: Sequence[tuple[int, Any]]) -> Array:
    if any(wire_type not in (_BYTES, _FIXED32) for wire_type, _ in parts):
        raise ValueError("not a list of floats")
    array = np.frombuffer(b"".join(value for _, value in parts), "<f4")
    return array.astype(np.float32, copy=False)


def _integers(parts: Sequence[tuple[int, Any]]) -> Array:
    if any(wire_type not in (_BYTES, _VARINT) for wire_type, _ in parts):
        raise ValueError("not a list of integers")
    arrays = [_decode_packed(value) if wire_type == _BYTES else _signed([value]) for wire_type, value in parts]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _signed(values: list[int]) -> Array:
    return np.array([value & 2**64 - 1 for value in values], np.uint64).view(np.int64)


def _decode_varints(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def _decode_packed(data: bytes) -> Array:
    """Decode consecutive varints: seven bits in each byte, the last byte of each below 128."""
    if len(data) <= _MAX_VARINT_BYTES:  # a single label, for example
        return _signed(_decode_varints(data))
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if ends.size == 0 or ends[-1] != len(raw) - 1 or lengths.max() > _MAX_VARINT_BYTES:
        raise ValueError("a list of numbers is cut off")
    places = np.arange(len(raw)) - np.repeat(begins, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, begins).view(np.int64)


# ---- conversion to the user's specs


def _without_spec(kind: int, values: Values) -> Any:
    return _text_array("", BYTES, values) if kind == _BYTES_LIST else _read_only(np.asarray(values))


def _with_spec(name: str, spec: Any, found: tuple[int, Values] | None, defaults: Mapping[str, Any]) -> Any:
    if not isinstance(spec, TensorSpec):
        raise InvalidArgumentError(
            f"`features` holds {short_repr(spec)} for {name!r}",
            hint='pass its shape and dtype: dsnb.TensorSpec((), "int64")',
        )
    kind, values = found or (0, [])
    if not kind:
        if name in defaults:
            return defaults[name]
        if None not in spec.shape:
            raise InvalidArgumentError(
                f"a record has no feature {name!r}",
                did="the element was left out; reading continues with the next",
                hint=f"parse_example(..., defaults={{{name!r}: ...}}), or a spec with a size of None",
            )
        return _shaped(
            name, spec, np.zeros(0, "S1" if spec.dtype == BYTES else "U1" if spec.dtype == STR else spec.dtype)
        )
    if kind != _kind_of(spec.dtype):
        raise InvalidArgumentError(
            f"the feature {name!r} holds {_KINDS[kind]}, and {spec} is wanted",
            did="the element was left out; reading continues with the next",
            hint="ask for a dtype of that kind, and convert it in the next `map`",
        )
    if kind != _BYTES_LIST:
        return _shaped(name, spec, np.asarray(values).astype(spec.dtype, copy=False))
    if spec.shape == () and len(values) == 1:
        return values[0].decode() if spec.dtype == STR else values[0]
    return _shaped(name, spec, _text_array(name, spec.dtype, values))


def _kind_of(dtype: np.dtype[Any]) -> int:
    return {"i": _INT64_LIST, "u": _INT64_LIST, "b": _INT64_LIST, "S": _BYTES_LIST, "U": _BYTES_LIST}.get(
        dtype.kind, _FLOAT_LIST
    )


def _text_array(name: str, dtype: np.dtype[Any], values: Any) -> Array:
    texts = [value.decode() for value in values] if dtype.kind == "U" else list(values)
    if not texts:
        return np.zeros(0, f"{dtype.kind}1")
    try:
        return stack_leaves(texts)
    except UnbatchableElement as odd:
        raise InvalidArgumentError(
            f"the feature {name!r} holds bytes that end in a NUL; an array of text would drop it",
            did="the element was left out; reading continues with the next",
            hint="ask for it with the shape () if it is a single value",
        ) from odd


def _shaped(name: str, spec: TensorSpec, array: Array) -> Any:
    sizes = [-1 if size is None else size for size in spec.shape]
    known = math.prod(size for size in sizes if size >= 0)
    fits = array.size == known if -1 not in sizes else sizes.count(-1) == 1 and known and array.size % known == 0
    if not fits:
        raise InvalidArgumentError(
            f"the feature {name!r} holds {array.size} value(s), and {spec} is wanted",
            did="the element was left out; reading continues with the next",
            hint="give it its shape, with at most one None for a size that varies",
        )
    shaped = array.reshape(sizes)
    return _read_only(shaped) if shaped.ndim else shaped[()]


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


# ---- writing the message


@checked(features=_DICT)
def serialize_example(features: Mapping[str, Any]) -> bytes:
    """Serialise a dict of arrays as a `tf.train.Example`; for `TFRecordWriter.write`.

    Args:
        features: Arrays, numbers, `bytes` or `str`, or lists of them. Integers and bool become 64-bit integers, floats
            32-bit floats, text UTF-8 bytes. Shapes are not stored: arrays are flattened row by row.

    Raises:
        InvalidArgumentError: for other values, such as complex numbers or dates.

    Example:
        >>> parse_example(serialize_example({"x": [1, 2, 300]}))
        {'x': array([  1,   2, 300])}
    """
    entries = (
        _encode_field(
            1, _encode_field(1, str(name).encode()) + _encode_field(2, _encode_list(str(name), features[name]))
        )
        for name in sorted(features)
    )
    return _encode_field(1, b"".join(entries))


def _encode_list(name: str, value: Any) -> bytes:
    given = [value] if isinstance(value, (str, bytes)) else value
    if isinstance(given, (list, tuple)) and given and all(isinstance(text, (str, bytes)) for text in given):
        texts = list(given)
    else:
        array = _to_array(name, given)
        if array.dtype.kind in "iub":
            return _encode_field(_INT64_LIST, _encode_field(1, _encode_varints(name, array)))
        if array.dtype.kind == "f" or np.issubdtype(array.dtype, np.floating):
            return _encode_field(_FLOAT_LIST, _encode_field(1, array.astype("<f4").tobytes()))
        if array.dtype.kind not in "SU":
            raise InvalidArgumentError(
                f"`features`: {name!r} is {array.dtype}, which a tf.train.Example cannot hold",
                hint="convert it to integers, floats or bytes, for instance with array.tobytes()",
            )
        texts = array.reshape(-1).tolist()
    encoded = (text.encode() if isinstance(text, str) else text for text in texts)
    return _encode_field(_BYTES_LIST, b"".join(_encode_field(1, text) for text in encoded))


def _to_array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except Exception as error:  # noqa: BLE001 - the value's own code may run
        raise InvalidArgumentError(
            f"`features`: {name!r} cannot be read as an array: {error}",
            hint="pass arrays, numbers, bytes or str, or lists of them of equal length",
        ) from None


def _encode_varints(name: str, array: Array) -> bytes:
    if array.size and array.dtype.kind != "b" and (array.min() < -(2**63) or array.max() >= 2**63):
        raise InvalidArgumentError(
            f"`features`: an integer of {name!r} does not fit into 64 bits", hint="write it as bytes"
        )
    numbers = array.reshape(-1).astype(np.int64).view(np.uint64)
    if not numbers.size or numbers.max() < 0x80:
        return numbers.astype(np.uint8).tobytes()
    return b"".join(map(varint, numbers.tolist()))


def _encode_field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + varint(len(data)) + data

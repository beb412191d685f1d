"""Examples are read as dicts of arrays and written, as the protobuf library would do both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.errors import DataLossError, InvalidArgumentError
from dsnb.pipeline.tfrecord.example import parse_example, serialize_example

INT, FLOAT, BYTES = TensorSpec([None], "int64"), TensorSpec([None], "float32"), TensorSpec([None], bytes)


def _example_class(*, packed: bool) -> Any:
    """The message by the protobuf library: numbers packed, as it is written today, or one by one, as proto2 wrote."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"e{packed}.proto", package=f"e{packed}", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, bool, str]) -> Any:
        made = file.message_type.add(name=name)
        for title, number, kind, repeated, of in fields:
            added = made.field.add(name=title, number=number, type=kind, label=3 if repeated else 1)
            if of:
                added.type_name = of
            if repeated and kind in (field.TYPE_FLOAT, field.TYPE_INT64):
                added.options.packed = packed
        return made

    own = f".e{packed}."
    message("BytesList", ("value", 1, field.TYPE_BYTES, True, ""))
    message("FloatList", ("value", 1, field.TYPE_FLOAT, True, ""))
    message("Int64List", ("value", 1, field.TYPE_INT64, True, ""))
    feature = message(
        "Feature",
        ("bytes_list", 1, field.TYPE_MESSAGE, False, own + "BytesList"),
        ("float_list", 2, field.TYPE_MESSAGE, False, own + "FloatList"),
        ("int64_list", 3, field.TYPE_MESSAGE, False, own + "Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for one in feature.field:
        one.oneof_index = 0
    features = message("Features", ("feature", 1, field.TYPE_MESSAGE, True, own + "Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, type_name=own + "Feature", label=1)
    message("Example", ("features", 1, field.TYPE_MESSAGE, False, own + "Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"e{packed}.Example"))


EXAMPLES = {"packed": _example_class(packed=True), "one by one": _example_class(packed=False)}
FEATURES = st.dictionaries(
    st.text(max_size=5),
    st.lists(st.binary(max_size=8).filter(lambda value: not value.endswith(b"\0")), min_size=1, max_size=4)
    | st.lists(st.floats(width=32), max_size=20)
    | st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), min_size=1, max_size=20),
    max_size=4,
)


def written(features: dict[str, Any], how: str = "packed") -> bytes:
    example = EXAMPLES[how]()
    for name, values in features.items():
        feature = example.features.feature[name]
        if all(isinstance(value, bytes) for value in values) and values:
            feature.bytes_list.value.extend(values)
        elif all(isinstance(value, float) for value in values):
            feature.float_list.SetInParent()
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return bytes(example.SerializeToString())


@pytest.mark.slow
@pytest.mark.parametrize("how", EXAMPLES)
@given(FEATURES)
def test_all_features_are_read_as_the_library_wrote_them(how: str, features: dict[str, Any]) -> None:
    found = parse_example(written(features, how))
    assert list(found) == sorted(features)
    for name, values in features.items():
        np.testing.assert_array_equal(found[name], np.array(values, found[name].dtype))
        kind = {bytes: "S", float: "f", int: "i"}[type(values[0])] if values else "f"
        assert found[name].dtype.kind == kind


@given(FEATURES)
def test_the_library_reads_what_was_written(features: dict[str, Any]) -> None:
    example = EXAMPLES["packed"].FromString(
        serialize_example({k: v or np.zeros(0, np.float32) for k, v in features.items()})
    )
    assert set(example.features.feature) == set(features)
    for name, values in features.items():
        feature = example.features.feature[name]
        kind = feature.WhichOneof("kind")
        assert kind == (
            {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])] if values else "float_list"
        )
        np.testing.assert_array_equal(list(getattr(feature, kind).value), values)


def test_features_come_in_the_order_shape_and_dtype_that_was_asked_for() -> None:
    record = serialize_example(
        {
            "image": np.arange(6, dtype=np.float64).reshape(2, 3),
            "label": 300,
            "flags": [True, False],
            "raw": b"any\0bytes\0",
            "name": "ü",
            "words": ["a", "long"],
            "not wanted": [1.0],
        }
    )
    found = parse_example(
        record,
        {
            "name": TensorSpec((), str),
            "image": TensorSpec((2, 3), np.float32),
            "label": TensorSpec((), np.uint16),
            "flags": TensorSpec((None,), bool),
            "raw": TensorSpec((), bytes),
            "words": TensorSpec((2,), str),
            "again": TensorSpec((None, 2), np.int8),
        },
    )
    assert list(found) == ["name", "image", "label", "flags", "raw", "words", "again"]
    assert (found["name"], found["raw"], found["label"]) == ("ü", b"any\0bytes\0", 300)
    assert type(found["label"]) is np.uint16
    assert (found["image"].tolist(), found["image"].dtype) == ([[0, 1, 2], [3, 4, 5]], np.float32)
    assert (found["flags"].tolist(), found["words"].tolist()) == ([True, False], ["a", "long"])
    assert (found["again"].shape, found["again"].dtype) == ((0, 2), np.int8)
    assert not found["image"].flags.writeable


def test_a_size_that_varies_follows_from_the_values() -> None:
    record = serialize_example({"x": np.arange(12)})
    assert parse_example(record, {"x": TensorSpec((2, None, 3), int)})["x"].shape == (2, 2, 3)


def test_defaults_stand_for_what_is_missing() -> None:
    record = serialize_example({"x": 1})
    assert parse_example(record, {"x": INT, "y": TensorSpec((), int)}, {"x": 7, "y": 9}) == {"x": [1], "y": 9}


@pytest.mark.parametrize(
    "value, spec, told",
    [
        ([1, 2], TensorSpec((3,), int), "2 value(s)"),
        ([1, 2], TensorSpec((), int), "2 value(s)"),
        ([1, 2, 3], TensorSpec((None, 2), int), "3 value(s)"),
        ([1, 2], TensorSpec((None, None), int), "2 value(s)"),
        ([1.5], INT, "holds floats"),
        ([1], FLOAT, "holds integers"),
        ([b"a"], FLOAT, "holds bytes"),
        ([b"a\0", b"b"], BYTES, "NUL"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(value: Any, spec: TensorSpec, told: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_example(serialize_example({"feature x": value}), {"feature x": spec})
    assert told in str(caught.value)
    assert "feature x" in str(caught.value)


@pytest.mark.parametrize("features", [["x"], "x", {"x": np.float32}, {"x": None}], ids=repr)
def test_features_that_are_no_specs_are_refused(features: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="TensorSpec"):
        parse_example(serialize_example({"x": 1}), features)


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="no feature 'y'"):
        parse_example(serialize_example({"x": 1}), {"y": TensorSpec((), int)})


@pytest.mark.parametrize(
    "value", [1j, np.datetime64("2020-01-01"), None, Ellipsis, {"a": 1}, 2**63, -(2**64)], ids=repr
)
def test_what_an_example_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        serialize_example({"x": value})


@pytest.mark.slow
@given(FEATURES.filter(bool), st.data())
def test_damage_is_data_loss_or_another_example(features: dict[str, Any], data: st.DataObject) -> None:
    record = bytearray(written(features))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    record = record[: data.draw(st.integers(0, len(record)))]
    try:
        found = parse_example(bytes(record))
    except (DataLossError, InvalidArgumentError):
        return
    assert all(isinstance(value, np.ndarray) for value in found.values())


@pytest.mark.parametrize("wrong", ["text", 5, 2**31, None], ids=repr)
def test_what_is_not_bytes_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`serialized` is .*, not bytes"):
        parse_example(wrong, {})


@pytest.mark.parametrize("wrong", [b"\xff", b"\x0a\x05abc"], ids=repr)
def test_what_is_no_example_is_data_loss(wrong: Any) -> None:
    with pytest.raises(DataLossError, match=r"is no tf\.train\.Example"):
        parse_example(wrong)

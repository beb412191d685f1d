"""Messages are plain structs on both sides, with a protobuf message of the same name and fields between them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnb.errors import DataLossError
from dsnb.monitor import snapshot
from dsnb.monitor.snapshot import StatusRecord
from dsnb.wire import messages, schedule
from dsnb.wire.codec import decode, decoder, encode
from dsnb.wire.messages import DroppedTask, Empty, TaskInfo, TaskOrder, WorkerOrder
from dsnb.wire.proto import control_pb2, frame_pb2

CLASSES: list[type[msgspec.Struct]] = [
    cls
    for module in (messages, schedule, snapshot)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct) and cls.__module__ == module.__name__
    if cls is not StatusRecord  # the base of the others, and no message
]

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    Field.TYPE_STRING: st.text(),
    Field.TYPE_BYTES: st.binary(),
    Field.TYPE_BOOL: st.booleans(),
    Field.TYPE_DOUBLE: st.floats(allow_nan=False),
    Field.TYPE_UINT32: st.integers(0, 2**32 - 1),
    Field.TYPE_UINT64: st.integers(0, 2**64 - 1),
    Field.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    Field.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
}


def proto_of(cls: type) -> Any:
    return getattr(control_pb2, cls.__name__, None) or getattr(frame_pb2, cls.__name__)


def filled(cls: type) -> st.SearchStrategy[Any]:
    """Any value of a message's struct, as far as the wire can carry it."""
    by_name = {other.__name__: other for other in CLASSES}

    def value(field: Field) -> st.SearchStrategy[Any]:
        nested = field.message_type
        one = filled(by_name[nested.name]) if nested is not None else _SCALARS[field.type]
        return st.lists(one, max_size=2).map(tuple) if field.is_repeated else one

    return st.builds(cls, **{field.name: value(field) for field in proto_of(cls).DESCRIPTOR.fields})


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSES)
def test_a_struct_has_the_fields_of_its_message(cls: type[msgspec.Struct]) -> None:
    assert sorted(cls.__struct_fields__) == sorted(field.name for field in proto_of(cls).DESCRIPTOR.fields)


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSES)
@given(data=st.data())
@settings(max_examples=10)
def test_every_message_arrives_as_it_left(cls: type, data: st.DataObject) -> None:
    message = data.draw(filled(cls))
    assert decode(cls, encode(message)) == message


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls.__module__ == messages.__name__])
def test_what_is_not_sent_has_the_struct_own_default(cls: type) -> None:
    """Protobuf leaves defaults out: a default of ours that differed would change on the way."""
    assert decode(cls, b"") == cls()


def test_fields_of_a_newer_version_are_passed_over() -> None:
    more = encode(TaskInfo(task_id="t")) + b"\xfa\x7f\x03new"  # field 2047
    assert decode(TaskInfo, more) == TaskInfo(task_id="t")


@pytest.mark.parametrize("damage", [b"\x0a\xff", b"\xff\xff\xff", b"\x0a\x01\xff"], ids=["cut", "noise", "no UTF-8"])
def test_a_damaged_message_is_data_loss_that_names_it(damage: bytes) -> None:
    with pytest.raises(DataLossError, match="TaskInfo"):
        decode(TaskInfo, damage)


def test_a_decoder_decodes_one_class() -> None:
    order = WorkerOrder(
        name="w",
        start=(TaskOrder(task_id="t", incarnation=2),),
        drop=(DroppedTask(task_id="a", incarnation=1), DroppedTask(task_id="b")),
    )
    assert decoder(WorkerOrder)(encode(order)) == order
    assert decoder(Empty)(b"") == Empty()

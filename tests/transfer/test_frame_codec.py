"""Frames travel as protobuf messages that any program can read, and come out as they went in or not at all."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections import namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dsnb.code.failures import failure_of
from dsnb.elements import compression
from dsnb.elements.columns import Layout, check_layouts
from dsnb.elements.frame import Frame, frames_of
from dsnb.elements.structure import flatten
from dsnb.errors import DataLossError, FailedPreconditionError
from dsnb.transfer.compression_policy import CompressionPolicy
from dsnb.transfer.frame_codec import (
    PART_BYTES,
    EncodedMessage,
    FrameSliceDecoder,
    FrameSliceEncoder,
    join_messages,
    split_messages,
)
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.proto import frame_pb2

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users have

RECORD = np.dtype([("id", "<i4"), ("name", "S5"), ("box", ">f8", (2, 2)), ("when", "<M8[ms]")])


def frame_of(run: Any) -> Frame:
    (frame,) = frames_of(run, None)
    assert isinstance(frame, Frame), frame
    return frame


def piece_of(run: Any, start: int = 0, count: int | None = None) -> FrameSlice:
    frame = frame_of(run)
    return FrameSlice(frame, 1000 + start, start, frame.count - start if count is None else count, 3)


def messages_of(run: Any) -> list[bytes]:
    return list(FrameSliceEncoder("task").encode(piece_of(run)))


def decoded(messages: list[bytes]) -> FrameSlice:
    decoder = FrameSliceDecoder()
    *early, last = [decoder.feed(message) for message in messages]
    assert early == [None] * len(early)
    assert isinstance(last, FrameSlice)
    return last


def travelled(run: Any) -> list[Any]:
    return list(decoded(messages_of(run)).elements())


def same(mine: Any, its: Any) -> bool:
    """Whether two elements are equal, their NumPy leaves in dtype, shape and every byte that means something."""
    if isinstance(mine, dict):
        return list(mine) == list(its) and all(same(mine[key], its[key]) for key in mine)
    if isinstance(mine, (tuple, list)):
        return type(mine) is type(its) and len(mine) == len(its) and all(map(same, mine, its))
    if isinstance(mine, (str, bytes)):
        return type(its) in (str, bytes) and mine == its
    a, b = np.asarray(mine), np.asarray(its)
    if a.ndim == 0 and a.dtype.names is None:
        a = a.astype(a.dtype.newbyteorder("="))  # NumPy's scalars have no byte order
    return a.dtype == b.dtype and a.shape == b.shape and meaning(a) == meaning(b)


def meaning(array: Any) -> bytes:
    """Its bytes. Of the sixteen of a long double of an x86 six are filling, which NumPy leaves as it finds them."""
    if array.dtype.char not in "gG" or np.finfo(np.longdouble).nmant != 63:
        return bytes(array.tobytes())
    return np.frombuffer(array.tobytes(), np.uint8).reshape(-1, 16)[:, :10].tobytes()


LEAVES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int": [0, -(2**63), 2**63 - 1],
    "float": [0.0, float("nan"), float("-inf"), 5e-324],
    "complex": [1 + 2j, complex(float("nan"), -0.0)],
    "float16": [np.float16(1.5), np.float16("inf")],
    "float32": [np.float32(0.1)] * 3,
    "uint64": [np.uint64(2**64 - 1), np.uint64(0)],
    "longdouble": [np.longdouble(1) / 3, np.longdouble(2)],
    "complex64": [np.complex64(1j)] * 2,
    "datetime64": [np.datetime64("2020-02-29"), np.datetime64("NaT", "D")],
    "timedelta64": [np.timedelta64(5, "ms"), np.timedelta64("NaT", "ms")],
    "bytes": [b"", b"\0", b"a\0\0", bytes(range(256))],
    "str": ["", "a\0b\0", "\U0001f600 ü", "\udcff lone \ud800", "e\u0301"],
    "fixed bytes": [np.array([b"ab", b"c\0d"]), np.array([b"xyz", b""])],
    "fixed str": [np.array(["ab", "ü\udc80"]), np.array(["", "xy"])],
    "bool array": [np.array([True, False, True])] * 2,
    "float16 array": [np.arange(5, dtype=np.float16)] * 2,
    "dates": [np.array(["2020-01-01", "NaT"], "M8[us]")] * 2,
    "big endian": [np.arange(3, dtype=">i2"), np.arange(3, 6, dtype=">i2")],
    "records": [np.zeros(3, RECORD), np.ones(3, RECORD)],
    "one record": [np.zeros((), RECORD), np.ones((), RECORD)],
    "ragged records": [np.zeros(3, RECORD), np.ones(1, RECORD)],
    "void": [np.array([b"abc"], "V3"), np.array([b"d\0f"], "V3")],
    "zero-size": [np.zeros((0, 3), np.int16), np.zeros((0, 3), np.int16)],
    "zero-dim": [np.array(5, np.int8), np.array(6, np.int8)],
    "Fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3)), np.asfortranarray(np.ones((2, 3), int))],
    "strided": [np.arange(20)[::3], np.arange(20)[::-3]],
    "transposed and ragged": [np.arange(6).reshape(2, 3).T, np.arange(8).reshape(2, 4).T],
    "broadcast": [np.broadcast_to(np.float32(7), (3, 4)), np.broadcast_to(np.float32(8), (3, 4))],
    "ragged": [np.zeros((n, 2, 3 - n), np.int16) + n for n in range(4)],
    "ragged to nothing": [np.zeros((n, 0)) for n in range(3)],
    "scalars of two kinds": [np.bool_(True), False],
    "bfloat16": [ml_dtypes.bfloat16(1.5), ml_dtypes.bfloat16("inf")],
    "bfloat16 array": [np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)] * 2,
    "ragged bfloat16": [np.ones(n, ml_dtypes.bfloat16) for n in range(3)],
    "float8 array": [np.ones(5, ml_dtypes.float8_e5m2)] * 2,
    "int4 array": [np.arange(-3, 3).astype(ml_dtypes.int4)] * 2,
    "records of bfloat16": [np.zeros(2, [("x", ml_dtypes.bfloat16, (2,)), ("n", "<i4")])] * 2,
    "strided bfloat16": [np.arange(9).astype(ml_dtypes.bfloat16)[::-2]] * 2,
    "titles": [np.zeros(2, np.dtype([(("Title", "x"), "<i4")]))] * 2,
    "nothing wide": [np.zeros(2, "V0")] * 2,
    "memory map": [np.arange(3).view(np.memmap)] * 2,
    "bytearray": [bytearray(b"abc"), bytearray(b"d")],
}

NESTED: dict[str, Any] = {
    "tuple": lambda x: (x, 1),
    "tuple of one": lambda x: (x,),
    "list": lambda x: [x, [x, "t"]],
    "dict": lambda x: {"z": x, "a": {"": b"", "ü": x}},
    "namedtuple": lambda x: Point(x, Point((x,), [])),
    "empty parts": lambda x: ({}, x, (), []),
    "between text": lambda x: ("odd", x, b"bytes", x, np.zeros(3, np.uint8)),
}


def numpyed(value: Any) -> Any:
    """A leaf as it is after the way: a bytearray is an array of bytes."""
    return np.frombuffer(value, np.uint8) if isinstance(value, bytearray) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_each_kind_of_leaf_arrives_as_it_left(name: str) -> None:
    values = LEAVES[name]
    assert same([*map(numpyed, values)], travelled(values))


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_each_kind_of_leaf_arrives_in_a_slice_of_its_frame(name: str) -> None:
    values = LEAVES[name]
    piece = piece_of(values, 1, len(values) - 1)
    arrived = decoded(list(FrameSliceEncoder("task").encode(piece)))
    assert same([*map(numpyed, values[1:])], list(arrived.elements()))
    assert (arrived.index, arrived.start, arrived.count, arrived.incarnation) == (1001, 0, len(values) - 1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("shape", NESTED)
@pytest.mark.parametrize("name", ["int", "str", "ragged", "records", "zero-size", "strided"])
def test_leaves_arrive_in_their_structure(shape: str, name: str) -> None:
    run = [NESTED[shape](value) for value in LEAVES[name]]
    assert same(run, travelled(run))


_DTYPES = arrays.scalar_dtypes() | arrays.array_dtypes(max_size=3) | arrays.nested_dtypes(max_leaves=3)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=80)
def test_any_array_arrives_as_it_left(data: st.DataObject) -> None:
    dtype = data.draw(_DTYPES.filter(lambda dtype: dtype.subdtype is None and dtype.itemsize > 0), label="dtype")
    rank = data.draw(st.integers(0, 3), label="rank")
    shapes = st.tuples(*[st.integers(0, 3)] * rank)
    run = data.draw(st.lists(shapes.flatmap(lambda shape: arrays.arrays(dtype, shape)), min_size=1, max_size=4))
    assert same(run, travelled(run))


@pytest.mark.slow
@given(st.lists(st.text(st.characters()) | st.just("\0"), min_size=1), st.integers(0, 3))
@settings(max_examples=50)
def test_any_text_arrives_as_it_left(texts: list[str], start: int) -> None:
    run = [(text, text.encode("utf-8", "surrogatepass")) for text in texts]
    start = min(start, len(run) - 1)
    assert list(decoded(list(FrameSliceEncoder("task").encode(piece_of(run, start)))).elements()) == run[start:]


def test_the_rows_of_an_array_arrive_as_they_left() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    assert same(list(rows), travelled(rows))
    assert same(list(rows.T), travelled(rows.T))


# ---- messages


def test_a_large_element_comes_in_messages_of_at_most_a_part() -> None:
    """Larger messages are slower and hold more memory."""
    element = np.random.default_rng(1).integers(0, 256, 3_000_001, np.uint8)
    messages = messages_of([element])
    assert len(messages) == 3
    assert all(len(message) < PART_BYTES + 1000 for message in messages)
    assert same([element], list(decoded(messages).elements()))


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_elements_of_any_order_come_in_parts(order: Any) -> None:
    element = np.arange(400_000.0).reshape(400, 1000).copy(order)
    run = [("a", element, b"", np.zeros((0, 3)), element[::2], np.zeros((3, 0))[:, ::2])]
    messages = messages_of(run)
    assert len(messages) > 4
    assert same(run, list(decoded(messages).elements()))


def test_two_large_pieces_in_a_row_are_told_apart() -> None:
    one, two = np.full(1_500_000, 1, np.uint8), np.full(2_500_000, 2, np.uint8)
    decoder = FrameSliceDecoder()
    fed = [decoder.feed(message) for run in ([one], [two]) for message in messages_of(run)]
    first, second = [piece for piece in fed if isinstance(piece, FrameSlice)]
    assert same([one, two], [*first.elements(), *second.elements()])


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_the_protobuf_library_reads_our_messages(name: str) -> None:
    (message,) = messages_of(LEAVES[name])
    reply = frame_pb2.ReadReply.FromString(message)
    ours = decoded([message])
    assert (reply.header.task_id, reply.header.first, reply.header.count) == ("task", 1000, ours.count)
    assert reply.header.incarnation == 3
    assert reply.total == len(reply.data)
    ends = [column.offset + column.nbytes for column in reply.header.columns]
    assert ends == [len(reply.data)]
    assert reply.data == message[len(message) - len(reply.data) :]


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_we_read_what_the_protobuf_library_writes(name: str) -> None:
    """Without our padding the data begin anywhere; arrays are aligned all the same."""
    reply = frame_pb2.ReadReply.FromString(messages_of(LEAVES[name])[0])
    for padding in (b"", b"x", bytes(7)):
        reply.padding = padding
        elements = list(decoded([reply.SerializeToString()]).elements())
        assert same([*map(numpyed, LEAVES[name])], elements)


@given(st.text("abc", max_size=40), st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(max_examples=40)
def test_data_and_columns_begin_at_multiples_of_16(task: str, sizes: list[int]) -> None:
    """Of the message's memory: views of it are as fast as arrays of their own."""
    run = [tuple(np.zeros(size, np.uint8) for size in sizes)]
    (message,) = FrameSliceEncoder(task).encode(piece_of(run))
    reply = frame_pb2.ReadReply.FromString(message)
    assert not reply.data or (len(message) - len(reply.data)) % 16 == 0
    assert all(column.offset % 16 == 0 for column in reply.header.columns)


def test_large_rows_are_aligned_views_of_the_message() -> None:
    run = [(1, np.zeros(30_000)), (2, np.ones(30_000))]
    for elements in (travelled(run), travelled([(1, np.zeros(400_000))])):
        for _, array in elements:
            assert array.flags.aligned
            assert array.ctypes.data % 16 == 0
            assert array.base is not None
            assert not array.flags.writeable


@pytest.mark.parametrize("padding", [0, 1, 5, 8])
def test_rows_are_aligned_though_another_encoder_left_the_padding_out(padding: int) -> None:
    reply = frame_pb2.ReadReply.FromString(messages_of([np.arange(30_000.0)])[0])
    reply.padding = bytes(padding)
    (array,) = decoded([reply.SerializeToString()]).elements()
    assert array.flags.aligned
    assert not array.flags.writeable
    assert np.array_equal(array, np.arange(30_000.0))


def test_everything_that_arrives_is_read_only() -> None:
    for values in LEAVES.values():
        for element in travelled(values):
            if isinstance(element, np.ndarray):
                assert not element.flags.writeable


def test_a_frame_is_encoded_once_for_all_readers_that_take_it_whole() -> None:
    piece = piece_of([1, 2, 3])
    (first,) = FrameSliceEncoder("task", keep=True).encode(piece)
    assert next(FrameSliceEncoder("task").encode(piece)) is first
    part = FrameSlice(piece.frame, 1001, 1, 1, 3)
    assert list(decoded(list(FrameSliceEncoder("task", keep=True).encode(part))).elements()) == [2]
    assert next(FrameSliceEncoder("task").encode(piece)) is first, "a part is not taken for the whole"


def test_an_error_arrives_in_its_elements_place() -> None:
    failure = failure_of(ValueError("bad \udcff row"), "in map(f)", "of \udcfe")
    piece = FrameSlice(Frame.of_failure(failure), 7, 0, 1, 2)
    arrived = decoded(list(FrameSliceEncoder("task").encode(piece)))
    assert (arrived.index, arrived.count, arrived.incarnation) == (7, 1, 2)
    with pytest.raises(ValueError, match="bad") as caught:
        arrived.elements()
    assert caught.value.__notes__ == list(failure.notes)
    assert arrived.frame.failure == failure


@pytest.mark.parametrize("notice", [{"end": True}, {"recalled": True, "granted": 5}], ids=["end", "recalled"])
def test_notices_come_as_they_are(notice: dict[str, Any]) -> None:
    reply = FrameSliceDecoder().feed(frame_pb2.ReadReply(**notice).SerializeToString())
    assert reply == frame_pb2.ReadReply(**notice)


def test_elements_that_need_a_package_which_is_missing_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = messages_of([np.ones(3, ml_dtypes.bfloat16)])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(FailedPreconditionError, match="ml_dtypes"):
        FrameSliceDecoder().feed(message)


# ---- damage

SMALL = [
    ("a", np.arange(3.0), 7, [np.zeros(n, np.int16) for n in (1, 2)]),
    ("bc", np.ones(3), 8, [np.ones(2, np.int16)] * 2),
]


def outcome(messages: list[bytes]) -> list[Any] | None:
    """The elements, or None where damage was found; any other error is a failure of the test."""
    decoder = FrameSliceDecoder()
    try:
        fed = [decoder.feed(message) for message in messages]
    except DataLossError:
        return None
    piece = fed[-1]
    return list(piece.elements()) if isinstance(piece, FrameSlice) else []


@pytest.mark.parametrize(
    "run", [SMALL, [1, 2, 3], [np.zeros((0, 2))] * 2, ["text"], [np.zeros(3, RECORD)]],
    ids=["nested", "numbers", "nothing", "text", "records"],
)  # fmt: skip
def test_a_truncated_message_is_data_loss_wherever_it_was_cut(run: list[Any]) -> None:
    (message,) = messages_of(run)
    whole = outcome([message])
    for length in range(len(message)):
        came = outcome([message[:length]])
        assert came is None or same(came, whole), f"cut at {length} of {len(message)}"
    assert outcome([message + b"\0"]) is None


def test_a_truncated_part_is_data_loss() -> None:
    messages = messages_of([np.arange(300_000)])
    for at in range(len(messages)):
        for length in (0, 1, 17, 20, len(messages[at]) - 1):
            cut = [*messages[:at], messages[at][:length]]
            assert outcome(cut) is None, f"part {at} cut at {length}"


def test_parts_of_another_piece_and_too_many_parts_are_data_loss() -> None:
    messages = messages_of([np.arange(300_000)])
    assert outcome([messages[0], messages[0]]) is None
    assert outcome([*messages[:-1], messages[1]]) is None, "longer than the header says"
    assert outcome([messages[1]]) is None, "a part without a beginning"


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300)
def test_damage_in_front_of_the_data_is_found_or_harmless(data: st.DataObject) -> None:
    """No IndexError, no huge allocation, and no element of other sizes than the header's own."""
    (message,) = messages_of(SMALL)
    body = len(frame_pb2.ReadReply.FromString(message).data)
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(message) - body - 1))] ^= data.draw(st.integers(1, 255))
    decoder = FrameSliceDecoder()
    try:
        piece = decoder.feed(bytes(damaged))
    except DataLossError:
        return
    assert not isinstance(piece, FrameSlice) or len(piece.elements()) == piece.count == 2


@given(st.binary(max_size=200))
def test_noise_is_data_loss_or_a_notice(noise: bytes) -> None:
    decoder = FrameSliceDecoder()
    try:
        reply = decoder.feed(noise)
    except DataLossError:
        return
    assert isinstance(reply, frame_pb2.ReadReply)
    assert reply.end or reply.recalled or reply.progress or reply.files


def _header(**changes: Any) -> frame_pb2.ReadReply:
    reply = frame_pb2.ReadReply.FromString(messages_of([np.arange(4, dtype=np.int64)] * 2)[0])
    column = reply.header.columns[0]
    for name, value in changes.items():
        if name == "shape":
            column.shape[:] = value
        elif name in ("structure", "count"):
            setattr(reply.header, name, value)
        else:
            setattr(reply if name in ("total", "data") else column, name, value)
    return reply


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"total": 2**50},
        {"total": 2**50, "nbytes": 2**50},
        {"total": 65},
        {"count": 0},
        {"count": 3},
        {"count": 2**32 - 1},
        {"shape": [2**40]},
        {"shape": [-4]},
        {"shape": [2**40], "total": 0, "data": b"", "nbytes": 0},
        {"shape": [2, 3]},
        {"offset": 16},
        {"offset": 2**60},
        {"nbytes": 32},
        {"dtype": "<i4"},
        {"dtype": "|O"},
        {"dtype": "nonsense"},
        {"dtype": '{"names":'},
        {"structure": "[]"},
        {"structure": "0 0"},
        {"structure": '["tuple",[],["",""],[0,0]]'},
        {"ragged": True, "shape": []},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_data_loss_before_memory_is_asked_for(changes: dict[str, Any]) -> None:
    assert outcome([_header().SerializeToString()]) is not None
    assert outcome([_header(**changes).SerializeToString()]) is None


def test_a_length_without_an_end_is_data_loss_at_once() -> None:
    """Read to its end it would be a number of millions of digits."""
    began = time.monotonic()
    assert outcome([b"\x0a" + b"\xff" * 1_000_000]) is None
    assert time.monotonic() - began < 2.0


# ---- compression and checksums


def smooth(count: int) -> list[Any]:
    return [("row", np.arange(count) // 100, np.zeros((3, 5), np.float32))]


def encoder(codec: str = "", *, checksum: bool = False, keep: bool = False) -> FrameSliceEncoder:
    choice = CompressionPolicy(codec, (), same_host=True)
    return FrameSliceEncoder("task", keep=keep, compression=choice, checksum=checksum)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("codec", ["", "LZ4", "ZSTD"])
@pytest.mark.parametrize("count", [10, 5_000, 600_000], ids=["small", "one message", "parts"])
def test_what_is_compressed_or_carries_a_checksum_arrives_as_it_was(codec: str, checksum: bool, count: int) -> None:
    run = smooth(count)
    messages = list(encoder(codec, checksum=checksum).encode(piece_of(run)))
    piece = decoded(messages)
    assert same(run, list(piece.elements()))
    assert all(not leaf.flags.writeable for leaf in flatten(list(piece.elements())) if isinstance(leaf, np.ndarray))
    replies = [frame_pb2.ReadReply.FromString(message) for message in messages]
    assert {reply.codec for reply in replies} == {codec if count > 10 else ""}
    assert all(bool(reply.checksum) == checksum for reply in replies)
    if codec and count > 10:
        assert sum(map(len, messages)) < 8 * count / 5


def test_what_does_not_get_smaller_goes_as_it_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1_500_000, np.uint8)
    messages = list(encoder("LZ4").encode(piece_of([noise])))
    assert {frame_pb2.ReadReply.FromString(message).codec for message in messages} == {""}
    assert same([noise], list(decoded(messages).elements()))


def patchy(*parts: bool) -> list[Any]:
    """An array of parts, each as large as a message may be, that compress well or not at all."""
    noise = np.random.default_rng(0).integers(0, 256, PART_BYTES, np.uint8)
    return [np.concatenate([noise if noisy else np.zeros(PART_BYTES, np.uint8) for noisy in parts])[: -PART_BYTES // 2]]


@pytest.mark.slow
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("codec", ["LZ4", "ZSTD"])
@pytest.mark.parametrize(
    "parts, blocks",
    [
        ((False,) * 5, [5]),
        ((False, True, False, True, False), [0, 0, 0, 0, 0]),
        ((True, False, False), [0, 2]),
        ((False,) * 20, [16, 4]),
    ],
    ids=["smooth", "patchy", "noise first", "many"],
)
def test_a_message_carries_as_many_compressed_parts_as_have_room(
    parts: tuple[bool, ...], blocks: list[int], codec: str, checksum: bool
) -> None:
    """Each message costs both sides as much as packing a part; and none is larger than one of data as they are."""
    run = patchy(*parts)
    messages = list(encoder(codec, checksum=checksum).encode(piece_of(run)))
    assert [len(frame_pb2.ReadReply.FromString(message).blocks) for message in messages] == blocks
    assert all(len(message) < PART_BYTES + 1000 for message in messages)
    assert same(run, list(decoded(messages).elements()))


@pytest.mark.parametrize("change", [1, -1, 1 << 40, None])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_lengths_of_blocks_that_do_not_fit_are_told(at: int, change: int | None) -> None:
    (message,) = encoder("LZ4").encode(piece_of(patchy(*[False] * 5)))
    reply = frame_pb2.ReadReply.FromString(message)
    if change is None:
        del reply.blocks[at]
    else:
        reply.blocks[at] += change
    with pytest.raises(DataLossError):
        FrameSliceDecoder().feed(reply.SerializeToString())


def test_each_form_of_a_frame_is_kept_by_itself() -> None:
    piece = piece_of(smooth(3_000_000))
    packed = list(encoder("LZ4", keep=True).encode(piece))
    assert len(packed) > 1
    again = list(encoder("LZ4").encode(piece))
    assert all(mine is its for mine, its in zip(packed, again, strict=True))
    assert sum(map(len, encoder().encode(piece))) > 10 * sum(map(len, packed))


@pytest.mark.parametrize("codec", ["", "LZ4"])
def test_no_damaged_bit_passes_a_checksum(codec: str) -> None:
    (message,) = encoder(codec, checksum=True).encode(piece_of([(np.arange(2000) // 7, "text")]))
    for at in range(0, len(message), 1 + len(message) // 400):
        for bit in (1, 128):
            damaged = bytearray(message)
            damaged[at] ^= bit
            decoder = FrameSliceDecoder(checksum=True)
            try:
                arrived = decoder.feed(bytes(damaged))
            except DataLossError:
                continue
            # Only the padding's own bytes mean nothing.
            assert isinstance(arrived, FrameSlice)
            assert same(list(decoded([message]).elements()), list(arrived.elements()))


def test_a_reader_that_asked_for_checksums_takes_nothing_without() -> None:
    with pytest.raises(DataLossError, match="no checksum"):
        FrameSliceDecoder(checksum=True).feed(messages_of([1, 2])[0])
    end = frame_pb2.ReadReply(end=True)
    with pytest.raises(DataLossError, match="no checksum"):
        FrameSliceDecoder(checksum=True).feed(end.SerializeToString())
    notice = FrameSliceDecoder(checksum=True).feed(encoder(checksum=True).encode_notice(end).join())
    assert isinstance(notice, frame_pb2.ReadReply)
    assert notice.end


@pytest.mark.parametrize(
    "field, value", [("raw_bytes", 1 << 40), ("raw_bytes", 7), ("codec", "LZ5"), ("data", b"damaged")]
)
def test_damaged_compression_is_told(field: str, value: Any) -> None:
    (message,) = encoder("LZ4").encode(piece_of(smooth(5_000)))
    reply = frame_pb2.ReadReply.FromString(message)
    setattr(reply, field, value)
    with pytest.raises(DataLossError):
        FrameSliceDecoder().feed(reply.SerializeToString())


def test_a_codec_that_is_missing_at_the_reader_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = encoder("LZ4").encode(piece_of(smooth(5_000)))
    monkeypatch.setattr(compression, "installed_codecs", lambda: ())
    compression.load_codec.cache_clear()
    with pytest.raises(FailedPreconditionError, match="LZ4"):
        FrameSliceDecoder().feed(message)


def test_an_element_of_five_gigabytes_is_cut_by_arithmetic_that_holds() -> None:
    """What is described, not made: offsets and totals above 32 bits come through the header and are checked."""
    count = 5 * 10**9
    layouts = [Layout("|u1", (count,), False, 0, count), Layout("<i8", (), False, -(-count // 16) * 16, 8)]
    total = layouts[-1].offset + 8
    assert check_layouts(layouts, 1) == total
    with pytest.raises(DataLossError):
        check_layouts([Layout("|u1", (count,), False, 0, count & 0xFFFFFFFF), layouts[1]], 1)
    reply = frame_pb2.ReadReply(total=total, raw_bytes=count)
    assert frame_pb2.ReadReply.FromString(reply.SerializeToString()).total == total


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("codec", ["", "LZ4"])
def test_an_element_of_more_than_two_gigabytes_is_never_truncated(codec: str) -> None:
    element = np.arange((1 << 31) // 8 + 1000)
    arrived = decoded(encoder(codec, checksum=True).encode(piece_of([element])))
    (back,) = arrived.elements()
    assert np.array_equal(back, element)


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("leaves", [2, 100])
def test_a_message_is_made_without_a_copy_beside_it(checksum: bool, leaves: int) -> None:
    piece = piece_of([tuple(np.zeros(PART_BYTES // leaves // 2 // 16 * 16, np.uint8) for _ in range(leaves))] * 2)
    messages = encoder(checksum=checksum).encode(piece)
    tracemalloc.start()
    (message,) = messages
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Many buffers are joined before they are looked at one by one, which costs more than the copy.
    assert peak < (2.5 if checksum and leaves > 16 else 1.5) * len(message)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_frame_whose_message_is_kept_is_not_in_memory_twice(checksum: bool) -> None:
    run = [(np.full(1000, number), np.float32(number)) for number in range(20)]
    (frame,) = frames_of(run, None, packed=True)
    assert isinstance(frame, Frame)
    piece = FrameSlice(frame, 0, 0, frame.count, 1)
    (message,) = encoder(keep=True, checksum=checksum).encode(piece)
    memory = np.frombuffer(message, np.uint8)
    assert all(np.shares_memory(np.asarray(column.values), memory) for column in frame.columns)
    assert same(run, list(frame.elements(0, frame.count)))
    part = FrameSlice(frame, 5, 5, 3, 1)
    assert same(run[5:8], list(decoded(list(encoder(checksum=checksum).encode(part))).elements()))
    assert same(run, list(decoded(list(encoder("LZ4").encode(piece))).elements()))


@pytest.mark.parametrize("codec", ["", "LZ4"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("element", [np.arange(500.0), "text" * 1000])
def test_what_is_kept_beside_a_frame_is_told_so_that_it_can_be_counted(codec: str, packed: bool, element: Any) -> None:
    (frame,) = frames_of([element] * 10, None, packed=packed)
    assert isinstance(frame, Frame)
    piece = FrameSlice(frame, 0, 0, frame.count, 1)
    told: list[int] = []
    frame.reserve_encoded_bytes = lambda nbytes: told.append(nbytes) is None
    making = encoder(codec, keep=True) if codec else FrameSliceEncoder("task", keep=True)
    messages = list(making.encode(piece))
    list(making.encode(piece))
    whole = sum(map(len, messages))
    # Packed arrays that are not compressed become the frame's own memory: only the header comes on top.
    moved = packed and not codec and isinstance(element, np.ndarray)
    assert told == [whole - frame.nbytes if moved else whole]


def test_what_may_not_be_kept_beside_a_frame_is_made_for_each_reader() -> None:
    piece = piece_of([np.arange(500.0) for _ in range(10)])
    piece.frame.reserve_encoded_bytes = lambda _nbytes: False
    making = encoder("LZ4", keep=True)
    assert list(making.encode(piece)) == list(making.encode(piece))
    assert piece.frame.encoded is None


# ---- several in one message


def together(messages: list[bytes]) -> bytes:
    """The message in which these go."""
    return join_messages([EncodedMessage((message[:2], message[2:]), len(message)) for message in messages])


@given(messages=st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_messages_that_went_together_come_apart_as_they_were(messages: list[bytes]) -> None:
    messages = [b"\x20" + message for message in messages]
    assert list(split_messages(together(messages))) == messages


def test_an_element_that_came_together_with_others_does_not_keep_them() -> None:
    encoded = [
        message for row in range(4) for message in FrameSliceEncoder("t").encode(piece_of([np.full(100_000, row)]))
    ]
    decoder = FrameSliceDecoder()
    tracemalloc.start()
    try:
        pieces = [decoder.feed(message) for message in split_messages(together(encoded))]
        kept = pieces[2]
        del pieces
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert isinstance(kept, FrameSlice)
    assert np.array_equal(kept.elements()[0], np.full(100_000, 2))
    assert kept.elements()[0].flags.aligned


@pytest.mark.parametrize("cut", [1, 2, 3, 10, 60])
def test_what_went_together_and_is_cut_short_is_damaged(cut: int) -> None:
    whole = together([b"\x20\x01", b"\x20" * 200])
    with pytest.raises(DataLossError):
        list(split_messages(whole[:-cut] if cut != 10 else whole + b"\x00"))

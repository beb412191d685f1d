"""Encodes frame slices, and decodes them: as messages of a stream (gRPC, TCP), or as a header and a body apart.

Both begin with the same protobuf header. The messages are protobuf too, but their large field is written and parsed by
hand, because the library would copy it several times.

A message of gRPC has at most `PART_BYTES` bytes of a frame slice's body, because larger ones are slower and take more
memory. A slice that fits is encoded by one join of its header and buffers, and decoded as views of the message; a
larger one is sent in parts that are copied into one new array. Over TCP a message has the whole body, and its buffers
are sent as they are. If the reader's `CompressionPolicy` has a codec, each part is compressed separately, and a message
has as many parts as fit. An optional checksum covers the whole message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from msgspec.structs import replace

from dsnb.elements.columns import Layout, bytes_of, check_layouts, coalesce_buffers, column_from, join_bytes, lay_out
from dsnb.elements.compression import CODECS, Codec, load_codec
from dsnb.elements.failure import Failure
from dsnb.elements.frame import Frame
from dsnb.elements.structure import Structure, structure_from_json, structure_to_json
from dsnb.elements.varint import varint
from dsnb.errors import DataLossError, FailedPreconditionError
from dsnb.system_limits import limit_error
from dsnb.transfer.codec_probe import probe
from dsnb.transfer.compression_policy import MIN_BYTES, CompressionPolicy
from dsnb.transfer.protocol import FrameSlice
from dsnb.wire.proto import frame_pb2

ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

PART_BYTES = 1 << 20
"""Most bytes of body in one message of gRPC; the fastest of the sizes measured between 256 KB and 8 MB."""

_MAX_BLOCKS = 16
"""Most compressed parts in one message; a reader decompresses them while the worker compresses the next message."""

_TAG_PADDING = b"\x1a"  # field 3, length-delimited
_TAG_CHECKSUM = b"\x51"  # field 10, fixed 64 bits
_TAG_DATA = b"\x7a"  # field 15, length-delimited
_TAG_JOINED = b"\x82\x01"  # field 16, length-delimited
_CHECKSUM_FIELD = 10
_DATA_FIELD = 15

_CACHED_HEADERS = 64
"""How many headers are cached: most elements of a task have one of a few layouts."""
_MAX_CACHED_HEADER_BYTES = 4096
"""Longer headers are not cached, for example those of errors."""


def damaged_message_error(how: str = "") -> DataLossError:
    """The error for a message that a worker cannot have sent."""
    return DataLossError("a damaged message arrived" + (f": {how}" if how else ""), did="the read was broken off")


# ---- headers


def _header_of(task_id: str, frame_slice: FrameSlice, layouts: Sequence[Layout]) -> frame_pb2.FrameHeader:
    """The header of a frame slice whose body has these layouts."""
    header = frame_pb2.FrameHeader(
        task_id=task_id,
        incarnation=frame_slice.incarnation,
        first=frame_slice.index,
        count=frame_slice.count,
        structure=structure_to_json(frame_slice.frame.structure),
        columns=_columns(layouts),
    )
    failure = frame_slice.frame.failure
    if failure is not None:
        header.failure.kind, header.failure.message = failure.kind, failure.message
        header.failure.traceback, header.failure.pickled = failure.traceback, failure.pickled
        header.failure.notes.extend(failure.notes)
    return header


def _columns(layouts: Sequence[Layout]) -> list[frame_pb2.Column]:
    return [frame_pb2.Column(**layout._asdict()) for layout in layouts]


def _check_header(message: frame_pb2.ReadReply) -> None:
    """Check that the parts of a header agree, before memory of the size it names is allocated."""
    header = message.header
    leaves = 0 if header.HasField("failure") else structure_from_json(header.structure).leaves
    if (
        not header.count
        or len(header.columns) != leaves
        or check_layouts(_layouts(header), header.count) != message.total
    ):
        raise damaged_message_error()


class _ParsedHeader(msgspec.Struct, frozen=True):
    """The decoded content of a header."""

    structure: Structure
    layouts: Sequence[Layout]
    count: int
    incarnation: int
    total: int
    failure: Failure | None

    def frame_slice(self, index: int, body: ByteArray) -> FrameSlice:
        columns = [column_from(layout, body, self.count) for layout in self.layouts]
        return FrameSlice(
            Frame(self.structure, columns, self.count, self.failure), index, 0, self.count, self.incarnation
        )


def _layouts(header: frame_pb2.FrameHeader) -> list[Layout]:
    return [Layout(c.dtype, tuple(c.shape), c.ragged, c.offset, c.nbytes) for c in header.columns]


def _parse(header: frame_pb2.FrameHeader, total: int) -> _ParsedHeader:
    failure = None
    if header.HasField("failure"):
        f = header.failure
        failure = Failure(f.kind, f.message, f.traceback, f.pickled, tuple(f.notes))
    structure = structure_from_json(header.structure)
    return _ParsedHeader(structure, _layouts(header), header.count, header.incarnation, total, failure)


def _frame_slice_of(header: frame_pb2.FrameHeader, body: ByteArray) -> FrameSlice:
    """The frame slice with this header and body."""
    return _parse(header, len(body)).frame_slice(header.first, body)


# ---- messages of a stream


class EncodedMessage(NamedTuple):
    """A message as buffers, which are sent one after another; `nbytes` is their size in all.

    The buffers may be those of the frame itself, so that nothing is copied before the message is sent.
    """

    buffers: Sequence[Any]
    nbytes: int

    def join(self) -> bytes:
        """The message in one piece, copied unless it has a single buffer."""
        return join_bytes(self.buffers)


def _in_one_piece(message: bytes) -> EncodedMessage:
    return EncodedMessage((message,), len(message))


class FrameSliceEncoder:
    """Encodes the frame slices of one read.

    Args:
        task_id: The task id for the headers.
        keep: Whether to keep the messages of whole frames (those in one message, or compressed) with the frame, for
            other readers with the same encoding.
        compression: Chooses the codec; None for no compression.
        checksum: Whether each message has a checksum.
        whole: Whether a body that is not compressed goes into one message, whatever its size.
    """

    def __init__(
        self,
        task_id: str,
        *,
        keep: bool = False,
        compression: CompressionPolicy | None = None,
        checksum: bool = False,
        whole: bool = False,
    ) -> None:
        self._whole = whole
        self._task_id = task_id
        self._keep = keep
        self._compression = compression
        self._checksum = checksum

    def encode(self, frame_slice: FrameSlice) -> Iterator[bytes]:
        """The messages of one frame slice, each in one piece."""
        return (message.join() for message in self.messages(frame_slice))

    def messages(self, frame_slice: FrameSlice) -> Iterator[EncodedMessage]:
        """The messages of one frame slice."""
        frame = frame_slice.frame
        whole = frame_slice.count == frame.count
        kept = frame.encoded.get(self._encoding_key()) if whole and frame.encoded is not None else None
        if kept is not None:
            return map(_in_one_piece, kept)
        layouts, buffers, total = lay_out(frame.columns, frame_slice.start, frame_slice.start + frame_slice.count)
        if self._compression is not None and self._compression.wants_sample(total):
            self._compression.decide(probe(self._compression.codecs, buffers, total))
        head = frame_pb2.ReadReply(header=_header_of(self._task_id, frame_slice, layouts), total=total)
        messages = self._body_messages(head, buffers, total)
        form = self._encoding_key()
        if not (whole and self._keep and (form[0] or total <= PART_BYTES)):
            return messages
        taken = tuple(message.join() for message in messages)
        # A single uncompressed message contains the body, so the frame's columns become views of it: then the frame
        # is in memory once, and only the rest of the message counts as extra.
        moves = bool(total) and len(taken) == 1 and not form[0] and frame.movable
        extra_bytes = sum(map(len, taken)) - (total if moves else 0)
        if frame.reserve_encoded_bytes is None or frame.reserve_encoded_bytes(extra_bytes):
            # A new dict, because other threads may be reading the old one.
            frame.encoded = {**(frame.encoded or {}), form: taken}
            if moves:
                frame.move_into(layouts, np.frombuffer(taken[0], np.uint8)[-total:])
        return map(_in_one_piece, taken)

    def encode_notice(self, reply: frame_pb2.ReadReply) -> EncodedMessage:
        """Encode a message without elements."""
        return self._message(reply, [], 0)

    def _encoding_key(self) -> tuple[str, bool]:
        """The present encoding: the codec, and whether messages have checksums."""
        return self._compression.codec if self._compression is not None else "", self._checksum

    def _body_messages(self, head: frame_pb2.ReadReply, buffers: Sequence[Any], total: int) -> Iterator[EncodedMessage]:
        name = self._compression.codec if self._compression is not None else ""
        if name and total >= MIN_BYTES:
            portions: Iterator[Sequence[Any]] = iter([buffers]) if total <= PART_BYTES else _split_buffers(buffers)
            yield from self._compressed_messages(head, portions, load_codec(name))
            return
        if total <= PART_BYTES or self._whole:
            yield self._message(head, buffers, total)
            return
        for portion in _split_buffers(buffers):
            yield self._message(head, portion, sum(map(len, portion)))
            head = frame_pb2.ReadReply()

    def _compressed_messages(
        self, head: frame_pb2.ReadReply, portions: Iterator[Sequence[Any]], codec: Codec
    ) -> Iterator[EncodedMessage]:
        """The messages of a compressed frame slice, each with as many portions as fit."""
        blocks: list[Any] = []
        nbytes = raw = 0
        for portion in portions:
            whole = bytes_of(portion[0]) if len(portion) == 1 else join_bytes(portion)
            block: Any = codec.compress(whole)
            if len(block) >= len(whole):
                block = whole  # incompressible: sent as it is, which the reader recognises by the equal length
            if blocks and (nbytes + len(block) > PART_BYTES or len(blocks) == _MAX_BLOCKS):
                yield self._compressed_message(head, blocks, nbytes, raw, codec.name)
                head, blocks, nbytes, raw = frame_pb2.ReadReply(), [], 0, 0
            blocks.append(block)
            nbytes += len(block)
            raw += len(whole)
        yield self._compressed_message(head, blocks, nbytes, raw, codec.name)

    def _compressed_message(
        self, head: frame_pb2.ReadReply, blocks: Sequence[Any], nbytes: int, raw: int, codec: str
    ) -> EncodedMessage:
        if nbytes < raw:
            head.codec, head.raw_bytes = codec, raw
            head.blocks.extend(map(len, blocks) if len(blocks) > 1 else ())
        return self._message(head, blocks, nbytes)

    def _message(self, reply: frame_pb2.ReadReply, buffers: Sequence[Any], nbytes: int) -> EncodedMessage:
        head = reply.SerializeToString()
        if self._checksum:
            buffers = coalesce_buffers(buffers)
            head += _TAG_CHECKSUM + _checksum(head, buffers).to_bytes(8, "little")
        prefix = _prefix(head, nbytes)
        return EncodedMessage((prefix, *buffers), len(prefix) + nbytes)


def _checksum(head: bytes | memoryview, buffers: Sequence[Any]) -> int:
    digest = xxhash.xxh3_64(head)
    for data in map(bytes_of, buffers):
        digest.update(data)
    return digest.intdigest()


def _prefix(head: bytes, nbytes: int) -> bytes:
    """All bytes before the data, padded so that the data begin at a multiple of 16 and views of them are aligned."""
    if not nbytes:
        return head
    data = _TAG_DATA + varint(nbytes)
    gap = -(len(head) + 2 + len(data)) % 16
    return head + _TAG_PADDING + bytes([gap]) + bytes(gap) + data


def _split_buffers(buffers: Sequence[Any]) -> Iterator[list[memoryview]]:
    """Split buffers into portions of `PART_BYTES`, the last one smaller."""
    portion: list[memoryview] = []
    left = PART_BYTES
    for buffer in buffers:
        rest = bytes_of(buffer)
        while len(rest):
            taken, rest = rest[:left], rest[left:]
            portion.append(taken)
            left -= len(taken)
            if not left:
                yield portion
                portion, left = [], PART_BYTES
    if portion:
        yield portion


def join_messages(messages: Sequence[EncodedMessage]) -> bytes:
    """Join several messages into one piece; see `split_messages`."""
    if len(messages) == 1:
        return messages[0].join()
    return join_bytes([part for buffers, nbytes in messages for part in (_TAG_JOINED + varint(nbytes), *buffers)])


def split_messages(message: bytes) -> Iterator[bytes]:
    """Split a message from `join_messages` into copies, so that a kept element does not keep its neighbours in memory.

    Raises:
        DataLossError: the message is damaged.
    """
    if not message.startswith(_TAG_JOINED):
        yield message
        return
    at = 0
    while at < len(message):
        try:
            length, begin = _read_varint(message, at + len(_TAG_JOINED))
        except IndexError as error:
            raise limit_error(error) or damaged_message_error() from error
        if not message.startswith(_TAG_JOINED, at) or begin + length > len(message):
            raise damaged_message_error()
        # Slice bytes, not an array: NumPy would release the GIL to copy, and another thread might keep it for long.
        yield message[begin : begin + length]
        at = begin + length


class FrameSliceDecoder:
    """Decodes the messages of one read, in order.

    Args:
        checksum: Whether each message must have a checksum. If one is present, it is always verified.
    """

    def __init__(self, *, checksum: bool = False) -> None:
        self._checksum = checksum
        self._header: frame_pb2.FrameHeader | None = None
        self._body: ByteArray | None = None
        self._filled = 0

    def feed(self, message: bytes | memoryview) -> FrameSlice | frame_pb2.ReadReply | None:
        """Decode one message.

        Args:
            message: The message, at a multiple of 16 and read-only: a frame slice's columns become views of it.

        Returns:
            A frame slice when it is complete, the message itself if it is a notice (end, recall, progress, files,
            unit mark), else None.

        Raises:
            DataLossError: the message is damaged.
            FailedPreconditionError: its dtype or codec needs a package that is not installed here.
        """
        try:
            return self._decode(message)
        except (DataLossError, FailedPreconditionError):
            raise
        except Exception as error:  # a damaged message can make any decoding step fail
            raise limit_error(error) or damaged_message_error() from error

    def _decode(self, message: bytes | memoryview) -> FrameSlice | frame_pb2.ReadReply | None:
        head_end, data_at, checksum_at = _find_fields(message)
        head = frame_pb2.ReadReply.FromString(bytes(message[:head_end]))
        data = np.frombuffer(message, np.uint8)[data_at:]
        if checksum_at is not None:
            if head.checksum != _checksum(memoryview(message)[:checksum_at], [data]):
                raise damaged_message_error("its checksum does not agree with what is in it")
        elif self._checksum:
            raise damaged_message_error("it has no checksum")
        if self._body is not None:
            if head.HasField("header"):
                raise damaged_message_error()
            return self._append_body(self._body, _decompressed(head, data, len(self._body) - self._filled))
        if not head.HasField("header"):
            if not (head.end or head.recalled or head.progress or head.files or head.HasField("unit_mark")):
                raise damaged_message_error()
            return head
        _check_header(head)
        parts = _decompressed(head, data, head.total)
        if not head.blocks:  # one block, mostly the whole body: the columns become views of it, without a copy
            (data,) = parts
            if len(data) == head.total:
                # Another encoder may omit the padding; the data are then copied, so that views of them are aligned.
                return _frame_slice_of(
                    head.header, _read_only(data.copy()) if data_at % 16 and not head.codec else data
                )
            parts = iter([data])
        self._header, self._body, self._filled = head.header, np.empty(head.total, np.uint8), 0
        return self._append_body(self._body, parts)

    def _append_body(self, body: ByteArray, parts: Iterator[ByteArray]) -> FrameSlice | None:
        for data in parts:
            end = self._filled + len(data)
            if not len(data) or end > len(body):
                raise damaged_message_error()
            body[self._filled : end] = data
            self._filled = end
        if self._filled < len(body) or self._header is None:
            return None
        header, self._header, self._body = self._header, None, None
        return _frame_slice_of(header, _read_only(body))


def _decompressed(head: frame_pb2.ReadReply, data: ByteArray, room: int) -> Iterator[ByteArray]:
    """Yield the data of one message decompressed, block by block."""
    if not head.codec:
        yield data
        return
    if head.codec not in CODECS or head.raw_bytes > room or sum(head.blocks or [len(data)]) != len(data):
        raise damaged_message_error()
    one = load_codec(head.codec)
    at, left = 0, head.raw_bytes
    for packed in head.blocks or [len(data)]:
        raw = left if at + packed == len(data) else min(PART_BYTES, left)
        block = data[at : at + packed]
        whole = block if packed == raw else np.frombuffer(one.decompress(block, raw), np.uint8)
        if len(whole) != raw:
            raise damaged_message_error()
        yield whole
        at, left = at + packed, left - raw


def _find_fields(message: bytes | memoryview) -> tuple[int, int, int | None]:
    """Find the start of the data field, of the data in it, and of the checksum field (None if there is none).

    Skips over the few fields before the data without decoding them.
    """
    at, end = 0, len(message)
    checksum_at = None
    while at < end:
        field = at
        key, at = _read_varint(message, at)
        wire_type = key & 7
        if wire_type == 0:
            _, at = _read_varint(message, at)
            continue
        if wire_type == 1:
            checksum_at = field if key >> 3 == _CHECKSUM_FIELD else checksum_at
            at += 8
            continue
        if wire_type != 2:
            raise damaged_message_error()
        length, begin = _read_varint(message, at)
        if key >> 3 == _DATA_FIELD:
            if begin + length != end:
                raise damaged_message_error()
            return field, begin, checksum_at
        at = begin + length
    return end, end, checksum_at


def _read_varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise damaged_message_error()


def _read_only(body: ByteArray) -> ByteArray:
    body.flags.writeable = False
    return body


# ---- header and body apart, for shared memory


class EncodedSlice(NamedTuple):
    """A frame slice for transfers that send header and body separately; `nbytes` is the size of the body."""

    header: bytes
    layouts: Sequence[Layout]
    buffers: list[Any]
    nbytes: int


def encode_slice(task_id: str, frame_slice: FrameSlice) -> EncodedSlice:
    """Encode a frame slice. The header omits its index, so that slices with equal layouts have equal headers."""
    frame = frame_slice.frame
    layouts, buffers, total = lay_out(frame.columns, frame_slice.start, frame_slice.start + frame_slice.count)
    if frame.failure is not None:
        reply = frame_pb2.ReadReply(header=_header_of(task_id, replace(frame_slice, index=0), layouts), total=total)
        return EncodedSlice(reply.SerializeToString(), layouts, buffers, total)
    head = _cached_header(
        task_id, frame_slice.incarnation, frame_slice.count, structure_to_json(frame.structure), tuple(layouts), total
    )
    return EncodedSlice(head, layouts, buffers, total)


@lru_cache(maxsize=_CACHED_HEADERS)
def _cached_header(
    task_id: str, incarnation: int, count: int, structure: str, layouts: tuple[Layout, ...], total: int
) -> bytes:
    header = frame_pb2.FrameHeader(
        task_id=task_id, incarnation=incarnation, count=count, structure=structure, columns=_columns(layouts)
    )
    return frame_pb2.ReadReply(header=header, total=total).SerializeToString()


def decode_slice(header: bytes, index: int, body: ByteArray) -> FrameSlice:
    """Decode a frame slice that `encode_slice` encoded; `index` is the index of its first element in the sequence.

    Raises:
        DataLossError: header and body do not fit together.
        FailedPreconditionError: its dtype needs a package that is not installed here.
    """
    try:
        form = _parse_header_cached(header) if len(header) < _MAX_CACHED_HEADER_BYTES else _parse_header(header)
        if form.total != len(body):
            raise damaged_message_error()
        return form.frame_slice(index, body)
    except (DataLossError, FailedPreconditionError):
        raise
    except Exception as error:  # damaged input can make any decoding step fail
        raise limit_error(error) or damaged_message_error() from error


def _parse_header(header: bytes) -> _ParsedHeader:
    reply = frame_pb2.ReadReply.FromString(header)
    _check_header(reply)
    return _parse(reply.header, reply.total)


_parse_header_cached = lru_cache(maxsize=_CACHED_HEADERS)(_parse_header)

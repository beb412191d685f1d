"""Frames to messages and back.

The messages are protobuf; the large field is written and read past the library, which would copy it several times.

A message carries at most `PART_BYTES` bytes of a frame's body, because larger ones are slower and hold more memory. A frame
that fits is encoded by one join of its header and its buffers, and decoded as views of the message; a larger one comes
in parts that are copied into one fresh array. Where a reader's `Choice` says so, each part is compressed by itself, and
a message carries as many as have room in it; a checksum, on request, covers all of a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from dsnb.elements.columns import bytes_of, coalesce_buffers, join_bytes, lay_out
from dsnb.elements.compression import CODECS, Codec, load_codec
from dsnb.elements.varint import varint
from dsnb.errors import DataLossError, FailedPreconditionError
from dsnb.system_limits import limit_error
from dsnb.wire.proto import frame_pb2
from dsnb.wire.transfer.compression_policy import MIN_BYTES, CompressionPolicy, probe
from dsnb.wire.transfer.headers import ByteArray, check_header, damaged_message_error, frame_slice_of, header_of
from dsnb.wire.transfer.protocol import FrameSlice

PART_BYTES = 1 << 20
"""Most bytes of body in one message; measured best between 256 KB and 8 MB."""

_MAX_BLOCKS = 16
"""Of one message: a reader unpacks the first ones while the next are packed."""

_TAG_PADDING = b"\x1a"  # field 3, length-delimited
_TAG_CHECKSUM = b"\x51"  # field 10, fixed 64 bits
_TAG_DATA = b"\x7a"  # field 15, length-delimited
_TAG_JOINED = b"\x82\x01"  # field 16, length-delimited
_CHECKSUM_FIELD = 10
_DATA_FIELD = 15


class FrameSliceEncoder:
    """Makes the messages of one read.

    Args:
        task_id: Goes into the headers.
        keep: Keep what is encoded with its frame, for the next reader that wants the same form: of whole frames, in one
            message or compressed.
        compression: What to compress with; None for nothing.
        checksum: Whether each message carries one.
    """

    def __init__(
        self, task_id: str, *, keep: bool = False, compression: CompressionPolicy | None = None, checksum: bool = False
    ) -> None:
        self._task_id = task_id
        self._keep = keep
        self._compression = compression
        self._checksum = checksum

    def encode(self, frame_slice: FrameSlice) -> Iterator[bytes]:
        """The messages that carry a piece."""
        frame = frame_slice.frame
        whole = frame_slice.count == frame.count
        kept = frame.encoded.get(self._encoding_key()) if whole and frame.encoded is not None else None
        if kept is not None:
            return iter(kept)
        layouts, buffers, total = lay_out(frame.columns, frame_slice.start, frame_slice.start + frame_slice.count)
        if self._compression is not None and self._compression.wants_sample(total):
            self._compression.decide(probe(self._compression.codecs, buffers, total))
        head = frame_pb2.ReadReply(header=header_of(self._task_id, frame_slice, layouts), total=total)
        messages = self._body_messages(head, buffers, total)
        form = self._encoding_key()
        if not (whole and self._keep and (form[0] or total <= PART_BYTES)):
            return messages
        taken = tuple(messages)
        moves = bool(total) and len(taken) == 1 and not form[0] and frame.movable
        extra_bytes = sum(map(len, taken)) - (total if moves else 0)
        if frame.reserve_encoded_bytes is None or frame.reserve_encoded_bytes(extra_bytes):
            frame.encoded = {**(frame.encoded or {}), form: taken}  # a new dict: other threads look into the old one
            if moves:
                frame.move_into(layouts, np.frombuffer(taken[0], np.uint8)[-total:])
        return iter(taken)

    def encode_notice(self, reply: frame_pb2.ReadReply) -> bytes:
        """A message without elements."""
        return self._message(reply, [], 0)

    def _encoding_key(self) -> tuple[str, bool]:
        """How a frame is encoded at present: by which codec, and whether with checksums."""
        return self._compression.codec if self._compression is not None else "", self._checksum

    def _body_messages(self, head: frame_pb2.ReadReply, buffers: Sequence[Any], total: int) -> Iterator[bytes]:
        portions: Iterator[Sequence[Any]] = iter([buffers]) if total <= PART_BYTES else _split_buffers(buffers)
        name = self._compression.codec if self._compression is not None else ""
        if name and total >= MIN_BYTES:
            yield from self._compressed_messages(head, portions, load_codec(name))
            return
        for portion in portions:
            yield self._message(head, portion, sum(map(len, portion)) if total > PART_BYTES else total)
            head = frame_pb2.ReadReply()

    def _compressed_messages(
        self, head: frame_pb2.ReadReply, portions: Iterator[Sequence[Any]], codec: Codec
    ) -> Iterator[bytes]:
        """The messages of a frame that is compressed, each with as many portions as have room in it."""
        blocks: list[Any] = []
        nbytes = raw = 0
        for portion in portions:
            whole = bytes_of(portion[0]) if len(portion) == 1 else join_bytes(portion)
            block: Any = codec.compress(whole)
            if len(block) >= len(whole):
                block = whole
            if blocks and (nbytes + len(block) > PART_BYTES or len(blocks) == _MAX_BLOCKS):
                yield self._compressed_message(head, blocks, nbytes, raw, codec.name)
                head, blocks, nbytes, raw = frame_pb2.ReadReply(), [], 0, 0
            blocks.append(block)
            nbytes += len(block)
            raw += len(whole)
        yield self._compressed_message(head, blocks, nbytes, raw, codec.name)

    def _compressed_message(
        self, head: frame_pb2.ReadReply, blocks: Sequence[Any], nbytes: int, raw: int, codec: str
    ) -> bytes:
        if nbytes < raw:
            head.codec, head.raw_bytes = codec, raw
            head.blocks.extend(map(len, blocks) if len(blocks) > 1 else ())
        return self._message(head, blocks, nbytes)

    def _message(self, reply: frame_pb2.ReadReply, buffers: Sequence[Any], nbytes: int) -> bytes:
        head = reply.SerializeToString()
        if self._checksum:
            buffers = coalesce_buffers(buffers)
            head += _TAG_CHECKSUM + _checksum(head, buffers).to_bytes(8, "little")
        return join_bytes([_prefix(head, nbytes), *buffers])


def _checksum(head: bytes | memoryview, buffers: Sequence[Any]) -> int:
    digest = xxhash.xxh3_64(head)
    for data in map(bytes_of, buffers):
        digest.update(data)
    return digest.intdigest()


def _prefix(head: bytes, nbytes: int) -> bytes:
    """Everything in front of the data: the data begins at a multiple of 16, so views of it are aligned."""
    if not nbytes:
        return head
    data = _TAG_DATA + varint(nbytes)
    gap = -(len(head) + 2 + len(data)) % 16
    return head + _TAG_PADDING + bytes([gap]) + bytes(gap) + data


def _split_buffers(buffers: Sequence[Any]) -> Iterator[list[memoryview]]:
    """The buffers' bytes in portions of at most `PART_BYTES`."""
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


def join_messages(messages: Sequence[bytes]) -> bytes:
    """One message for several."""
    if len(messages) == 1:
        return messages[0]
    return join_bytes([part for message in messages for part in (_TAG_JOINED + varint(len(message)), message)])


def split_messages(message: bytes) -> Iterator[bytes]:
    """The messages that `together` put into one. Copies, so that who keeps an element does not keep its neighbours.

    Raises:
        DataLossError: it is not what `together` makes.
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
        # Of bytes: NumPy would let go of the interpreter meanwhile, which others then hold for long.
        yield message[begin : begin + length]
        at = begin + length


class FrameSliceDecoder:
    """Puts the messages of one read together again.

    Args:
        checksum: Whether each message must carry one; one that is there is always looked at.
    """

    def __init__(self, *, checksum: bool = False) -> None:
        self._checksum = checksum
        self._header: frame_pb2.FrameHeader | None = None
        self._body: ByteArray | None = None
        self._filled = 0

    def feed(self, message: bytes) -> FrameSlice | frame_pb2.ReadReply | None:
        """Take one message.

        Returns:
            A piece when one is complete, the message itself when it is a notice (end, recall, progress), else None.

        Raises:
            DataLossError: the message is not what a worker sends.
            FailedPreconditionError: its elements have a dtype, or a codec, that needs a package which is not here.
        """
        try:
            return self._decode(message)
        except (DataLossError, FailedPreconditionError):
            raise
        except Exception as error:  # damage can show anywhere in what reads the message
            raise limit_error(error) or damaged_message_error() from error

    def _decode(self, message: bytes) -> FrameSlice | frame_pb2.ReadReply | None:
        head_end, data_at, checksum_at = _find_fields(message)
        head = frame_pb2.ReadReply.FromString(message[:head_end])
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
            if not (head.end or head.recalled or head.progress):
                raise damaged_message_error()
            return head
        check_header(head)
        parts = _decompressed(head, data, head.total)
        if not head.blocks:
            (data,) = parts
            if len(data) == head.total:
                # Another encoder may leave the padding out; then the data are moved to where views are aligned.
                return frame_slice_of(head.header, _read_only(data.copy()) if data_at % 16 and not head.codec else data)
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
        return frame_slice_of(header, _read_only(body))


def _decompressed(head: frame_pb2.ReadReply, data: ByteArray, room: int) -> Iterator[ByteArray]:
    """The data of one message as they were before compression, block by block."""
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


def _find_fields(message: bytes) -> tuple[int, int, int | None]:
    """Where the field of the data begins, where the data do, and where the checksum's field begins, if there is one.

    Walks over the few fields in front of the data.
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


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
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

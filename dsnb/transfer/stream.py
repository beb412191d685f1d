"""What the transfers that send messages over a stream (`grpc`, `tcp`) share.

At the worker, `StreamSink` queues what a task delivers, and the thread that sends asks it for messages;
`handle_requests` handles what the reader sends. At the client, `deliver_notice` passes decoded notices to the client's
sink.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from queue import Empty, SimpleQueue
from time import perf_counter_ns

import msgspec

from dsnb.elements.compression import CODECS, NONE, installed_codecs, missing_codec_error
from dsnb.processes import host_id
from dsnb.transfer.coalescing import SMALL_BYTES, Coalescer
from dsnb.transfer.compression_policy import CompressionPolicy
from dsnb.transfer.frame_codec import EncodedMessage, FrameSliceEncoder
from dsnb.transfer.protocol import FrameSlice, LinkStats, ReadHandle, Sink
from dsnb.wire.field_groups import shared
from dsnb.wire.messages import ReadRequest
from dsnb.wire.proto import frame_pb2
from dsnb.wire.server import until_broken
from dsnb.wire.unit_mark import UnitMark

# ---- the worker's end


class _Signal(Enum):
    RECHECK = "check again whether held-back messages can be sent"


class _Batch(msgspec.Struct):
    """Messages to be sent together.

    Attributes:
        messages: The messages, in order.
        nbytes: Their size in all.
        count: How many small elements they contain.
        first_at_ns: When the first one was added, by `perf_counter_ns`.
    """

    messages: list[EncodedMessage] = msgspec.field(default_factory=list)
    nbytes: int = 0
    count: int = 0
    first_at_ns: int = 0

    def add(self, message: EncodedMessage) -> None:
        if not self.messages:
            self.first_at_ns = perf_counter_ns()
        self.messages.append(message)
        self.nbytes += message.nbytes

    def clear(self) -> None:
        self.messages.clear()
        self.nbytes = self.count = 0


class StreamSink(Sink):
    """Queues the frame slices and notices of a read for the thread that sends them.

    Args:
        compression: The reader's compression policy.
        link_stats: Statistics of the read, which show the policy's decisions.
        received: How many elements the reader had received when it opened the read.
    """

    def __init__(self, compression: CompressionPolicy, link_stats: LinkStats, received: int = 0) -> None:
        self._compression = compression
        self._link_stats = link_stats
        link_stats.compression = compression.why
        self.items: SimpleQueue[FrameSlice | frame_pb2.ReadReply | Exception | _Signal | None] = SimpleQueue()
        self._coalescer = Coalescer(received)
        self._coalescer_lock = threading.Lock()  # protects `_coalescer` and `_is_holding`
        self._is_holding = False
        self._ended = False

    @property
    def connected(self) -> bool:
        return not self._ended

    def on_stream_ended(self) -> None:
        """Note that the stream has ended, and unblock `send`."""
        self._ended = True
        self.items.put(None)

    def send(self, encoder: FrameSliceEncoder) -> Iterator[Sequence[EncodedMessage]]:
        """Yield messages to be sent together until the read ends.

        The caller asks for the next ones when the network has accepted the last: the time in between tells how fast
        the network is. It must not keep what was yielded.

        Raises:
            Exception: the error that ends the read; the reader must be told.
        """
        waiting = _Batch()
        while (item := self._next(waiting)) is not None:
            if isinstance(item, Exception):
                if waiting.messages:
                    yield from self._flush(waiting)
                raise item
            count = item.count if isinstance(item, FrameSlice) else 0
            small = isinstance(item, _Signal) or (isinstance(item, FrameSlice) and item.nbytes < SMALL_BYTES)
            waiting.count += count if small else 0
            for message in _encode(encoder, item):
                waiting.add(message)
                if not small and self._should_flush(waiting, small=False):
                    yield from self._flush(waiting)
            if not small:
                self._coalescer.record_large_send(count)
            elif waiting.messages and self._should_flush(waiting, small=True) and not self._hold_seconds(waiting):
                yield from self._flush(waiting)

    def _next(self, waiting: _Batch) -> FrameSlice | frame_pb2.ReadReply | Exception | _Signal | None:
        """Wait for the next item; if messages are held back, at most until they must be sent."""
        try:
            return self.items.get(timeout=(self._hold_seconds(waiting) or 0.001) if waiting.messages else None)
        except Empty:
            return _Signal.RECHECK

    def _should_flush(self, waiting: _Batch, *, small: bool) -> bool:
        """Whether to send the waiting messages: nothing else is ready, or they are large enough."""
        return self.items.empty() or waiting.nbytes >= self._coalescer.max_bytes(small=small)

    def _hold_seconds(self, waiting: _Batch) -> float:
        """Seconds for which the waiting messages may be held back for more; an acknowledgement may end it earlier."""
        with self._coalescer_lock:
            seconds = self._coalescer.hold_seconds(waiting.nbytes, waiting.first_at_ns / 1e9, perf_counter_ns() / 1e9)
            self._is_holding = seconds > 0
        return seconds

    def _flush(self, waiting: _Batch) -> Iterator[Sequence[EncodedMessage]]:
        began, nbytes = perf_counter_ns(), waiting.nbytes
        with self._coalescer_lock:
            self._coalescer.record_send(waiting.count, began / 1e9)
        yield waiting.messages
        seconds = (perf_counter_ns() - began) / 1e9
        self._compression.record_sent(nbytes, seconds)
        self._coalescer.record_send_time(nbytes, seconds)
        self._link_stats.compression = self._compression.why
        waiting.clear()

    def record_acknowledgement(self, received: int, consumed: int) -> None:
        """Record an acknowledgement, and wake the sender if it holds messages back. Called on the receiving thread."""
        with self._coalescer_lock:
            self._coalescer.record_acknowledgement(received, consumed, perf_counter_ns() / 1e9)
            if self._is_holding:
                self._is_holding = False
                self.items.put(_Signal.RECHECK)

    def deliver(self, frame_slice: FrameSlice) -> None:
        self.items.put(frame_slice)

    def note_files(self, states: str) -> None:
        self.items.put(frame_pb2.ReadReply(files=states))

    def end(self) -> None:
        self.items.put(frame_pb2.ReadReply(end=True))

    def recalled(self, granted: int) -> None:
        self.items.put(frame_pb2.ReadReply(recalled=True, granted=granted))

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        self.items.put(frame_pb2.ReadReply(progress=True, complete_rounds=complete_rounds, oldest_round=oldest_round))

    def note_unit(self, mark: UnitMark) -> None:
        message = frame_pb2.UnitMark(**shared(UnitMark, mark))
        self.items.put(frame_pb2.ReadReply(unit_mark=message))

    def fail(self, error: Exception) -> None:
        self.items.put(error)


def slice_encoder(request: ReadRequest, compression: CompressionPolicy, *, whole: bool = False) -> FrameSliceEncoder:
    """The encoder for one reader.

    Args:
        request: The first message of the read.
        compression: The reader's compression policy.
        whole: See `FrameSliceEncoder`.
    """
    keep = bool(request.trainer_id)
    return FrameSliceEncoder(
        request.task_id, keep=keep, compression=compression, checksum=request.checksum, whole=whole
    )


def _encode(encoder: FrameSliceEncoder, item: FrameSlice | frame_pb2.ReadReply | _Signal) -> Iterable[EncodedMessage]:
    if isinstance(item, FrameSlice):
        return encoder.messages(item)
    return () if isinstance(item, _Signal) else (encoder.encode_notice(item),)


def compression_policy(request: ReadRequest, *, local_peer: bool) -> CompressionPolicy:
    """The compression policy for one reader.

    Args:
        request: The first message of the read.
        local_peer: Whether the reader's address is one of this host's. Counts if the reader does not name its host.

    Raises:
        FailedPreconditionError: the requested codec is not installed at the worker.
    """
    if request.compression in CODECS and request.compression not in installed_codecs():
        raise missing_codec_error(request.compression, "at the worker")
    usable = [name for name in installed_codecs() if name in request.codecs]
    # On one host the reader competes with this worker for processors, and no network lies between them.
    same_host = request.host_id == host_id() if request.host_id else local_peer
    return CompressionPolicy(request.compression or NONE, usable, same_host=same_host)


def handle_requests(requests: Iterator[ReadRequest], handle: ReadHandle, sink: StreamSink) -> bool:
    """Handle a reader's messages until it leaves or its connection breaks.

    A broken connection does not end the client's claim: elements that were sent but not consumed are kept for its
    reconnection, until the dispatcher releases the client.

    Returns:
        False if a message could not be handled, which is a bug: the sink then has the error for the reader.
    """
    handled = True
    try:
        for request in until_broken(requests):
            if request.leave:
                handle.leave(request.consumed)
                break
            if request.recall:
                handle.recall()
            else:
                handle.credit(request.granted, request.consumed, request.max_bytes, request.received, request.dequeued)
                # After `credit`, so that elements which the new credit allows are joined with those held back.
                sink.record_acknowledgement(request.received, max(request.consumed, request.dequeued))
    except Exception as error:  # noqa: BLE001 - a bug: without an error the reader would wait for ever
        sink.fail(error)
        handled = False
    sink.items.put(None)
    return handled


# ---- the client's end


def deliver_notice(notice: frame_pb2.ReadReply, sink: Sink) -> None:
    """Pass a decoded message without elements to a client's sink."""
    if notice.files:
        sink.note_files(notice.files)
    elif notice.end:
        sink.end()
    elif notice.progress:
        sink.progress(notice.complete_rounds, notice.oldest_round)
    elif notice.HasField("unit_mark"):
        sink.note_unit(UnitMark(**shared(UnitMark, notice.unit_mark)))
    elif notice.recalled:
        sink.recalled(notice.granted)

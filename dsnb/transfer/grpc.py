"""The gRPC transfer, both ends: one bidirectional stream for each (client, task).

The worker's end (`ReadService`) opens the task with a sink that sends frame slices on the stream. The client's end
(`GrpcEndpoint`) decodes the stream into calls of the client's sink. A stream that breaks ends the read: the sink gets
the error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Final

import grpc
import msgspec

from dsnb.elements.compression import CODECS, NONE, installed_codecs, missing_codec_error
from dsnb.errors import DsnbError, UnavailableError
from dsnb.processes import host_id
from dsnb.transfer.admission import Admission
from dsnb.transfer.coalescing import SMALL_BYTES, Coalescer
from dsnb.transfer.compression_policy import CompressionPolicy
from dsnb.transfer.frame_codec import FrameSliceDecoder, FrameSliceEncoder, join_messages, split_messages
from dsnb.transfer.protocol import FrameSlice, LinkStats, ReadHandle, Sink, TaskServer, Transfer
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.field_groups import shared
from dsnb.wire.grpc_errors import as_read_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.proto import frame_pb2
from dsnb.wire.server import is_local_peer, until_broken
from dsnb.wire.threads import OnDemandExecutor
from dsnb.wire.unit_mark import UnitMark

GRPC: Final = Transfer(name="grpc", over_network=True, carries_checksum=True)

# ---- the worker's end


class _Signal(Enum):
    RECHECK = "check again whether held-back messages can be sent"


class _Batch(msgspec.Struct):
    """Messages to be joined into one.

    Attributes:
        messages: The messages, in order.
        nbytes: Their size in all.
        count: How many small elements they contain.
        first_at_ns: When the first one was added, by `perf_counter_ns`.
    """

    messages: list[bytes] = msgspec.field(default_factory=list)
    nbytes: int = 0
    count: int = 0
    first_at_ns: int = 0

    def add(self, message: bytes) -> None:
        if not self.messages:
            self.first_at_ns = perf_counter_ns()
        self.messages.append(message)
        self.nbytes += len(message)

    def clear(self) -> None:
        self.messages.clear()
        self.nbytes = self.count = 0


class _StreamSink(Sink):
    """Queues the frame slices and notices of a read for the gRPC thread that sends them."""

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

    def on_call_ended(self) -> None:
        """Note that the call has ended, and unblock `send`."""
        self._ended = True
        self.items.put(None)

    def send(self, encoder: FrameSliceEncoder) -> Iterator[bytes]:
        """Yield messages until the read ends. gRPC asks for the next one when it has accepted the last: timed."""
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

    def _flush(self, waiting: _Batch) -> Iterator[bytes]:
        began, nbytes = perf_counter_ns(), waiting.nbytes
        with self._coalescer_lock:
            self._coalescer.record_send(waiting.count, began / 1e9)
        yield join_messages(waiting.messages)
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


class ReadService:
    """Serves `Read` calls to a worker.

    Args:
        worker: The worker.
        admission: Limits the number of concurrent readers.
    """

    def __init__(self, worker: TaskServer, admission: Admission) -> None:
        self._worker = worker
        self._admission = admission
        self._receive_executor = OnDemandExecutor("dsnb-credit")

    def stop(self) -> None:
        self._receive_executor.shutdown()

    def read(self, requests: Iterator[ReadRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._admission:
            yield from self._serve(requests, context)

    def _serve(self, requests: Iterator[ReadRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(requests)
        choice = _compression_policy(first, context)
        link_stats = LinkStats(transfer=GRPC.name, reason=first.why)
        sink = _StreamSink(choice, link_stats, first.received)
        reading = self._worker.open(first, sink, link_stats)
        if not context.add_callback(sink.on_call_ended):  # it has ended already
            sink.on_call_ended()
        self._receive_executor.submit(_receive_requests, requests, reading, sink)
        encoder = FrameSliceEncoder(
            first.task_id, keep=bool(first.trainer_id), compression=choice, checksum=first.checksum
        )
        yield from sink.send(encoder)


def _encode(encoder: FrameSliceEncoder, item: FrameSlice | frame_pb2.ReadReply | _Signal) -> Iterable[bytes]:
    if isinstance(item, FrameSlice):
        return encoder.encode(item)
    return () if isinstance(item, _Signal) else (encoder.encode_notice(item),)


def _compression_policy(request: ReadRequest, context: grpc.ServicerContext) -> CompressionPolicy:
    """The compression policy for one reader.

    Raises:
        FailedPreconditionError: the requested codec is not installed at the worker.
    """
    if request.compression in CODECS and request.compression not in installed_codecs():
        raise missing_codec_error(request.compression, "at the worker")
    usable = [name for name in installed_codecs() if name in request.codecs]
    return CompressionPolicy(request.compression or NONE, usable, same_host=_on_same_host(request, context))


def _on_same_host(request: ReadRequest, context: grpc.ServicerContext) -> bool:
    """Whether the reader competes with this worker for processors, and no network lies between them."""
    return request.host_id == host_id() if request.host_id else is_local_peer(context.peer())


def _receive_requests(requests: Iterator[ReadRequest], handle: ReadHandle, sink: _StreamSink) -> None:
    """Handle a reader's messages until it leaves or its connection breaks.

    A broken connection does not end the client's claim: elements that were sent but not consumed are kept for its
    reconnection, until the dispatcher releases the client.
    """
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
    sink.items.put(None)


# ---- the client's end


class GrpcEndpoint:
    """A worker, reached by gRPC.

    Args:
        address: Where it listens.
        token: The service's token.
        worker_uid: The worker's uid, which it must prove to be its instance id.
    """

    transfer = GRPC

    def __init__(self, address: str, token: str, worker_uid: str) -> None:
        self._key = address, token, worker_uid

    def open(self, request: ReadRequest, sink: Sink) -> ReadHandle:
        return _GrpcReadHandle(open_channel(*self._key), request, sink)


class _GrpcReadHandle(ReadHandle):
    """One read over a gRPC stream, with a thread that receives. When the stream breaks, the sink gets the error."""

    def __init__(self, channel: Channel, request: ReadRequest, sink: Sink) -> None:
        self._channel = channel
        self._sink = sink
        self._checksum = request.checksum
        self._left = threading.Event()
        self._requests: SimpleQueue[ReadRequest | None] = SimpleQueue()
        self._requests.put(request)
        try:
            self._call = channel.stream(READ, _until_none(self._requests), on_proof=sink.accepted)
        except BaseException:
            channel.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"dsnb-read-{request.task_id}", daemon=True)
        self._thread.start()

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        self._requests.put(
            ReadRequest(granted=granted, consumed=consumed, max_bytes=max_bytes, received=received, dequeued=dequeued)
        )

    def recall(self) -> None:
        self._requests.put(ReadRequest(recall=True))

    def leave(self, consumed: int) -> None:
        if self._left.is_set():
            return
        self._left.set()
        self._requests.put(ReadRequest(leave=True, consumed=consumed))
        self._requests.put(None)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(2.0)  # the worker ends the call after it has handled the leave message
        if self._thread.is_alive():
            self._call.cancel()
            self._thread.join(0.5)

    def _run(self) -> None:
        error: Exception = UnavailableError(f"{self._channel.address} ended the read")
        try:
            self._receive()
        except DsnbError as failed:
            error = as_read_error(failed)
        finally:
            self._requests.put(None)
            self._call.cancel()
            self._channel.close()
        if not self._left.is_set():
            self._sink.fail(error)

    def _receive(self) -> None:
        decoder = FrameSliceDecoder(checksum=self._checksum)
        for message in chain.from_iterable(map(split_messages, self._call)):
            item = decoder.feed(message)
            if isinstance(item, FrameSlice):
                self._sink.deliver(item)
            elif item is not None and item.files:
                self._sink.note_files(item.files)
            elif item is not None and item.end:
                self._sink.end()
            elif item is not None and item.progress:
                self._sink.progress(item.complete_rounds, item.oldest_round)
            elif item is not None and item.HasField("unit_mark"):
                mark = item.unit_mark
                self._sink.note_unit(UnitMark(**shared(UnitMark, mark)))
            elif item is not None and item.recalled:
                self._sink.recalled(item.granted)


def _until_none(queue: SimpleQueue[ReadRequest | None]) -> Iterator[ReadRequest]:
    while (request := queue.get()) is not None:
        yield request

"""Hand-over by gRPC: one bidirectional stream for each (client, task), on both of its ends.

The worker's end (`ReadService`) is a sink whose pieces leave on the stream; the client's end (`GrpcEndpoint`) turns the
stream into calls of the reader's own sink, and opens it again when it breaks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import field
from enum import Enum
from itertools import chain
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Final

import grpc

from dsnb.dataclass import dataclass
from dsnb.elements.compression import CODECS, NONE, installed_codecs, missing_codec_error
from dsnb.errors import DsnbError, UnavailableError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.grpc_errors import as_read_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.proto import frame_pb2
from dsnb.wire.server import until_broken
from dsnb.wire.threads import OnDemandExecutor
from dsnb.wire.transfer.admission import Admission
from dsnb.wire.transfer.coalescing import SMALL_BYTES, Coalescer
from dsnb.wire.transfer.compression_policy import CompressionPolicy
from dsnb.wire.transfer.frame_codec import FrameSliceDecoder, FrameSliceEncoder, join_messages, split_messages
from dsnb.wire.transfer.protocol import Endpoint, FrameSlice, LinkStats, OpenRequest, ReadHandle, Sink

_SAME_HOST: Final = ("ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]", "unix:")
"""How gRPC names peers of this host."""

# ---- the worker's end


class _Signal(Enum):
    RECHECK = "what the reader said may let go what waits for it"


@dataclass(slots=True)
class _Batch:
    """Messages that go together, how many small elements are in them, and since when the first one waits (ns)."""

    messages: list[bytes] = field(default_factory=list)
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
    """Queues what a task delivers, for the thread that sends it."""

    def __init__(self, compression: CompressionPolicy, link_stats: LinkStats, received: int = 0) -> None:
        self._compression = compression
        self._link_stats = link_stats
        link_stats.compression = compression.why
        self.items: SimpleQueue[FrameSlice | frame_pb2.ReadReply | Exception | _Signal | None] = SimpleQueue()
        self._coalescer = Coalescer(received)
        self._coalescer_lock = threading.Lock()  # over the load, and whether the sender waits for news of it
        self._is_holding = False

    def send(self, encoder: FrameSliceEncoder) -> Iterator[bytes]:
        """What is to be sent, to its end; each message is timed until the next is asked for."""
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
        """The next item; what waits may be held for a time."""
        try:
            return self.items.get(timeout=(self._hold_seconds(waiting) or 0.001) if waiting.messages else None)
        except Empty:
            return _Signal.RECHECK

    def _should_flush(self, waiting: _Batch, *, small: bool) -> bool:
        """Whether nothing is there that should go together with what waits."""
        return self.items.empty() or waiting.nbytes >= self._coalescer.max_bytes(small=small)

    def _hold_seconds(self, waiting: _Batch) -> float:
        """Seconds that messages may wait for more; a word of the reader's ends that."""
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
        """Learn what has come to the reader, and to its user; from another thread than the sending one."""
        with self._coalescer_lock:
            self._coalescer.record_acknowledgement(received, consumed, perf_counter_ns() / 1e9)
            if self._is_holding:
                self._is_holding = False
                self.items.put(_Signal.RECHECK)

    def deliver(self, frame_slice: FrameSlice) -> None:
        self.items.put(frame_slice)

    def end(self) -> None:
        self.items.put(frame_pb2.ReadReply(end=True))

    def recalled(self, granted: int) -> None:
        self.items.put(frame_pb2.ReadReply(recalled=True, granted=granted))

    def progress(self, complete_rounds: int, oldest_round: int) -> None:
        self.items.put(frame_pb2.ReadReply(progress=True, complete_rounds=complete_rounds, oldest_round=oldest_round))

    def fail(self, error: Exception) -> None:
        self.items.put(error)


class ReadService:
    """Answers `Read` calls with what an endpoint delivers.

    Args:
        endpoint: The worker.
        admission: How many readers it serves.
    """

    def __init__(self, endpoint: Endpoint, admission: Admission) -> None:
        self._endpoint = endpoint
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
        opening = OpenRequest.from_message(first, "grpc")
        sink = _StreamSink(choice, opening.link_stats, opening.received)
        reading = self._endpoint.open(opening, sink)
        context.add_callback(lambda: sink.items.put(None))  # the client is gone, politely or not
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
    """What this reader's frames are compressed with.

    Raises:
        FailedPreconditionError: a codec was named that is not installed here.
    """
    if request.compression in CODECS and request.compression not in installed_codecs():
        raise missing_codec_error(request.compression, "at the worker")
    usable = [name for name in installed_codecs() if name in request.codecs]
    return CompressionPolicy(request.compression or NONE, usable, same_host=context.peer().startswith(_SAME_HOST))


def _receive_requests(requests: Iterator[ReadRequest], handle: ReadHandle, sink: _StreamSink) -> None:
    """Pass a reader's messages on until it leaves or its connection breaks.

    A connection that breaks is no leaving: what was sent and not consumed waits for the client to come back, until the
    dispatcher says that it is gone.
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
                # Afterwards, so that what the credit lets go leaves together with what waits.
                sink.record_acknowledgement(request.received, max(request.consumed, request.dequeued))
    except Exception as error:  # noqa: BLE001 - a bug: the reader must not wait for what it will not get
        sink.fail(error)
    sink.items.put(None)


# ---- the client's end


class GrpcEndpoint:
    """A worker that is reached by gRPC.

    Args:
        address: Where it listens.
        token: The service's.
        worker_uid: Which worker it is to be, as the dispatcher tells.
    """

    def __init__(self, address: str, token: str, worker_uid: str) -> None:
        self._key = address, token, worker_uid

    def open(self, open_request: OpenRequest, sink: Sink) -> ReadHandle:
        return _GrpcReadHandle(open_channel(*self._key), open_request, sink)


class _GrpcReadHandle(ReadHandle):
    """One read over a stream, with a thread that takes the replies. One that breaks is over; its sink learns of it."""

    def __init__(self, channel: Channel, open_request: OpenRequest, sink: Sink) -> None:
        self._channel = channel
        self._sink = sink
        self._checksum = open_request.checksum
        self._left = threading.Event()
        self._requests: SimpleQueue[ReadRequest | None] = SimpleQueue()
        self._requests.put(open_request.to_message())
        try:
            self._call = channel.stream(READ, _until_none(self._requests))
        except BaseException:
            channel.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"dsnb-read-{open_request.task_id}", daemon=True)
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
        self._thread.join(2.0)  # the worker ends the call when it has taken the leaving in
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
            elif item is not None and item.end:
                self._sink.end()
            elif item is not None and item.progress:
                self._sink.progress(item.complete_rounds, item.oldest_round)
            elif item is not None and item.recalled:
                self._sink.recalled(item.granted)


def _until_none(queue: SimpleQueue[ReadRequest | None]) -> Iterator[ReadRequest]:
    while (request := queue.get()) is not None:
        yield request

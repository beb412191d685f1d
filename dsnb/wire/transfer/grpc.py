"""Hand-over by gRPC: one bidirectional stream for each (client, task), on both of its ends.

The worker's end (`ReadService`) is a sink whose pieces leave on the stream; the client's end (`GrpcEndpoint`) turns the
stream into calls of the reader's own sink, and opens it again when it breaks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Final

import grpc

from dsnb.elements.compression import CODECS, NONE, installed, missing
from dsnb.errors import DsnbError, UnavailableError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.proto import frame_pb2
from dsnb.wire.server import until_broken
from dsnb.wire.status import end_of_read, error_from
from dsnb.wire.threads import OnDemandExecutor
from dsnb.wire.transfer.admission import Admission
from dsnb.wire.transfer.choice import Choice
from dsnb.wire.transfer.encoding import PieceDecoder, PieceEncoder, apart, together
from dsnb.wire.transfer.handover import Endpoint, Link, Opening, Piece, Reading, Sink

_SAME_HOST: Final = ("ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]", "unix:")
"""How gRPC names peers of this host."""

_TOGETHER_BYTES: Final = 4 << 20
_SLOW_S: Final = 0.005
_AT_MOST_S: Final = 0.05

# ---- the worker's end


class Load:
    """How much is sent to one reader at once, by how long it took for what was sent before. A pure core.

    A reader that shares its interpreter with a busy loop waits some turns for each message, 5 ms each, whatever it
    weighs: what waits for it goes together then. Not over a slow link, where the first element would come later.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._seconds = self._mean = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        """Learn how long a message took."""
        self._seconds += (seconds - self._seconds) / 4
        self._mean += (nbytes - self._mean) / 4
        late = self._seconds > _SLOW_S
        self.nbytes = min(_TOGETHER_BYTES, int(self._mean / self._seconds * _AT_MOST_S)) if late else 0


class _StreamSink:
    """Queues what a task delivers, for the thread that sends it."""

    def __init__(self, choice: Choice, link: Link) -> None:
        self._choice = choice
        self._link = link
        link.compression = choice.why
        self.items: SimpleQueue[Piece | frame_pb2.ReadReply | Exception | None] = SimpleQueue()

    def send(self, encoder: PieceEncoder) -> Iterator[bytes]:
        """What is to be sent, to its end; each message is timed until the next is asked for."""
        load = Load()
        waiting: list[bytes] = []
        for message in self._messages(encoder):
            if isinstance(message, bytes):
                waiting.append(message)
                if sum(map(len, waiting)) < load.nbytes and not self.items.empty():
                    continue
            if waiting:
                began, nbytes = perf_counter_ns(), sum(map(len, waiting))
                yield together(waiting)
                seconds = (perf_counter_ns() - began) / 1e9
                self._choice.note_sent(nbytes, seconds)
                load.note(nbytes, seconds)
                waiting.clear()
            if isinstance(message, Exception):
                raise message
            self._link.compression = self._choice.why

    def _messages(self, encoder: PieceEncoder) -> Iterator[bytes | Exception]:
        while (item := self.items.get()) is not None:
            if isinstance(item, Piece):
                yield from encoder.encode(item)
            elif isinstance(item, Exception):
                yield item
            else:
                yield encoder.notice(item)

    def deliver(self, piece: Piece) -> None:
        self.items.put(piece)

    def end(self) -> None:
        self.items.put(frame_pb2.ReadReply(end=True))

    def recalled(self, granted: int) -> None:
        self.items.put(frame_pb2.ReadReply(recalled=True, granted=granted))

    def progress(self, whole: int, base: int) -> None:
        self.items.put(frame_pb2.ReadReply(progress=True, whole=whole, base=base))

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
        self._listeners = OnDemandExecutor("dsnb-credit")

    def stop(self) -> None:
        self._listeners.shutdown()

    def read(self, requests: Iterator[ReadRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._admission:
            yield from self._serve(requests, context)

    def _serve(self, requests: Iterator[ReadRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(requests)
        choice = _choice(first, context)
        opening = Opening.of_request(first, "grpc")
        sink = _StreamSink(choice, opening.link)
        reading = self._endpoint.open(opening, sink)
        context.add_callback(lambda: sink.items.put(None))  # the client is gone, politely or not
        self._listeners.submit(_listen, requests, reading, sink)
        encoder = PieceEncoder(first.task_id, keep=bool(first.trainer_id), choice=choice, checksum=first.checksum)
        yield from sink.send(encoder)


def _choice(request: ReadRequest, context: grpc.ServicerContext) -> Choice:
    """What this reader's frames are compressed with.

    Raises:
        FailedPreconditionError: a codec was named that is not installed here.
    """
    if request.compression in CODECS and request.compression not in installed():
        raise missing(request.compression, "at the worker")
    usable = [name for name in installed() if name in request.codecs]
    return Choice(request.compression or NONE, usable, same_host=context.peer().startswith(_SAME_HOST))


def _listen(requests: Iterator[ReadRequest], reading: Reading, sink: _StreamSink) -> None:
    """Pass a reader's messages on until it leaves or its connection breaks.

    A connection that breaks is no leaving: what was sent and not consumed waits for the client to come back, until the
    dispatcher says that it is gone.
    """
    try:
        for request in until_broken(requests):
            if request.leave:
                reading.leave(request.consumed)
                break
            if request.recall:
                reading.recall()
            else:
                reading.credit(request.granted, request.consumed, request.max_bytes, request.received)
    except Exception as error:  # noqa: BLE001 - a bug: the reader must not wait for what it will not get
        sink.fail(error)
    sink.items.put(None)


# ---- the client's end


class GrpcEndpoint:
    """A worker that is reached by gRPC."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._token = token

    def open(self, opening: Opening, sink: Sink) -> Reading:
        return _GrpcReading(open_channel(self._address, self._token), opening, sink)


class _GrpcReading:
    """One read over a stream, with a thread that takes the replies. One that breaks is over; its sink learns of it."""

    def __init__(self, channel: Channel, opening: Opening, sink: Sink) -> None:
        self._channel = channel
        self._sink = sink
        self._checksum = opening.checksum
        self._left = threading.Event()
        self._requests: SimpleQueue[ReadRequest | None] = SimpleQueue()
        self._requests.put(opening.request())
        self._call = channel.stream(READ, _until_none(self._requests))
        self._thread = threading.Thread(target=self._run, name=f"dsnb-read-{opening.task_id}", daemon=True)
        self._thread.start()

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0) -> None:
        self._requests.put(ReadRequest(granted=granted, consumed=consumed, max_bytes=max_bytes, received=received))

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
            self._take()
        except grpc.RpcError as failed:
            error = end_of_read(error_from(failed, self._channel.address))
        except (DsnbError, ValueError) as failed:  # a damaged message, or the channel was closed
            error = failed
        finally:
            self._requests.put(None)
            self._call.cancel()
            self._channel.close()
        if not self._left.is_set():
            self._sink.fail(error)

    def _take(self) -> None:
        decoder = PieceDecoder(checksum=self._checksum)
        for message in chain.from_iterable(map(apart, self._call)):
            item = decoder.feed(message)
            if isinstance(item, Piece):
                self._sink.deliver(item)
            elif item is not None and item.end:
                self._sink.end()
            elif item is not None and item.progress:
                self._sink.progress(item.whole, item.base)
            elif item is not None and item.recalled:
                self._sink.recalled(item.granted)


def _until_none(queue: SimpleQueue[ReadRequest | None]) -> Iterator[ReadRequest]:
    while (request := queue.get()) is not None:
        yield request

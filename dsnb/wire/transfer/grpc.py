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
from dsnb.elements.compression import CODECS, NONE, installed, missing
from dsnb.errors import DsnbError, UnavailableError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.proto import frame_pb2
from dsnb.wire.server import until_broken
from dsnb.wire.status import end_of_read
from dsnb.wire.threads import OnDemandExecutor
from dsnb.wire.transfer.admission import Admission
from dsnb.wire.transfer.choice import Choice
from dsnb.wire.transfer.encoding import PieceDecoder, PieceEncoder, apart, together
from dsnb.wire.transfer.handover import Endpoint, Link, Opening, Piece, Reading, Sink
from dsnb.wire.transfer.load import SMALL_BYTES, Load

_SAME_HOST: Final = ("ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]", "unix:")
"""How gRPC names peers of this host."""

# ---- the worker's end


class _Word(Enum):
    LOOK = "what the reader said may let go what waits for it"


@dataclass(slots=True)
class _Waiting:
    """Messages that go together, how many small elements are in them, and since when the first one waits (ns)."""

    messages: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    count: int = 0
    since: int = 0

    def add(self, message: bytes) -> None:
        if not self.messages:
            self.since = perf_counter_ns()
        self.messages.append(message)
        self.nbytes += len(message)

    def clear(self) -> None:
        self.messages.clear()
        self.nbytes = self.count = 0


class _StreamSink(Sink):
    """Queues what a task delivers, for the thread that sends it."""

    def __init__(self, choice: Choice, link: Link, received: int = 0) -> None:
        self._choice = choice
        self._link = link
        link.compression = choice.why
        self.items: SimpleQueue[Piece | frame_pb2.ReadReply | Exception | _Word | None] = SimpleQueue()
        self._load = Load(received)
        self._loading = threading.Lock()  # over the load, and whether the sender waits for news of it
        self._holding = False

    def send(self, encoder: PieceEncoder) -> Iterator[bytes]:
        """What is to be sent, to its end; each message is timed until the next is asked for."""
        waiting = _Waiting()
        while (item := self._next(waiting)) is not None:
            if isinstance(item, Exception):
                if waiting.messages:
                    yield from self._give(waiting)
                raise item
            count = item.count if isinstance(item, Piece) else 0
            small = isinstance(item, _Word) or (isinstance(item, Piece) and item.nbytes < SMALL_BYTES)
            waiting.count += count if small else 0
            for message in _messages(encoder, item):
                waiting.add(message)
                if not small and self._is_all(waiting, small=False):
                    yield from self._give(waiting)
            if not small:
                self._load.sends_large(count)
            elif waiting.messages and self._is_all(waiting, small=True) and not self._patience(waiting):
                yield from self._give(waiting)

    def _next(self, waiting: _Waiting) -> Piece | frame_pb2.ReadReply | Exception | _Word | None:
        """The next item; what waits may be held for a time."""
        try:
            return self.items.get(timeout=(self._patience(waiting) or 0.001) if waiting.messages else None)
        except Empty:
            return _Word.LOOK

    def _is_all(self, waiting: _Waiting, *, small: bool) -> bool:
        """Whether nothing is there that should go together with what waits."""
        return self.items.empty() or waiting.nbytes >= self._load.most_bytes(small=small)

    def _patience(self, waiting: _Waiting) -> float:
        """Seconds that messages may wait for more; a word of the reader's ends that."""
        with self._loading:
            seconds = self._load.patience(waiting.nbytes, waiting.since / 1e9, perf_counter_ns() / 1e9)
            self._holding = seconds > 0
        return seconds

    def _give(self, waiting: _Waiting) -> Iterator[bytes]:
        began, nbytes = perf_counter_ns(), waiting.nbytes
        with self._loading:
            self._load.sends(waiting.count, began / 1e9)
        yield together(waiting.messages)
        seconds = (perf_counter_ns() - began) / 1e9
        self._choice.note_sent(nbytes, seconds)
        self._load.note(nbytes, seconds)
        self._link.compression = self._choice.why
        waiting.clear()

    def heard(self, received: int, consumed: int) -> None:
        """Learn what has come to the reader, and to its user; from another thread than the sending one."""
        with self._loading:
            self._load.heard(received, consumed, perf_counter_ns() / 1e9)
            if self._holding:
                self._holding = False
                self.items.put(_Word.LOOK)

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
        sink = _StreamSink(choice, opening.link, opening.received)
        reading = self._endpoint.open(opening, sink)
        context.add_callback(lambda: sink.items.put(None))  # the client is gone, politely or not
        self._listeners.submit(_listen, requests, reading, sink)
        encoder = PieceEncoder(first.task_id, keep=bool(first.trainer_id), choice=choice, checksum=first.checksum)
        yield from sink.send(encoder)


def _messages(encoder: PieceEncoder, item: Piece | frame_pb2.ReadReply | _Word) -> Iterable[bytes]:
    if isinstance(item, Piece):
        return encoder.encode(item)
    return () if isinstance(item, _Word) else (encoder.notice(item),)


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
                reading.credit(request.granted, request.consumed, request.max_bytes, request.received, request.taken)
                # Afterwards, so that what the credit lets go leaves together with what waits.
                sink.heard(request.received, max(request.consumed, request.taken))
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

    def open(self, opening: Opening, sink: Sink) -> Reading:
        return _GrpcReading(open_channel(*self._key), opening, sink)


class _GrpcReading(Reading):
    """One read over a stream, with a thread that takes the replies. One that breaks is over; its sink learns of it."""

    def __init__(self, channel: Channel, opening: Opening, sink: Sink) -> None:
        self._channel = channel
        self._sink = sink
        self._checksum = opening.checksum
        self._left = threading.Event()
        self._requests: SimpleQueue[ReadRequest | None] = SimpleQueue()
        self._requests.put(opening.request())
        try:
            self._call = channel.stream(READ, _until_none(self._requests))
        except BaseException:
            channel.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"dsnb-read-{opening.task_id}", daemon=True)
        self._thread.start()

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0) -> None:
        self._requests.put(
            ReadRequest(granted=granted, consumed=consumed, max_bytes=max_bytes, received=received, taken=taken)
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
            self._take()
        except DsnbError as failed:
            error = end_of_read(failed)
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

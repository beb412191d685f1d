"""Hand-over by gRPC: one bidirectional stream for each (client, task), on both of its ends.

The worker's end (`ReadService`) is a sink whose pieces leave on the stream; the client's end (`GrpcEndpoint`) turns the
stream into calls of the reader's own sink, and opens it again when it breaks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import grpc

from dsnb.errors import DsnbError, NotFoundError, PermissionDeniedError, ResourceExhaustedError, UnavailableError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.proto import frame_pb2
from dsnb.wire.status import error_from
from dsnb.wire.threads import OnDemandExecutor
from dsnb.wire.transfer.encoding import PieceDecoder, encode_piece
from dsnb.wire.transfer.handover import Endpoint, Opening, Piece, Reading, Sink

_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)


# ---- the worker's end


class _StreamSink:
    """Queues what a task delivers, for the thread that sends it."""

    def __init__(self) -> None:
        self.items: SimpleQueue[Piece | bytes | Exception | None] = SimpleQueue()

    def deliver(self, piece: Piece) -> None:
        self.items.put(piece)

    def end(self) -> None:
        self.items.put(frame_pb2.ReadReply(end=True).SerializeToString())

    def recalled(self, granted: int) -> None:
        self.items.put(frame_pb2.ReadReply(recalled=True, granted=granted).SerializeToString())

    def fail(self, error: Exception) -> None:
        self.items.put(error)


class ReadService:
    """Answers `Read` calls with what an endpoint delivers.

    Args:
        endpoint: The worker.
        max_streams: Reads at once; the next one is refused with an error that says so.
    """

    def __init__(self, endpoint: Endpoint, max_streams: int) -> None:
        self._endpoint = endpoint
        self._max_streams = max_streams
        self._streams = 0
        self._lock = threading.Lock()
        self._listeners = OnDemandExecutor("dsnb-credit")

    def stop(self) -> None:
        self._listeners.shutdown()

    def read(self, requests: Iterator[ReadRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:
            if self._streams >= self._max_streams:
                raise ResourceExhaustedError(
                    f"the worker serves {self._streams} readers at once, which is its limit",
                    did="this reader was refused; the others read on",
                    hint="raise WorkerConfig(max_readers=...), add workers, or let readers share an iterator",
                )
            self._streams += 1
        try:
            yield from self._serve(requests, context)
        finally:
            with self._lock:
                self._streams -= 1

    def _serve(self, requests: Iterator[ReadRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(requests)
        sink = _StreamSink()
        reading = self._endpoint.open(_opening(first), sink)
        context.add_callback(lambda: sink.items.put(None))  # the client is gone, politely or not
        self._listeners.submit(_listen, requests, reading, sink)
        keep = bool(first.trainer_id)
        while (item := sink.items.get()) is not None:
            if isinstance(item, Piece):
                yield from encode_piece(first.task_id, item, keep)
            elif isinstance(item, bytes):
                yield item
            else:
                raise item


def _opening(request: ReadRequest) -> Opening:
    return Opening(
        task_id=request.task_id,
        client_id=request.client_id,
        trainer_id=request.trainer_id,
        max_bytes=request.max_bytes,
        granted=request.granted,
        received=request.received,
        consumed=request.consumed,
    )


def _listen(requests: Iterator[ReadRequest], reading: Reading, sink: _StreamSink) -> None:
    """Pass a reader's messages on until it leaves or its connection breaks.

    A connection that breaks is no leaving: what was sent and not consumed waits for the client to come back, until the
    dispatcher says that it is gone.
    """
    with suppress(Exception):  # grpc raises a bare Exception when the stream breaks
        for request in requests:
            if request.leave:
                reading.leave(request.consumed)
                break
            if request.recall:
                reading.recall()
            else:
                reading.credit(request.granted, request.consumed)
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
    """One read over a stream, with a thread that takes the replies."""

    def __init__(self, channel: Channel, opening: Opening, sink: Sink) -> None:
        self._channel = channel
        self._opening = opening
        self._sink = sink
        self._granted = opening.granted
        self._consumed = opening.consumed
        self._received = opening.received
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._call: Any = None
        self._requests: SimpleQueue[ReadRequest | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"dsnb-read-{opening.task_id}", daemon=True)
        self._thread.start()

    def credit(self, granted: int, consumed: int) -> None:
        with self._lock:
            self._granted, self._consumed = granted, consumed
            self._requests.put(ReadRequest(granted=granted, consumed=consumed))

    def recall(self) -> None:
        with self._lock:
            self._requests.put(ReadRequest(recall=True))

    def leave(self, consumed: int) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
            self._requests.put(ReadRequest(leave=True, consumed=consumed))
            self._requests.put(None)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(2.0)  # the worker ends the call when it has taken the leaving in
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(0.5)

    def _cancel(self) -> None:
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def _run(self) -> None:
        attempt = 0
        try:
            while not self._stopped.is_set():
                before = self._received
                error = self._read_once()
                if error is None:
                    return
                if not isinstance(error, UnavailableError):
                    self._sink.fail(error)
                    return
                attempt = 0 if self._received > before else attempt + 1
                self._stopped.wait(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
        finally:
            self._channel.close()

    def _read_once(self) -> Exception | None:
        """Read until the stream ends; what it ended with, or None when it was left."""
        try:
            call = self._open_call()
            try:
                self._take(call)
            finally:
                call.cancel()
        except grpc.RpcError as error:
            if self._stopped.is_set():
                return None
            return _final(error_from(error, self._channel.address))
        except (DsnbError, ValueError) as error:  # ValueError: the channel was closed
            return None if self._stopped.is_set() else error
        return None if self._stopped.is_set() else UnavailableError(f"{self._channel.address} ended the read")

    def _open_call(self) -> Any:
        with self._lock:
            requests: SimpleQueue[ReadRequest | None] = SimpleQueue()
            requests.put(
                ReadRequest(
                    task_id=self._opening.task_id,
                    client_id=self._opening.client_id,
                    trainer_id=self._opening.trainer_id,
                    max_bytes=self._opening.max_bytes,
                    granted=self._granted,
                    received=self._received,
                    consumed=self._consumed,
                )
            )
            if self._call is None:  # what was said before the first stream was open
                while not self._requests.empty():
                    requests.put(self._requests.get())
            elif self._stopped.is_set():
                requests.put(None)
            self._requests = requests
            self._call = self._channel.stream(READ, _until_none(requests))
            return self._call

    def _take(self, call: Any) -> None:
        decoder = PieceDecoder()
        for message in call:
            item = decoder.feed(message)
            if isinstance(item, Piece):
                self._received += item.count
                if not self._stopped.is_set():
                    self._sink.deliver(item)
            elif item is not None and item.end:
                self._sink.end()
            elif item is not None and item.recalled:
                self._sink.recalled(item.granted)


def _until_none(queue: SimpleQueue[ReadRequest | None]) -> Iterator[ReadRequest]:
    while (request := queue.get()) is not None:
        yield request


def _final(error: DsnbError) -> DsnbError:
    """Errors that the server states stay; the rest is a connection that broke, which is tried again."""
    stated: tuple[type[DsnbError], ...] = (NotFoundError, PermissionDeniedError, ResourceExhaustedError)
    return error if isinstance(error, stated) else UnavailableError(error.what)



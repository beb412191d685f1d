"""The gRPC transfer, both ends: one bidirectional stream for each (client, task).

The worker's end (`ReadService`) opens the task with a sink that sends frame slices on the stream. The client's end
(`GrpcEndpoint`) decodes the stream into calls of the client's sink. A stream that breaks ends the read: the sink gets
the error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from queue import SimpleQueue
from typing import Final

import grpc

from dsnb.errors import DsnbError, UnavailableError
from dsnb.transfer.admission import Admission
from dsnb.transfer.frame_codec import FrameSliceDecoder, join_messages, split_messages
from dsnb.transfer.protocol import BREAK_S, FrameSlice, LinkStats, ReadHandle, Sink, TaskServer, Transfer
from dsnb.transfer.stream import StreamSink, compression_policy, deliver_notice, handle_requests, slice_encoder
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.grpc_errors import as_read_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.server import is_local_peer
from dsnb.wire.threads import OnDemandExecutor

GRPC: Final = Transfer(name="grpc", over_network=True, carries_checksum=True, uses_channel=True)

# ---- the worker's end


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
        compression = compression_policy(first, local_peer=is_local_peer(context.peer()))
        link_stats = LinkStats(transfer=GRPC.name, reason=first.why)
        sink = StreamSink(compression, link_stats, first.received)
        reading = self._worker.open(first, sink, link_stats)
        if not context.add_callback(sink.on_stream_ended):  # it has ended already
            sink.on_stream_ended()
        self._receive_executor.submit(handle_requests, requests, reading, sink)
        yield from map(join_messages, sink.send(slice_encoder(first, compression)))


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

    def wait_until_left(self, timeout: float) -> None:
        if threading.current_thread() is self._thread:
            return
        self._thread.join(timeout)  # the worker ends the call after it has handled the leave message
        if self._thread.is_alive():
            self._call.cancel()
            self._thread.join(BREAK_S)

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
            elif item is not None:
                deliver_notice(item, self._sink)


def _until_none(queue: SimpleQueue[ReadRequest | None]) -> Iterator[ReadRequest]:
    while (request := queue.get()) is not None:
        yield request

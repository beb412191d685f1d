"""The reader's end: one socket and one mapping for each read, handled by the thread that waits for elements."""

from __future__ import annotations

import threading
import time
from functools import lru_cache

from dsnb.errors import DsnbError, UnavailableError
from dsnb.system_limits import describe_os_error
from dsnb.transfer.frame_codec import decode_slice
from dsnb.transfer.protocol import BREAK_S, FrameSlice, ReadHandle, Sink, TransferRefused
from dsnb.transfer.shared_memory.client_connection import ClientConnection
from dsnb.transfer.shared_memory.memory import ConsumedPage
from dsnb.transfer.shared_memory.messages import (
    COUNT,
    PROOF_METHOD,
    SHARED_MEMORY,
    MessageHeader,
    MessageKind,
    connect,
    pack_message,
)
from dsnb.wire import forks
from dsnb.wire.codec import encode
from dsnb.wire.grpc_errors import as_read_error, decode_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.security import PROOF_HEADER, Caller, Proof, encode_proof, request_digest
from dsnb.wire.unit_mark import UnitMark


class SharedMemoryEndpoint:
    """A worker on this host, reached through shared memory.

    Args:
        worker_uid: The worker's uid.
        token: The service's token.
    """

    transfer = SHARED_MEMORY

    def __init__(self, worker_uid: str, token: str) -> None:
        self._worker_uid = worker_uid
        self._token = token

    def open(self, request: ReadRequest, sink: Sink) -> ReadHandle:
        """Start to read a task. Later errors go to the sink's `fail`.

        Raises:
            TransferRefused: there is no such worker on this host.
        """
        forks.check_grpc()
        caller, encoded_request = _caller(self._worker_uid), encode(request)
        proof = caller.proof(self._token, PROOF_METHOD, self._worker_uid, request_digest(encoded_request))
        connection = ClientConnection(connect(self._worker_uid))
        return _SharedMemoryReadHandle(connection, request.task_id, sink, caller, proof, encoded_request)


@lru_cache(maxsize=256)
def _caller(worker_uid: str) -> Caller:
    """This process's caller for a worker, kept so that its nonces go on counting."""
    del worker_uid
    return Caller()


class _SharedMemoryReadHandle(ReadHandle):
    """One read of a task on this host. Messages are handled by the sink's poller, or by a thread if it has none."""

    def __init__(
        self,
        connection: ClientConnection,
        task_id: str,
        sink: Sink,
        caller: Caller,
        proof: Proof,
        encoded_request: bytes,
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._caller = caller
        self._proof = proof
        self._proven = False
        self._left = threading.Event()
        self._finished = False
        self._receive_lock = threading.Lock()
        self._poller = sink.poller
        self._thread: threading.Thread | None = None
        page = ConsumedPage()
        self._cell = page.cell
        shown = encode_proof(proof)
        try:
            connection.send_first(
                pack_message(MessageKind.OPEN, len(shown), text=shown + encoded_request), page.descriptor
            )
        finally:
            page.close_descriptor()
        if self._poller is not None:
            self._poller.add(connection.descriptor, self._receive)
            return
        name = f"dsnb-read-{task_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def consumed_cell(self) -> memoryview:
        return self._cell

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        text = COUNT.pack(dequeued) if dequeued > consumed else b""
        self._connection.send(pack_message(MessageKind.CREDIT, granted, consumed, max_bytes, received, text))

    def recall(self) -> None:
        self._connection.send(pack_message(MessageKind.RECALL))

    def leave(self, consumed: int) -> None:
        if self._left.is_set():
            return
        self._left.set()
        self._connection.send(pack_message(MessageKind.LEAVE, b=consumed))

    def wait_until_left(self, timeout: float) -> None:
        if threading.current_thread() is self._thread:
            return
        self._await_end(timeout)  # the worker answers BYE when it has handled LEAVE
        if not self._finished:
            self._connection.stop_receiving()
            self._await_end(BREAK_S)

    def _await_end(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            return
        deadline = time.monotonic() + seconds
        while not self._finished and (left := deadline - time.monotonic()) > 0:
            self._connection.wait(left)
            self._receive()

    def _run(self) -> None:
        while not self._finished:
            self._receive(wait=True)

    def _receive(self, *, wait: bool = False) -> None:
        """Receive and handle what has arrived; ends the read at the last message or an error."""
        error: Exception | None = None
        with self._receive_lock:
            if self._finished:
                return
            try:
                self._connection.receive(wait=wait)
                if self._handle_messages():
                    return
            except DsnbError as failed:  # before the next clause: some DsnbErrors are ConnectionErrors
                error = failed
            except (EOFError, ConnectionError):
                pass
            except OSError as failed:
                what = describe_os_error(failed)
                error = TransferRefused(f"this process cannot map the worker's memory ({what})")
            except Exception as failed:  # noqa: BLE001 - a bug: without an error the reader would wait for ever
                error = failed
            except BaseException:  # KeyboardInterrupt: a new read gets the lost messages' elements again
                self._end(UnavailableError("the reader was interrupted"))
                raise
            self._end(error or UnavailableError("the worker has gone"))

    def _end(self, error: Exception) -> None:
        self._finished = True
        if self._poller is not None:
            self._poller.remove(self._connection.descriptor)
        self._connection.finish()
        if not self._left.is_set():
            self._sink.fail(error)

    def _handle_messages(self) -> bool:
        """Handle all complete messages, consecutive frame slices in one call; returns False after the last message."""
        pieces: list[FrameSlice] = []
        try:
            for head, text, body in self._connection.messages():
                if not self._proven:
                    self._check_proof(head, text)
                elif head.kind == MessageKind.SLAB:
                    pieces.append(self._slice_in_slab(head, text))
                elif head.kind == MessageKind.BODY:
                    pieces.append(decode_slice(text, head.d, body))
                else:
                    self._sink.deliver_all(pieces)
                    pieces = []
                    if not self._handle_message(head, text):
                        return False
        finally:
            if pieces:  # most calls find no message
                self._sink.deliver_all(pieces)
        return True

    def _check_proof(self, header: MessageHeader, text: bytes) -> None:
        """Check the first message, before which only the OPEN message is sent.

        Raises:
            TransferRefused: the message does not prove that the peer is the worker.
        """
        if header.kind == MessageKind.REFUSED:
            raise TransferRefused(text.decode(errors="replace"))
        if header.kind != MessageKind.PROOF or not self._caller.accepts(self._proof, [(PROOF_HEADER, text)]):
            raise TransferRefused("the process that answers on this host could not prove that it is the worker")
        self._proven = True
        self._connection.mark_proven()
        self._sink.accepted()

    def _slice_in_slab(self, header: MessageHeader, text: bytes) -> FrameSlice:
        """The frame slice that a SLAB message announces: the whole frame, or a part of it."""
        whole = decode_slice(text, header.d, self._connection.base_array(header.a, header.b))
        start, count = header.c >> 32, header.c & 0xFFFFFFFF
        part = count < whole.count
        return FrameSlice(whole.frame, header.d + start, start, count, whole.incarnation) if part else whole

    def _handle_message(self, header: MessageHeader, text: bytes) -> bool:
        """Handle a message that is not a frame slice; returns False if it was the last one."""
        if header.kind == MessageKind.FILES:
            self._sink.note_files(text.decode())
        elif header.kind == MessageKind.END:
            self._sink.end()
        elif header.kind == MessageKind.RECALLED:
            self._sink.recalled(header.a)
        elif header.kind == MessageKind.PROGRESS:
            self._sink.progress(header.a, header.b)
        elif header.kind == MessageKind.UNIT:
            skipped = COUNT.unpack(text)[0] if text else 0
            mark = UnitMark(unit=header.a, unit_end=header.b, index=header.c, ended=bool(header.d), skipped=skipped)
            self._sink.note_unit(mark)
        elif header.kind == MessageKind.REFUSED:
            raise TransferRefused(text.decode())
        elif header.kind == MessageKind.FAIL:
            raise as_read_error(decode_error(text))
        return header.kind != MessageKind.BYE

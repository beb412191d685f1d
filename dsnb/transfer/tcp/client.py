"""The reader's end: a connection and a receiving thread for each read."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import lru_cache
from typing import Final

from dsnb.errors import DataLossError, DsnbError, UnavailableError
from dsnb.system_limits import describe_os_error, limit_error, start_thread
from dsnb.transfer.frame_codec import FrameSliceDecoder, damaged_message_error
from dsnb.transfer.protocol import BREAK_S, FrameSlice, ReadHandle, Sink, TransferRefused
from dsnb.transfer.stream import deliver_notice
from dsnb.transfer.tcp.connection import CONNECT_S, Connection, PlainConnection, connect
from dsnb.transfer.tcp.messages import (
    MAX_ANSWER_BYTES,
    PROOF_METHOD,
    TCP,
    MessageKind,
    MessageReader,
    max_read_bytes,
    pack_message,
)
from dsnb.wire import discovery, forks
from dsnb.wire.addresses import format_address
from dsnb.wire.certificates import client_context
from dsnb.wire.codec import encode
from dsnb.wire.grpc_errors import as_read_error, decode_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.security import PROOF_HEADER, Caller, Proof, encode_proof

_ANSWER_S: Final = 10.0
"""How long the TLS handshake and the worker's proof may take together."""
_UNREACHABLE_S: Final = 300.0
"""How long readers avoid a port that did not answer at all: each attempt takes `CONNECT_S`."""

_unreachable: dict[str, tuple[str, float]] = {}
"""Data ports that did not answer an attempt to connect: the reason, and until when readers avoid them."""


def known_refusal(host: str, port: int) -> str:
    """Why a worker's data port was found to be unreachable a short while ago; empty if it was not."""
    address = format_address(host, port)
    why, until = _unreachable.get(address, ("", 0.0))
    if why and time.monotonic() >= until:
        _unreachable.pop(address, None)
        return ""
    return why


class TcpEndpoint:
    """A worker, reached at its data port.

    Args:
        host: The host of the worker's address.
        port: The worker's data port.
        token: The service's token.
        worker_uid: The worker's uid, which it must prove to be its instance id.
    """

    transfer = TCP

    def __init__(self, host: str, port: int, token: str, worker_uid: str) -> None:
        self._host = host
        self._port = port
        self._token = token
        self._worker_uid = worker_uid

    def open(self, request: ReadRequest, sink: Sink) -> ReadHandle:
        """Start to read a task. Never waits: the read's own thread connects, and errors go to the sink's `fail`.

        The sink gets `TransferRefused` if there is no connection to the worker at this port.
        """
        forks.check_grpc()
        forks.generation()
        proof = _caller(self._worker_uid).proof(self._token, PROOF_METHOD, self._worker_uid)
        return _TcpReadHandle(self, request, sink, proof)

    @property
    def address(self) -> str:
        """The worker's data port, as "host:port"."""
        return format_address(self._host, self._port)

    def connect(self) -> Connection:
        """Connect, for TLS if the service has a certificate. The connection's handshake is still to be done.

        Raises:
            TransferRefused: there is no connection.
        """
        certificate = discovery.certificate_for(self._token)
        try:
            sock = connect(self._host, self._port)
        except TimeoutError:
            why = f"{self.address} accepts no connection within {CONNECT_S:g} seconds"
            _unreachable[self.address] = why, time.monotonic() + _UNREACHABLE_S
            raise TransferRefused(why) from None
        except OSError as error:
            raise limit_error(error) or TransferRefused(
                f"{self.address} cannot be reached ({describe_os_error(error)})"
            ) from None
        if not certificate:
            return PlainConnection(sock)
        from dsnb.transfer.tcp.tls import TlsConnection  # `ssl` takes 10 ms to import

        return TlsConnection(sock, client_context(certificate), server=False)

    def accepts(self, proof: Proof, answer: bytes | memoryview) -> bool:
        """Whether the answer proves that the peer is the worker."""
        return _caller(self._worker_uid).accepts(proof, [(PROOF_HEADER, bytes(answer))])


@lru_cache(maxsize=256)
def _caller(worker_uid: str) -> Caller:
    """This process's caller for a worker, kept so that its nonces go on counting."""
    del worker_uid
    return Caller()


def _reason(error: OSError) -> str:
    """The text of an error of a socket or of TLS."""
    return str(getattr(error, "reason", "") or "") or error.strerror or str(error)


class _RequestSender:
    """Sends a reader's requests, signed and in order. Never waits: if the socket is full, the rest follows later.

    Args:
        proof: The read's proof.
    """

    def __init__(self, proof: Proof) -> None:
        self._signer = proof.signer(to_server=True)
        self._lock = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._connection: Connection | None = None

    def first(self, request: ReadRequest) -> bytes:
        """The first request, to be sent with the proof."""
        with self._lock:
            return self._pack(request)

    def send(self, request: ReadRequest) -> None:
        """Send a request now, or once the worker has proven who it is."""
        with self._lock:
            self._unsent.append(self._pack(request))
            self._flush()

    def start(self, connection: Connection) -> None:
        """Send on this connection from now on: the worker has proven who it is."""
        with self._lock:
            self._connection = connection
            self._flush()

    def flush(self) -> None:
        """Send what the socket did not accept before."""
        if self._unsent:
            with self._lock:
                self._flush()

    def stop(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._connection = None

    def _pack(self, request: ReadRequest) -> bytes:
        return pack_message(MessageKind.REQUEST, self._signer.sign(encode(request)))

    def _flush(self) -> None:
        if self._connection is None:
            return
        data = b"".join(self._unsent)
        self._unsent.clear()
        try:
            sent = self._connection.send_now(data)
        except OSError:  # the connection is broken: the receiving thread gets the error
            self._connection = None
            return
        if sent < len(data):
            self._unsent.append(data[sent:])


class _TcpReadHandle(ReadHandle):
    """One read over a TCP connection, with a thread that connects and receives."""

    def __init__(self, endpoint: TcpEndpoint, request: ReadRequest, sink: Sink, proof: Proof) -> None:
        self._endpoint = endpoint
        self._sink = sink
        self._proof = proof
        self._decoder = FrameSliceDecoder(checksum=request.checksum)
        self._left = threading.Event()
        self._lock = threading.Lock()  # protects `_connection`: `leave` must not miss one that is being made
        self._connection: Connection | None = None
        self._known_to_worker = False
        """Whether there was a connection when this read was left."""
        self._requests = _RequestSender(proof)
        self._first_request = self._requests.first(request)
        self._thread = threading.Thread(target=self._run, name=f"dsnb-read-{request.task_id}", daemon=True)
        start_thread(self._thread)

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        self._requests.send(
            ReadRequest(granted=granted, consumed=consumed, max_bytes=max_bytes, received=received, dequeued=dequeued)
        )

    def recall(self) -> None:
        self._requests.send(ReadRequest(recall=True))

    def leave(self, consumed: int) -> None:
        if self._left.is_set():
            return
        self._requests.send(ReadRequest(leave=True, consumed=consumed))
        with self._lock:
            self._left.set()
            self._known_to_worker = self._connection is not None

    def wait_until_left(self, timeout: float) -> None:
        if not self._known_to_worker or threading.current_thread() is self._thread:
            return  # without a connection there is nothing to wait for, and the thread ends by itself
        self._thread.join(timeout)  # the worker closes the connection when it has handled the request
        if self._thread.is_alive():
            with self._lock:
                if self._connection is not None:
                    self._connection.shutdown()
            self._thread.join(BREAK_S)

    def _run(self) -> None:
        error: Exception = UnavailableError(f"{self._endpoint.address} ended the read")
        try:
            self._read()
        except DsnbError as failed:  # before the next clause: some DsnbErrors are OSErrors
            error = as_read_error(failed)
        except (EOFError, OSError) as failed:
            if isinstance(failed, OSError):
                error = UnavailableError(f"the connection to {self._endpoint.address} broke ({_reason(failed)})")
        except Exception as failed:  # noqa: BLE001 - a bug: without an error the reader would wait for ever
            error = failed
        finally:
            self._close()
        if not self._left.is_set():
            self._sink.fail(error)

    def _read(self) -> None:
        connection = self._endpoint.connect()
        with self._lock:
            self._connection = connection
            if self._left.is_set():
                return
        messages = MessageReader(connection, MAX_ANSWER_BYTES)
        self._open(connection, messages)
        while True:
            self._receive(messages)
            self._requests.flush()

    def _close(self) -> None:
        self._requests.stop()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self, connection: Connection, messages: MessageReader) -> None:
        """Send the proof and the first request; check the worker's proof before anything else is sent or accepted.

        Raises:
            TransferRefused: the peer does not prove that it is the worker.
        """
        connection.deadline = time.monotonic() + _ANSWER_S
        try:
            connection.shake_hands()
        except OSError as error:
            raise TransferRefused(f"TLS with {self._endpoint.address} failed ({_reason(error)})") from None
        try:
            connection.send_all([pack_message(MessageKind.PROOF, encode_proof(self._proof)), self._first_request])
            kind, content = messages.next()
        except (EOFError, DataLossError, OSError) as error:
            told = _reason(error) if isinstance(error, OSError) else str(error) or "it closed the connection"
            raise TransferRefused(f"what answers at {self._endpoint.address} is not the worker ({told})") from None
        if kind != MessageKind.PROOF or not self._endpoint.accepts(self._proof, content):
            says = f"; it says: {_error_of(content).what}" if kind == MessageKind.ERROR else ""
            raise TransferRefused(
                f"what answers at {self._endpoint.address} could not prove that it is the worker{says}"
            )
        connection.deadline = None
        messages.max_bytes = max_read_bytes()
        self._sink.accepted()
        self._requests.start(connection)

    def _receive(self, messages: MessageReader) -> None:
        """Wait for a message, and handle it and those that have arrived with it."""
        slices: list[FrameSlice] = []
        try:
            while True:
                kind, content = messages.next()
                if kind == MessageKind.ERROR:
                    raise as_read_error(_error_of(content))
                if kind != MessageKind.READ:
                    raise damaged_message_error(f"its kind is {kind}")
                item = self._decoder.feed(content)
                if isinstance(item, FrameSlice):
                    slices.append(item)
                elif item is not None:
                    self._sink.deliver_all(slices)
                    slices = []
                    deliver_notice(item, self._sink)
                if not messages.has_message:
                    return
        finally:
            if slices:
                self._sink.deliver_all(slices)


def _error_of(content: bytes | memoryview) -> DsnbError:
    """Decode an ERROR message.

    Raises:
        DataLossError: it is damaged.
    """
    try:
        return decode_error(bytes(content))
    except (ValueError, KeyError, TypeError):
        raise damaged_message_error("its error") from None

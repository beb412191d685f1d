"""The worker's end: a thread accepts connections, and each reader has one thread that sends and one that receives."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from dsnb.errors import DsnbError
from dsnb.system_limits import limit_error
from dsnb.transfer.admission import Admission
from dsnb.transfer.protocol import LinkStats, TaskServer
from dsnb.transfer.stream import StreamSink, compression_policy, handle_requests, slice_encoder
from dsnb.transfer.tcp.connection import Connection, PlainConnection, close_socket, set_options
from dsnb.transfer.tcp.messages import (
    MAX_PROOF_BYTES,
    PROOF_METHOD,
    TCP,
    MessageKind,
    MessageReader,
    pack_message,
    pack_read_messages,
)
from dsnb.wire import forks
from dsnb.wire.addresses import is_loopback, port_numbers
from dsnb.wire.certificates import server_context
from dsnb.wire.codec import decode
from dsnb.wire.grpc_errors import encode_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import MAX_MESSAGE_BYTES
from dsnb.wire.security import PROOF_HEADER, Guard, Proof, Refusal, Signer, altered_message_error, decode_proof
from dsnb.wire.threads import OnDemandExecutor

_log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_PROOF_S: Final = 10.0
"""How long a peer may take for the TLS handshake, its proof and its first request together."""
_MAX_UNPROVEN: Final = 64
"""Most connections at once whose peers have not proven that they know the token; further ones are closed."""
_GONE_AFTER_S: Final = 120.0
"""Seconds after which a reader that takes nothing any more is disconnected: longer than a trainer holds the GIL. It can
connect again, and then gets what it did not receive."""
_FAREWELL_S: Final = 2.0
"""How long a reader may take to close a connection on which it was sent the last message."""
_RETRY_S: Final = 0.1
_MIN_RANGE: Final = 4
"""A range with fewer ports has no data ports."""


class TcpServer:
    """Serves readers at a port of its own, the worker's data port.

    Args:
        worker: The worker.
        guard: Checks the readers' proofs.
        admission: Limits the number of concurrent readers.

    Attributes:
        port: The data port; 0 if there is none.
    """

    def __init__(self, worker: TaskServer, guard: Guard, admission: Admission) -> None:
        self.port = 0
        self._worker = worker
        self._guard = guard
        self._admission = admission
        self._certificate = ""
        self._executor = OnDemandExecutor("dsnb-tcp")
        self._lock = threading.Lock()  # protects the sets of connections
        self._connections: set[Connection] = set()
        self._unproven: set[socket.socket] = set()
        self._stopped = False
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, ports: int | str, certificate: str = "") -> None:
        """Listen on an address, if there is a port for it; readers use gRPC if there is none.

        Args:
            host: The address.
            ports: The ports of the worker's gRPC server. Of a range as in "5100-5200" the last free port of its second
                half is taken, so that the first half is left for workers; any free port if this is a single one.
            certificate: The service's certificate with its key; empty for plain connections. With a certificate, no
                port of a range is taken: readers choose gRPC then, and the range may have just enough for workers.
        """
        self._listener = _listen(host, _data_ports(ports, encrypted=bool(certificate)))
        if self._listener is None:
            return
        self._certificate = certificate
        self.port = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._wake_sender, self._wake_receiver = socket.socketpair()
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            forks.register_fd(each.fileno())
        self._thread = threading.Thread(target=self._run, name="dsnb-tcp-accept", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections. Further calls do nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._wake_sender.send(b"\0")
        if thread is not threading.current_thread():
            thread.join(5.0)
        with self._lock:
            self._stopped = True
            connections = list(self._connections)
        for connection in connections:
            connection.shutdown()
        self._executor.shutdown()

    def debug_state(self) -> dict[str, int]:
        """The data port, and the numbers of connections with and without the reader's proof."""
        with self._lock:
            return {"port": self.port, "connections": len(self._connections), "unproven": len(self._unproven)}

    # ---- accepting

    def _run(self) -> None:
        assert self._listener is not None
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake_receiver, select.POLLIN)
        while self._wake_receiver.fileno() not in dict(poll.poll()):
            self._accept()
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            close_socket(each)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, peer = self._listener.accept()
        except OSError as error:  # usually the reader is gone again
            if limit_error(error) is not None:  # too many open files: readers wait in the backlog
                select.select([self._wake_receiver], [], [], _RETRY_S)
            return
        forks.register_fd(sock.fileno())
        with self._lock:
            taken = len(self._unproven) < _MAX_UNPROVEN
            if taken:
                self._unproven.add(sock)
        try:
            if taken:
                self._executor.submit(self._serve, sock, str(peer[0]))
        except (RuntimeError, DsnbError):  # the system starts no more threads
            taken = False
        if not taken:
            self._forget_unproven(sock)
            close_socket(sock)

    def _forget_unproven(self, sock: socket.socket) -> None:
        with self._lock:
            self._unproven.discard(sock)

    # ---- one reader, on its own thread

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            connection = self._connection_of(sock)
        except OSError:  # it is broken already
            self._forget_unproven(sock)
            close_socket(sock)
            return
        with self._lock:
            self._connections.add(connection)
            stopped = self._stopped
        try:
            if not stopped:
                self._serve_connection(connection, sock, peer)
        except (OSError, EOFError) as error:  # a stranger, or a reader that is gone
            _log.debug("a connection from %s ended: %s", peer, error)
        finally:
            self._forget_unproven(sock)
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _connection_of(self, sock: socket.socket) -> Connection:
        """Make a connection of an accepted socket, for TLS if the service has a certificate."""
        set_options(sock, _GONE_AFTER_S)
        if not self._certificate:
            return PlainConnection(sock)
        from dsnb.transfer.tcp.tls import TlsConnection  # `ssl` takes 10 ms to import

        return TlsConnection(sock, server_context(self._certificate), server=True)

    def _serve_connection(self, connection: Connection, sock: socket.socket, peer: str) -> None:
        connection.deadline = time.monotonic() + _PROOF_S
        connection.shake_hands()
        messages = MessageReader(connection, MAX_PROOF_BYTES)
        try:
            proof = self._check_proof(connection, messages)
            self._forget_unproven(sock)
            with self._admission:
                self._serve_reader(connection, messages, proof, peer)
        except (OSError, EOFError) as error:
            if not isinstance(error, DsnbError):
                raise
            _end_with(connection, error)
        except Exception as error:  # noqa: BLE001 - any error must reach the reader
            _end_with(connection, error)

    def _check_proof(self, connection: Connection, messages: MessageReader) -> Proof:
        """Check the reader's proof, and answer with the worker's.

        Raises:
            DsnbError: the reader is refused.
        """
        kind, content = messages.next()
        if kind != MessageKind.PROOF:
            raise altered_message_error()
        try:
            proof, answer = self._guard.admit(PROOF_METHOD, decode_proof(bytes(content)))
        except Refusal as refusal:
            if refusal.initial_metadata:
                _send_proof(connection, dict(refusal.initial_metadata)[PROOF_HEADER])
            raise refusal.error from None
        _send_proof(connection, dict(answer)[PROOF_HEADER])
        return proof

    def _serve_reader(self, connection: Connection, messages: MessageReader, proof: Proof, peer: str) -> None:
        messages.max_bytes = MAX_MESSAGE_BYTES
        requests = _requests(messages, proof.signer(to_server=True))
        first = next(requests)
        connection.deadline = None
        compression = compression_policy(first, local_peer=is_loopback(peer))
        link_stats = LinkStats(transfer=TCP.name, reason=first.why)
        sink = StreamSink(compression, link_stats, first.received)
        handle = self._worker.open(first, sink, link_stats)

        def receive() -> None:
            told = handle_requests(requests, handle, sink)
            sink.on_stream_ended()
            if told:  # else the reader is still to be sent the error
                connection.shutdown()

        receiving = self._executor.submit(receive)
        try:
            for batch in sink.send(slice_encoder(first, compression, whole=True)):
                connection.send_all(pack_read_messages(batch))
        except OSError as error:
            if isinstance(error, DsnbError):
                _send_error(connection, error)
        except Exception as error:  # noqa: BLE001 - any error must reach the reader
            _send_error(connection, error)
        finally:
            sink.on_stream_ended()
            connection.finish_sending()
            with suppress(TimeoutError):
                receiving.result(_FAREWELL_S)
            connection.shutdown()
            receiving.result()


def _data_ports(ports: int | str, *, encrypted: bool) -> Sequence[int]:
    if isinstance(ports, int):
        return (0,)
    if encrypted:
        return ()
    numbers = port_numbers(ports)
    # A few ports are meant for as many workers.
    return numbers[: len(numbers) // 2 - 1 : -1] if len(numbers) >= _MIN_RANGE else ()


def _listen(host: str, ports: Sequence[int]) -> socket.socket | None:
    """Listen on the first free port; None if none is free."""
    for port in ports:
        with suppress(OSError):
            family, _, _, _, address = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            dual = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
            return socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    return None


def _requests(messages: MessageReader, signer: Signer) -> Iterator[ReadRequest]:
    """A reader's requests, until its connection ends.

    Raises:
        DataLossError: what arrived was not sent by the reader.
    """
    while True:
        kind, content = messages.next()
        if kind != MessageKind.REQUEST:
            raise altered_message_error()
        yield decode(ReadRequest, signer.check(bytes(content)))


def _send_proof(connection: Connection, proof: bytes) -> None:
    connection.send_all([pack_message(MessageKind.PROOF, proof)])


def _send_error(connection: Connection, error: Exception) -> None:
    if not isinstance(error, DsnbError):
        _log.debug("a read failed", exc_info=error)
    with suppress(OSError):
        connection.send_all([pack_message(MessageKind.ERROR, encode_error(error, "Read"))])


def _end_with(connection: Connection, error: Exception) -> None:
    """Tell the reader why it is not served, and wait a moment until it has read that.

    Closing a socket with unread bytes resets the connection, which can make the peer lose what it was sent.
    """
    _send_error(connection, error)
    connection.finish_sending()
    connection.deadline = time.monotonic() + _FAREWELL_S
    scrap = memoryview(bytearray(1 << 16))
    with suppress(OSError):
        while time.monotonic() < connection.deadline and connection.receive_into(scrap, whole=False):
            pass

"""The worker's end: one thread receives from all readers on this host; threads that deliver elements send them.

A reader's socket outlives its read as long as the reader has views of the memory: it carries their releases, and its
end releases the rest.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from dsnb.errors import DsnbError
from dsnb.system_limits import describe_os_error, limit_error
from dsnb.transfer.admission import Admission
from dsnb.transfer.protocol import LinkStats, TaskServer
from dsnb.transfer.shared_memory.memory import supported
from dsnb.transfer.shared_memory.messages import (
    COUNT,
    PROOF_METHOD,
    RECEIVE_BYTES,
    SHARED_MEMORY,
    MessageKind,
    close_socket,
    pack_message,
    same_user,
    socket_name,
)
from dsnb.transfer.shared_memory.pool import Pool
from dsnb.transfer.shared_memory.server_connection import Request, ServerConnection
from dsnb.wire import forks
from dsnb.wire.codec import decode
from dsnb.wire.messages import ReadRequest
from dsnb.wire.security import PROOF_HEADER, Guard, Refusal, altered_message_error, decode_proof, request_digest
from dsnb.wire.threads import OnDemandExecutor

_log = logging.getLogger(__name__)

_READ, _BOTH = selectors.EVENT_READ, selectors.EVENT_READ | selectors.EVENT_WRITE
_BACKLOG = 128


class SharedMemoryServer:
    """Serves the readers of this host through shared memory.

    Args:
        worker: The worker.
        guard: Checks the readers' proofs.
        size: Most bytes of memory; with 0 every reader is refused.
        admission: Limits the number of concurrent readers.
    """

    def __init__(self, worker: TaskServer, guard: Guard, size: int, admission: Admission) -> None:
        self._worker = worker
        self._guard = guard
        self._size = size
        self._admission = admission
        self._open_executor = OnDemandExecutor("dsnb-open")
        self._pool: Pool | None = None
        self._pool_lock = threading.Lock()
        self._connections: set[ServerConnection] = set()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._spare_fd = -1
        """A spare descriptor, closed when open files run out, so that a reader can be accepted and told the reason."""

    def start(self, worker_uid: str) -> None:
        """Listen for readers; does nothing if the system does not support shared memory."""
        if not supported():
            return
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(socket_name(worker_uid))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._wake_sender, self._wake_receiver = socket.socketpair()
        for end in (self._wake_sender, self._wake_receiver):
            end.setblocking(False)
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            forks.register_fd(each.fileno())
        self._open_spare_fd()
        self._thread = threading.Thread(target=self._run, name="dsnb-shared-memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and the memory; readers keep the views they have. Further calls do nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._open_executor.shutdown()
        self._call_soon(self._shut_down)
        if thread is not threading.current_thread():
            thread.join(5.0)

    # ---- the thread

    def _run(self) -> None:
        assert self._listener is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, _READ, self._accept)
        self._selector.register(self._wake_receiver, _READ, self._run_callbacks)
        self._running = True
        while self._running:
            self._handle_ready(self._selector.select())
        self._selector.close()

    def _handle_ready(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        # Its own function: a loop in the thread's would keep the last connection, closed or not, until the next event.
        for key, events in ready:
            if callable(key.data):
                key.data()
            else:
                self._handle_events(key.data, events)

    def _call_soon(self, act: Callable[[], None]) -> None:
        """Have the thread call `act`; from any thread."""
        self._callbacks.append(act)
        with suppress(BlockingIOError, OSError):  # full: the thread is awake anyway; closed: it has ended
            self._wake_sender.send(b"\0")

    def _run_callbacks(self) -> None:
        with suppress(BlockingIOError):
            self._wake_receiver.recv(RECEIVE_BYTES)
        while self._callbacks:
            self._callbacks.popleft()()

    def _shut_down(self) -> None:
        self._running = False
        for reader in list(self._connections):
            self._remove_connection(reader)
        assert self._listener is not None
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            close_socket(each)
        self._close_spare_fd()
        if self._pool is not None:
            self._pool.close()

    def _accept(self) -> None:
        try:
            reader = self._accept_connection()
        except OSError as error:  # usually the reader is gone again
            if limit_error(error) is not None:
                self._refuse_connection(error)
            return
        if reader is None:
            return
        try:
            self._selector.register(reader.sock, _READ, reader)
        except OSError:  # the kernel has no room for one more
            reader.close()
            return
        self._connections.add(reader)

    def _accept_connection(self) -> ServerConnection | None:
        """Accept a reader's connection; None if it belongs to another user."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        forks.register_fd(connection.fileno())
        if not same_user(connection):
            close_socket(connection)
            return None
        connection.setblocking(False)
        return ServerConnection(connection, self._max_held_bytes, self._watch_writable)

    def _refuse_connection(self, error: OSError) -> None:
        """Refuse a reader because open files ran out; without an answer it would wait until others are closed."""
        self._close_spare_fd()
        with suppress(OSError):
            reader = self._accept_connection()
            if reader is not None:
                reader.send_refusal(f"the worker cannot open a connection ({describe_os_error(error)})")
                close_socket(reader.sock)
        self._open_spare_fd()

    def _open_spare_fd(self) -> None:
        with suppress(OSError):
            self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare_fd(self) -> None:
        spare, self._spare_fd = self._spare_fd, -1
        if spare >= 0:
            os.close(spare)

    def _handle_events(self, reader: ServerConnection, events: int) -> None:
        if events & selectors.EVENT_WRITE and reader.send_more():
            self._selector.modify(reader.sock, _READ, reader)
        if not events & selectors.EVENT_READ:
            return
        if not reader.receive():
            self._remove_connection(reader)
            return
        self._handle_requests(reader)

    def _watch_writable(self, reader: ServerConnection) -> None:
        def watch() -> None:
            if reader in self._connections:
                self._selector.modify(reader.sock, _BOTH, reader)

        self._call_soon(watch)

    def _remove_connection(self, reader: ServerConnection) -> None:
        """Handle the end of a reader's socket: its slabs are released, and unconsumed elements wait for its return."""
        if reader in self._connections:
            self._connections.discard(reader)
            self._selector.unregister(reader.sock)
            self._close_connection(reader)

    def _close_connection(self, reader: ServerConnection) -> None:
        try:
            if reader.session is not None and reader.consumed is not None:
                reader.session.credit(0, reader.consumed, 0)  # what it could not acknowledge any more
        except Exception:  # noqa: BLE001 - a bug: without this thread all readers of this worker would wait for ever
            _log.exception("the last acknowledgement of a reader could not be handled")
        finally:
            reader.close()
            self._release_admission(reader)

    def _release_admission(self, reader: ServerConnection) -> None:
        if reader.admitted:
            reader.admitted = False
            self._admission.release()
        self._release_memory()

    def _release_memory(self) -> None:
        if (
            not self._connections and self._pool is not None and self._running
        ):  # not during shutdown: readers may still have views
            self._pool.release_when_unused()

    # ---- messages of readers

    def _handle_requests(self, reader: ServerConnection) -> None:
        try:
            for request in reader.requests():
                self._handle_request(reader, request)
        except Exception as error:  # noqa: BLE001 - a bug: without an error the reader would wait for ever
            reader.fail(error)

    def _handle_request(self, reader: ServerConnection, request: Request) -> None:
        head = request.header
        if head.kind == MessageKind.OPEN:
            reader.is_opening = True
            self._open_executor.submit(self._open, reader, request)
        elif head.kind == MessageKind.RELEASE:
            reader.release(head.a)
        elif reader.session is None:
            return  # opening failed, and the reader gets the error
        elif head.kind == MessageKind.CREDIT:
            taken = COUNT.unpack(request.text)[0] if request.text else 0
            reader.session.credit(head.a, head.b, head.c, head.d, taken)
        elif head.kind == MessageKind.RECALL:
            reader.session.recall()
        elif head.kind == MessageKind.LEAVE:
            reader.session.leave(head.b)
            reader.session = None
            self._release_admission(reader)
            reader.send([pack_message(MessageKind.BYE)])

    def _open(self, reader: ServerConnection, request: Request) -> None:
        """Open a task for a reader. Runs on its own thread, because the worker may have to ask the dispatcher first."""
        try:
            self._authenticate_and_open(reader, request.text[: request.header.a], request.text[request.header.a :])
        except Exception as error:  # noqa: BLE001 - any error must reach the reader
            if not isinstance(error, DsnbError):
                _log.debug("a reader could not be let in", exc_info=True)
            reader.fail(error)
        finally:
            self._call_soon(lambda: self._on_opened(reader))

    def _authenticate_and_open(self, reader: ServerConnection, proof_bytes: bytes, request_bytes: bytes) -> None:
        try:
            proof, answer = self._guard.admit(PROOF_METHOD, decode_proof(proof_bytes))
        except Refusal as refusal:
            if not refusal.initial_metadata:
                reader.send_refusal(refusal.error.what)
                return
            reader.send_proof(dict(refusal.initial_metadata)[PROOF_HEADER])
            raise refusal.error from None
        reader.send_proof(dict(answer)[PROOF_HEADER])
        if request_digest(request_bytes) != proof.digest:
            raise altered_message_error()
        pool = self._get_pool(reader)
        if pool is None:
            return
        self._admission.acquire()
        reader.admitted = True
        request = decode(ReadRequest, request_bytes)
        link_stats = LinkStats(transfer=SHARED_MEMORY.name, reason=request.why)
        reader.send_memory(pool, request.task_id, link_stats)
        reader.session = self._worker.open(request, reader, link_stats)

    def _on_opened(self, reader: ServerConnection) -> None:
        reader.is_opening = False
        if reader in self._connections:
            self._handle_requests(reader)  # messages that arrived meanwhile
        else:  # it disconnected while `_open` ran, which may have mapped its page and admitted it since
            self._close_connection(reader)

    @property
    def pool(self) -> Pool | None:
        """The memory of the readers; None as long as no reader has needed it."""
        return self._pool

    def debug_state(self) -> dict[str, int]:
        """The number of connections, and the bytes of memory that are reserved and used."""
        pool = self._pool
        return {
            "connections": len(self._connections),
            "reserved_bytes": pool.memory.reserved if pool is not None else 0,
            "used_bytes": pool.used_bytes if pool is not None else 0,
        }

    def _get_pool(self, reader: ServerConnection) -> Pool | None:
        """The pool, created for the first reader; None if there is none and the reader has been sent a refusal."""
        with self._pool_lock:
            if self._pool is None and self._size:
                try:
                    self._pool = Pool(self._size, lambda: self._call_soon(self._release_memory))
                except OSError as error:
                    reader.send_refusal(f"the worker's system refuses shared memory ({describe_os_error(error)})")
                    return None
            if self._pool is None:
                reader.send_refusal("the worker is set up without shared memory")
            return self._pool

    def _max_held_bytes(self) -> int:
        """Most bytes that one reader may hold, so that a reader that keeps all its views leaves room for others."""
        return (self._pool.size if self._pool is not None else 0) // (1 + min(max(1, self._admission.active), 3))

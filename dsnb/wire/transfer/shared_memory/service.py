"""The worker's end: one thread listens to all readers of this host; what a task delivers is sent by who delivers it.

A reader's socket outlives its reading while the reader keeps views: it carries their releases, or its end does.
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
from dsnb.limits import explained, said
from dsnb.wire import forks
from dsnb.wire.codec import decode
from dsnb.wire.messages import ReadRequest
from dsnb.wire.security import PROOF_HEADER, Guard, Refusal, changed_on_its_way, digest_of
from dsnb.wire.threads import OnDemandExecutor
from dsnb.wire.transfer.admission import Admission
from dsnb.wire.transfer.handover import Endpoint, Opening
from dsnb.wire.transfer.shared_memory.line import (
    CHUNK,
    COUNT,
    OPENING,
    Kind,
    hang_up,
    message,
    name_of,
    same_user,
    shown_from,
)
from dsnb.wire.transfer.shared_memory.memory import supported
from dsnb.wire.transfer.shared_memory.outlet import ReaderOutlet, Request
from dsnb.wire.transfer.shared_memory.pool import Pool

_log = logging.getLogger(__name__)

_READ, _BOTH = selectors.EVENT_READ, selectors.EVENT_READ | selectors.EVENT_WRITE
_BACKLOG = 128


class SharedMemoryService:
    """Serves the readers of this host through shared memory.

    Args:
        endpoint: The worker.
        guard: Decides which readers are let in.
        size: Most bytes of memory; with 0 every reader is refused.
        admission: How many readers it serves.
    """

    def __init__(self, endpoint: Endpoint, guard: Guard, size: int, admission: Admission) -> None:
        self._endpoint = endpoint
        self._guard = guard
        self._size = size
        self._admission = admission
        self._openers = OnDemandExecutor("dsnb-open")
        self._pool: Pool | None = None
        self._pool_lock = threading.Lock()
        self._readers: set[ReaderOutlet] = set()
        self._todo: deque[Callable[[], None]] = deque()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._spare = -1
        """A descriptor to give up where no file may be opened, so that a reader can be refused instead of waiting."""

    def start(self, worker_uid: str) -> None:
        """Listen, where the system can do this at all."""
        if not supported():
            return
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(name_of(worker_uid))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._alarm, self._ear = socket.socketpair()
        for end in (self._alarm, self._ear):
            end.setblocking(False)
        for each in (self._listener, self._alarm, self._ear):
            forks.keep_from_children(each.fileno())
        self._keep_spare()
        self._thread = threading.Thread(target=self._run, name="dsnb-shared-memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close everything; readers keep what they look at. The second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._openers.shutdown()
        self._later(self._end)
        if thread is not threading.current_thread():
            thread.join(5.0)

    # ---- the thread

    def _run(self) -> None:
        assert self._listener is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, _READ, self._accept)
        self._selector.register(self._ear, _READ, self._wake)
        self._running = True
        while self._running:
            for key, events in self._selector.select():
                if callable(key.data):
                    key.data()
                else:
                    self._attend(key.data, events)
        self._selector.close()

    def _later(self, act: Callable[[], None]) -> None:
        """Have the thread do something."""
        self._todo.append(act)
        with suppress(BlockingIOError, OSError):  # full: it is awake; closed: it has ended
            self._alarm.send(b"\0")

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._ear.recv(CHUNK)
        while self._todo:
            self._todo.popleft()()

    def _end(self) -> None:
        self._running = False
        for reader in list(self._readers):
            self._lose(reader)
        assert self._listener is not None
        for each in (self._listener, self._alarm, self._ear):
            hang_up(each)
        self._drop_spare()
        if self._pool is not None:
            self._pool.close()

    def _accept(self) -> None:
        try:
            reader = self._accepted()
        except OSError as error:  # mostly it has gone again
            if explained(error) is not None:
                self._turn_away(error)
            return
        if reader is not None:
            self._readers.add(reader)
            self._selector.register(reader.connection, _READ, reader)

    def _accepted(self) -> ReaderOutlet | None:
        """A reader that has connected; None if it is another user's."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        forks.keep_from_children(connection.fileno())
        if not same_user(connection):
            hang_up(connection)
            return None
        connection.setblocking(False)
        return ReaderOutlet(connection, self._share, self._wants_to_write)

    def _turn_away(self, error: OSError) -> None:
        """Refuse a reader for which no file may be opened: it would wait until others are closed."""
        self._drop_spare()
        with suppress(OSError):
            reader = self._accepted()
            if reader is not None:
                reader.refuse(f"the worker cannot open a connection ({said(error)})")
                hang_up(reader.connection)
        self._keep_spare()

    def _keep_spare(self) -> None:
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, -1
        if spare >= 0:
            os.close(spare)

    def _attend(self, reader: ReaderOutlet, events: int) -> None:
        if events & selectors.EVENT_WRITE and reader.send_more():
            self._selector.modify(reader.connection, _READ, reader)
        if not events & selectors.EVENT_READ:
            return
        if not reader.receive():
            self._lose(reader)
            return
        self._obey(reader)

    def _wants_to_write(self, reader: ReaderOutlet) -> None:
        def watch() -> None:
            if reader in self._readers:
                self._selector.modify(reader.connection, _BOTH, reader)

        self._later(watch)

    def _lose(self, reader: ReaderOutlet) -> None:
        """Its socket has come to its end: whatever it held is free, and what it did not consume waits for it."""
        if reader in self._readers:
            self._readers.discard(reader)
            self._selector.unregister(reader.connection)
            if reader.reading is not None and reader.consumed is not None:
                reader.reading.credit(0, reader.consumed, 0)  # what it could not tell any more
            reader.close()
            self._let_out(reader)

    def _let_out(self, reader: ReaderOutlet) -> None:
        if reader.admitted:
            reader.admitted = False
            self._admission.leave()
        self._rest()

    def _rest(self) -> None:
        if not self._readers and self._pool is not None and self._running:  # at the end readers may still look at it
            self._pool.rest()

    # ---- what readers say

    def _obey(self, reader: ReaderOutlet) -> None:
        try:
            for request in reader.requests():
                self._obey_one(reader, request)
        except Exception as error:  # noqa: BLE001 - a bug: the reader must not wait for what it will not get
            reader.fail(error)

    def _obey_one(self, reader: ReaderOutlet, request: Request) -> None:
        head = request.head
        if head.kind == Kind.OPEN:
            reader.opening = True
            self._openers.submit(self._open, reader, request)
        elif head.kind == Kind.RELEASE:
            reader.release(head.a)
        elif reader.reading is None:
            return  # it is told why
        elif head.kind == Kind.CREDIT:
            taken = COUNT.unpack(request.text)[0] if request.text else 0
            reader.reading.credit(head.a, head.b, head.c, head.d, taken)
        elif head.kind == Kind.RECALL:
            reader.reading.recall()
        elif head.kind == Kind.LEAVE:
            reader.reading.leave(head.b)
            reader.reading = None
            self._let_out(reader)
            reader.send([message(Kind.BYE)])

    def _open(self, reader: ReaderOutlet, request: Request) -> None:
        """Let a reader in; not on the thread, for the worker may have to ask the dispatcher first."""
        try:
            self._let_in(reader, request.text[: request.head.a], request.text[request.head.a :])
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader must learn of it
            if not isinstance(error, DsnbError):
                _log.debug("a reader could not be let in", exc_info=True)
            reader.fail(error)
        finally:
            self._later(lambda: self._opened(reader))

    def _let_in(self, reader: ReaderOutlet, shown: bytes, said: bytes) -> None:
        try:
            proof, answer = self._guard.admit(OPENING, shown_from(shown))
        except Refusal as refusal:
            if not refusal.answer:
                reader.refuse(refusal.page.what)
                return
            reader.prove(dict(refusal.answer)[PROOF_HEADER])
            raise refusal.page from None
        reader.prove(dict(answer)[PROOF_HEADER])
        if digest_of(said) != proof.digest:
            raise changed_on_its_way()
        pool = self._memory(reader)
        if pool is None:
            return
        self._admission.enter()
        reader.admitted = True
        request = decode(ReadRequest, said)
        opening = Opening.of_request(request, "shared_memory")
        reader.begin(pool, opening)
        reader.reading = self._endpoint.open(opening, reader)

    def _opened(self, reader: ReaderOutlet) -> None:
        reader.opening = False
        if reader in self._readers:
            self._obey(reader)  # what it said meanwhile
        else:
            self._let_out(reader)

    def _memory(self, reader: ReaderOutlet) -> Pool | None:
        """The memory, made for the first reader; None where the reader was told that there is none."""
        with self._pool_lock:
            if self._pool is None and self._size:
                try:
                    self._pool = Pool(self._size, lambda: self._later(self._rest))
                except OSError as error:
                    reader.refuse(f"the worker's system refuses shared memory ({said(error)})")
                    return None
            if self._pool is None:
                reader.refuse("the worker is set up without shared memory")
            return self._pool

    def _share(self) -> int:
        """Bytes that one reader may hold: one that keeps all its views leaves room for others."""
        return (self._pool.size if self._pool is not None else 0) // (1 + min(max(1, self._admission.inside), 3))

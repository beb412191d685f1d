"""The reader's end: one socket and one mapping for each reading. Who waits for elements takes what comes over it."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from dsnb.errors import DsnbError, UnavailableError
from dsnb.wire import forks
from dsnb.wire.codec import encode
from dsnb.wire.status import end_of_read, error_of
from dsnb.wire.transfer.handover import Opening, Piece, Reading, Sink, ears_of
from dsnb.wire.transfer.headers import restore
from dsnb.wire.transfer.shared_memory.line import (
    CHUNK,
    HEAD,
    Head,
    Kind,
    Part,
    SharedMemoryRefused,
    connect,
    credentials_text,
    hang_up,
    head_of,
    message,
)
from dsnb.wire.transfer.shared_memory.memory import Bytes, Mapping

_AT_ONCE = 12 << 20
"""Released bytes that are told at once; fewer, or those of one slab, go along with the next credit."""

_LEAVE_S = 2.0
_BREAK_S = 0.5
_open: set[_Line] = set()
"""All lines of this process: one lives as long as there are views of its memory, whoever else has forgotten it."""


class SharedMemoryEndpoint:
    """A worker on this host.

    Args:
        worker_uid: Which one.
        token: For the worker.
    """

    def __init__(self, worker_uid: str, token: str) -> None:
        self._worker_uid = worker_uid
        self._token = token

    def open(self, opening: Opening, sink: Sink) -> Reading:
        """Begin to read a task.

        Raises:
            SharedMemoryRefused: there is no such worker on this host; what else goes wrong is told to the sink.
        """
        forks.check_grpc()
        return _SharedReading(_Line(connect(self._worker_uid)), opening, sink, credentials_text(self._token))


class _View(weakref.ref[Bytes]):
    """Tells when the last view of a frame is gone."""

    __slots__ = ("at", "nbytes", "number")
    at: int
    nbytes: int
    number: int


class _Line:
    """A socket to a worker, with the memory that came over it and the views of that which live."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mapping: Mapping | None = None
        self._lock = threading.Lock()
        self._views: dict[int, _View] = {}
        self._count = 0
        self._released: deque[tuple[int, int]] = deque()
        self._released_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._at_once = self._most = _AT_ONCE
        self._over = False
        self._heard = bytearray()
        self._descriptors: list[int] = []
        self._part: Part | None = None
        _open.add(self)

    @property
    def descriptor(self) -> int:
        """Of the socket."""
        return self._connection.fileno()

    # ---- saying

    def say(self, *words: bytes) -> None:
        """Send messages, and what was released before them. Never blocks: what does not fit goes with the next."""
        with self._lock:
            self._unsent.extend(words)
            self._send()
        self._tell_released()  # by then more may have died, whose callback found the lock taken

    def _send(self) -> None:
        self._unsent.extend(self._releases())
        while self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            try:
                sent = self._connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                sent = 0
            except OSError:  # it is gone, and with it all that was held
                return
            if sent < len(data):
                self._unsent.append(data[sent:])
                return

    def _releases(self) -> list[bytes]:
        """Messages for the slabs that nobody looks at any more; their pages are what the worker wrote again."""
        messages = []
        self._released_bytes = 0
        while self._released and self._mapping is not None:
            at, nbytes = self._released.popleft()
            self._mapping.clean(at, nbytes)
            messages.append(message(Kind.RELEASE, at))
        return messages

    # ---- views

    def root(self, at: int, nbytes: int) -> Bytes:
        """A slab's bytes; it is released when the last view of them is gone."""
        if self._mapping is None:
            raise UnavailableError("a frame came before the memory that it lies in")
        root = self._mapping.root(at, nbytes)
        view = _View(root, self._gone)
        self._count += 1
        view.at, view.nbytes, view.number = at, nbytes, self._count
        self._views[view.number] = view
        return root

    def _gone(self, view: weakref.ref[Bytes]) -> None:
        """The last view of a frame has died: in any thread, in the midst of anything. So this waits for nobody."""
        if sys.is_finalizing() or not isinstance(view, _View):
            return
        self._released.append((view.at, view.nbytes))
        self._released_bytes += view.nbytes
        del self._views[view.number]
        if self._over or self._many_released:
            self._tell_released()

    def _tell_released(self) -> None:
        while self._due and self._lock.acquire(blocking=False):  # whoever has it looks again when done
            try:
                self._send()
                if self._over and not self._views and not self._released:
                    self._close()
            finally:
                self._lock.release()

    @property
    def _due(self) -> bool:
        """Whether there is something to do that need not wait for the next message."""
        if self._over:
            return self in _open and (bool(self._released) or not self._views)
        return self._many_released

    @property
    def _many_released(self) -> bool:
        released = self._released_bytes
        return released >= self._at_once and (released >= self._most or len(self._released) > 1)

    def finish(self) -> None:
        """Learn that the reading is over: the line stays while there are views."""
        with self._lock:
            self._over = True
            if self._mapping is not None:
                self._mapping.rest()
        self._tell_released()

    def _close(self) -> None:
        _open.discard(self)
        hang_up(self._connection)
        self._mapping = None

    def break_off(self) -> None:
        """Have whoever listens here hear no more. The other end must not take it for the end: there may be views."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    # ---- hearing

    def wait(self, timeout: float) -> None:
        """Wait until something has come, for so many seconds at the most."""
        with suppress(OSError, ValueError):  # closed meanwhile
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            poll.poll(1000 * timeout)

    def hear(self, *, wait: bool) -> None:
        """Take some of what has come; if nothing has, wait for it or do without.

        Raises:
            EOFError: the other end has gone.
        """
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            if self._part is not None and not self._heard:
                got = self._connection.recv_into(self._part.rest, 0, flags)
                self._part.filled += got
            elif self._mapping is None:
                data, descriptors, _, _ = socket.recv_fds(self._connection, CHUNK, 1, flags)
                self._descriptors += descriptors
                self._heard += data
                got = len(data)
            else:
                data = self._connection.recv(CHUNK, flags)
                self._heard += data
                got = len(data)
        except BlockingIOError:
            return
        if not got:
            raise EOFError

    def messages(self) -> Iterator[_Message]:
        """What has come whole."""
        heard = self._heard
        while True:
            if self._part is not None:
                self._part.fill(heard)
                if len(self._part.rest):
                    return
                part, self._part = self._part, None
                part.body.flags.writeable = False
                yield part.head, part.text, part.body
                continue
            if len(heard) < HEAD.size:
                return
            head = head_of(heard)
            end = HEAD.size + head.length
            if len(heard) < end:
                return
            text = bytes(heard[HEAD.size : end])
            del heard[:end]
            if head.kind == Kind.BODY:
                if len(heard) < head.b:
                    self._part = Part(head, text)
                    continue
                body = np.frombuffer(bytes(heard[: head.b]), np.uint8)
                del heard[: head.b]
                yield head, text, body
                continue
            if head.kind == Kind.WELCOME:
                self._look_at(head.a)
            yield head, text, _NOTHING

    def _look_at(self, size: int) -> None:
        """Map the memory whose descriptor came.

        Raises:
            SharedMemoryRefused: it did not come.
        """
        if not self._descriptors:  # the system leaves it out where a process has as many as it may
            raise SharedMemoryRefused("this process may open no more files, and so cannot have the worker's memory")
        try:
            self._mapping = Mapping(self._descriptors[0], size)
            self._most = size // 8
            self._at_once = min(_AT_ONCE, self._most)
        finally:
            while self._descriptors:
                os.close(self._descriptors.pop())


_NOTHING: Bytes = np.empty(0, np.uint8)
_Message = tuple[Head, bytes, Bytes]


class _SharedReading:
    """One read of a task on this host. What comes is taken by who waits for it, or by a thread where nobody listens."""

    def __init__(self, line: _Line, opening: Opening, sink: Sink, shown: bytes) -> None:
        self._line = line
        self._sink = sink
        self._left = threading.Event()
        self._over = False
        self._hearing = threading.Lock()
        self._ears = ears_of(sink)
        self._thread: threading.Thread | None = None
        line.say(message(Kind.OPEN, len(shown), text=shown + encode(opening.request())))
        if self._ears is not None:
            self._ears.add(line.descriptor, self._hear)
            return
        name = f"dsnb-read-{opening.task_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0) -> None:
        self._line.say(message(Kind.CREDIT, granted, consumed, max_bytes, received))

    def recall(self) -> None:
        self._line.say(message(Kind.RECALL))

    def leave(self, consumed: int) -> None:
        if self._left.is_set():
            return
        self._left.set()
        self._line.say(message(Kind.LEAVE, b=consumed))
        if threading.current_thread() is self._thread:
            return
        self._await_end(_LEAVE_S)  # the worker answers when it has taken the leaving in
        if not self._over:
            self._line.break_off()
            self._await_end(_BREAK_S)

    def _await_end(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            return
        deadline = time.monotonic() + seconds
        while not self._over and (left := deadline - time.monotonic()) > 0:
            self._line.wait(left)
            self._hear()

    def _run(self) -> None:
        while not self._over:
            self._hear(wait=True)

    def _hear(self, *, wait: bool = False) -> None:
        """Take what has come."""
        error: Exception | None = None
        with self._hearing:
            if self._over:
                return
            try:
                self._line.hear(wait=wait)
                if all(self._take(*said) for said in self._line.messages()):
                    return
            except DsnbError as failed:  # first: some of ours are connection errors too
                error = failed
            except (EOFError, ConnectionError):
                pass
            except OSError as failed:
                error = SharedMemoryRefused(f"this process cannot look at the worker's memory ({failed})")
            except Exception as failed:  # noqa: BLE001 - a bug: the reader must not wait for what will not come
                error = failed
            except BaseException:  # the user's, who may go on: what was in hand is asked for again
                self._end(UnavailableError("the reader was interrupted"))
                raise
            self._end(error or UnavailableError("the worker has gone"))

    def _end(self, error: Exception) -> None:
        self._over = True
        if self._ears is not None:
            self._ears.remove(self._line.descriptor)
        self._line.finish()
        if not self._left.is_set():
            self._sink.fail(error)

    def _take(self, head: Head, text: bytes, body: Bytes) -> bool:
        """Act on a message; False when it was the last."""
        if head.kind == Kind.SLAB:
            whole = restore(text, head.d, self._line.root(head.a, head.b))
            start, count = head.c >> 32, head.c & 0xFFFFFFFF
            part = count < whole.count
            self._sink.deliver(Piece(whole.frame, head.d + start, start, count, whole.incarnation) if part else whole)
        elif head.kind == Kind.BODY:
            self._sink.deliver(restore(text, head.d, body))
        elif head.kind == Kind.END:
            self._sink.end()
        elif head.kind == Kind.RECALLED:
            self._sink.recalled(head.a)
        elif head.kind == Kind.PROGRESS:
            self._sink.progress(head.a, head.b)
        elif head.kind == Kind.REFUSED:
            raise SharedMemoryRefused(text.decode())
        elif head.kind == Kind.FAIL:
            raise end_of_read(error_of(text))
        return head.kind != Kind.BYE

"""A reader's line to a worker: its socket, with the memory that came over it and the views of that which live."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from dsnb.errors import UnavailableError
from dsnb.limits import files_open
from dsnb.wire.transfer.shared_memory.line import (
    CHUNK,
    HEAD,
    Head,
    Kind,
    Part,
    SharedMemoryRefused,
    hang_up,
    head_of,
    message,
)
from dsnb.wire.transfer.shared_memory.memory import Bytes, Mapping
from dsnb.wire.transfer.shared_memory.slabs import adjoining

_AT_ONCE = 12 << 20
"""Released bytes that are told at once; fewer, or those of one slab, go along with the next credit."""

_NO_WAIT = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
lines: set[Line] = set()
"""All lines of this process: one lives as long as there are views of its memory, whoever else has forgotten it."""


class Line:
    """A socket to a worker, with the memory that came over it and the views of that which live."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mapping: Mapping | None = None
        self._lock = threading.Lock()
        self._released: deque[tuple[int, int]] = deque()
        self._released_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._held: list[bytes] | None = []
        """What waits for the worker's proof; None once it has come."""
        self._at_once = self._most = _AT_ONCE
        self._over = False
        self._heard = bytearray()
        self._descriptors: list[int] = []
        self._part: Part | None = None
        lines.add(self)

    @property
    def descriptor(self) -> int:
        """Of the socket."""
        return self._connection.fileno()

    # ---- saying

    def begin(self, word: bytes, descriptor: int) -> None:
        """Send the first message, which may be sent to whoever listens there, with a descriptor.

        Raises:
            SharedMemoryRefused: it could not be sent.
        """
        try:
            sent = socket.send_fds(self._connection, [word], [descriptor], _NO_WAIT)
        except OSError as error:
            self.finish()
            raise SharedMemoryRefused(f"the worker's socket takes nothing ({error})") from None
        with self._lock:
            if sent < len(word):
                self._unsent.append(word[sent:])

    def trust(self) -> None:
        """Send what was said since, for the other end has proven that it is the worker."""
        with self._lock:
            if self._held is not None:
                self._unsent.extend(self._held)
                self._held = None
                self._send()

    def say(self, *words: bytes) -> None:
        """Send messages, and what was released before them. Never blocks: what does not fit goes with the next."""
        with self._lock:
            if self._held is not None:
                self._held.extend(words)
                return
            self._unsent.extend(words)
            self._send()
        self._tell_released()  # by then more may have died, whose callback found the lock taken

    def _send(self) -> None:
        self._unsent.extend(self._releases())
        while self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            try:
                sent = self._connection.send(data, _NO_WAIT)
            except BlockingIOError:
                sent = 0
            except OSError:  # it is gone, and with it all that was held
                return
            if sent < len(data):
                self._unsent.append(data[sent:])
                return

    def _releases(self) -> list[bytes]:
        """Messages for the slabs that nobody looks at any more; their pages are what the worker wrote again."""
        if self._mapping is None:
            return []
        self._released_bytes = 0
        released = [self._released.popleft() for _ in range(len(self._released))]
        for at, nbytes in adjoining(released):
            self._mapping.clean(at, nbytes)
        return [message(Kind.RELEASE, at) for at, _ in released]

    # ---- views

    def root(self, at: int, nbytes: int) -> Bytes:
        """A slab's bytes; it is released when the last view of them is gone."""
        if self._mapping is None:
            raise UnavailableError("a frame came before the memory that it lies in")
        return self._mapping.view(at, nbytes, self._gone)

    def _gone(self, at: int, nbytes: int) -> None:
        """The last view of a frame has died: in any thread, in the midst of anything. So this waits for nobody."""
        self._released.append((at, nbytes))
        self._released_bytes += nbytes
        if self._over or self._many_released:
            self._tell_released()

    def _tell_released(self) -> None:
        while self._due and self._lock.acquire(blocking=False):  # whoever has it looks again when done
            try:
                self._send()
                if self._over and not self._looked_at and not self._released:
                    self._close()
            finally:
                self._lock.release()

    @property
    def _due(self) -> bool:
        """Whether there is something to do that need not wait for the next message."""
        if self._over:
            return self in lines and (bool(self._released) or not self._looked_at)
        return self._many_released

    @property
    def _looked_at(self) -> bool:
        mapping = self._mapping
        return mapping is not None and mapping.looked_at

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
            self._drop_descriptors()  # that came without the message that says what they are
        self._tell_released()

    def _close(self) -> None:
        lines.discard(self)
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

    def messages(self) -> Iterator[Message]:
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
            raise SharedMemoryRefused(f"this process cannot have the worker's memory: {files_open()}")
        try:
            self._mapping = Mapping(self._descriptors[0], size)
            self._most = size // 8
            self._at_once = min(_AT_ONCE, self._most)
        finally:
            self._drop_descriptors()

    def _drop_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


_NOTHING: Bytes = np.empty(0, np.uint8)
Message = tuple[Head, bytes, Bytes]

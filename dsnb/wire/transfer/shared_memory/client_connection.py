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
from dsnb.system_limits import open_files_text
from dsnb.wire.transfer.shared_memory.free_list import merge_adjacent
from dsnb.wire.transfer.shared_memory.memory import ByteArray, PrivateMapping
from dsnb.wire.transfer.shared_memory.messages import (
    HEADER,
    RECEIVE_BYTES,
    MessageHeader,
    MessageKind,
    PartialMessage,
    SharedMemoryRefused,
    close_socket,
    pack_message,
    unpack_header,
)

_RELEASE_BATCH_BYTES = 12 << 20
"""Released bytes that are told at once; fewer, or those of one slab, go along with the next credit."""

_NO_WAIT = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
connections: set[ClientConnection] = set()
"""All lines of this process: one lives as long as there are views of its memory, whoever else has forgotten it."""


class ClientConnection:
    """A socket to a worker, with the memory that came over it and the views of that which live."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._mapping: PrivateMapping | None = None
        self._lock = threading.Lock()
        self._released: deque[tuple[int, int]] = deque()
        self._released_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._awaiting_proof: list[bytes] | None = []
        """What waits for the worker's proof; None once it has come."""
        self._release_threshold = self._max_unsent_release = _RELEASE_BATCH_BYTES
        self._finished = False
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._partial: PartialMessage | None = None
        connections.add(self)

    @property
    def descriptor(self) -> int:
        """Of the socket."""
        return self._sock.fileno()

    # ---- saying

    def send_first(self, data: bytes, descriptor: int) -> None:
        """Send the first message, which may be sent to whoever listens there, with a descriptor.

        Raises:
            SharedMemoryRefused: it could not be sent.
        """
        try:
            sent = socket.send_fds(self._sock, [data], [descriptor], _NO_WAIT)
        except OSError as error:
            self.finish()
            raise SharedMemoryRefused(f"the worker's socket takes nothing ({error})") from None
        with self._lock:
            if sent < len(data):
                self._unsent.append(data[sent:])

    def mark_proven(self) -> None:
        """Send what was said since, for the other end has proven that it is the worker."""
        with self._lock:
            if self._awaiting_proof is not None:
                self._unsent.extend(self._awaiting_proof)
                self._awaiting_proof = None
                self._flush()

    def send(self, *messages: bytes) -> None:
        """Send messages, and what was released before them. Never blocks: what does not fit goes with the next."""
        with self._lock:
            if self._awaiting_proof is not None:
                self._awaiting_proof.extend(messages)
                return
            self._unsent.extend(messages)
            self._flush()
        self._send_releases()  # by then more may have died, whose callback found the lock taken

    def _flush(self) -> None:
        self._unsent.extend(self._release_messages())
        while self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            try:
                sent = self._sock.send(data, _NO_WAIT)
            except BlockingIOError:
                sent = 0
            except OSError:  # it is gone, and with it all that was held
                return
            if sent < len(data):
                self._unsent.append(data[sent:])
                return

    def _release_messages(self) -> list[bytes]:
        """Messages for the slabs that nobody looks at any more; their pages are what the worker wrote again."""
        if self._mapping is None:
            return []
        self._released_bytes = 0
        released = [self._released.popleft() for _ in range(len(self._released))]
        for at, nbytes in merge_adjacent(released):
            self._mapping.discard_private_pages(at, nbytes)
        return [pack_message(MessageKind.RELEASE, at) for at, _ in released]

    # ---- views

    def base_array(self, at: int, nbytes: int) -> ByteArray:
        """A slab's bytes; it is released when the last view of them is gone."""
        if self._mapping is None:
            raise UnavailableError("a frame came before the memory that it lies in")
        return self._mapping.tracked_array(at, nbytes, self._on_view_gone)

    def _on_view_gone(self, at: int, nbytes: int) -> None:
        """The last view of a frame has died: in any thread, in the midst of anything. So this waits for nobody."""
        self._released.append((at, nbytes))
        self._released_bytes += nbytes
        if self._finished or self._should_send_releases:
            self._send_releases()

    def _send_releases(self) -> None:
        while self._has_work and self._lock.acquire(blocking=False):  # whoever has it looks again when done
            try:
                self._flush()
                if self._finished and not self._has_views and not self._released:
                    self._close()
            finally:
                self._lock.release()

    @property
    def _has_work(self) -> bool:
        """Whether there is something to do that need not wait for the next message."""
        if self._finished:
            return self in connections and (bool(self._released) or not self._has_views)
        return self._should_send_releases

    @property
    def _has_views(self) -> bool:
        mapping = self._mapping
        return mapping is not None and mapping.has_views

    @property
    def _should_send_releases(self) -> bool:
        released = self._released_bytes
        return released >= self._release_threshold and (released >= self._max_unsent_release or len(self._released) > 1)

    def finish(self) -> None:
        """Learn that the reading is over: the line stays while there are views."""
        with self._lock:
            self._finished = True
            if self._mapping is not None:
                self._mapping.close_pagemap()
            self._close_descriptors()  # that came without the message that says what they are
        self._send_releases()

    def _close(self) -> None:
        connections.discard(self)
        close_socket(self._sock)
        self._mapping = None

    def stop_receiving(self) -> None:
        """Have whoever listens here hear no more. The other end must not take it for the end: there may be views."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    # ---- hearing

    def wait(self, timeout: float) -> None:
        """Wait until something has come, for so many seconds at the most."""
        with suppress(OSError, ValueError):  # closed meanwhile
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            poll.poll(1000 * timeout)

    def receive(self, *, wait: bool) -> None:
        """Take some of what has come; if nothing has, wait for it or do without.

        Raises:
            EOFError: the other end has gone.
        """
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            if self._partial is not None and not self._received:
                got = self._sock.recv_into(self._partial.remaining, 0, flags)
                self._partial.filled += got
            elif self._mapping is None:
                data, descriptors, _, _ = socket.recv_fds(self._sock, RECEIVE_BYTES, 1, flags)
                self._descriptors += descriptors
                self._received += data
                got = len(data)
            else:
                data = self._sock.recv(RECEIVE_BYTES, flags)
                self._received += data
                got = len(data)
        except BlockingIOError:
            return
        if not got:
            raise EOFError

    def messages(self) -> Iterator[Message]:
        """What has come whole."""
        received = self._received
        while True:
            if self._partial is not None:
                self._partial.fill(received)
                if len(self._partial.remaining):
                    return
                part, self._partial = self._partial, None
                part.body.flags.writeable = False
                yield part.head, part.text, part.body
                continue
            if len(received) < HEADER.size:
                return
            head = unpack_header(received)
            end = HEADER.size + head.length
            if len(received) < end:
                return
            text = bytes(received[HEADER.size : end])
            del received[:end]
            if head.kind == MessageKind.BODY:
                if len(received) < head.b:
                    self._partial = PartialMessage(head, text)
                    continue
                body = np.frombuffer(bytes(received[: head.b]), np.uint8)
                del received[: head.b]
                yield head, text, body
                continue
            if head.kind == MessageKind.WELCOME:
                self._map_memory(head.a)
            yield head, text, _NO_BODY

    def _map_memory(self, size: int) -> None:
        """Map the memory whose descriptor came.

        Raises:
            SharedMemoryRefused: it did not come.
        """
        if not self._descriptors:  # the system leaves it out where a process has as many as it may
            raise SharedMemoryRefused(f"this process cannot have the worker's memory: {open_files_text()}")
        try:
            self._mapping = PrivateMapping(self._descriptors[0], size)
            self._max_unsent_release = size // 8
            self._release_threshold = min(_RELEASE_BATCH_BYTES, self._max_unsent_release)
        finally:
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


_NO_BODY: ByteArray = np.empty(0, np.uint8)
Message = tuple[MessageHeader, bytes, ByteArray]

"""A reader's connection to a worker: the socket, the mapping of the worker's memory, and the release of its slabs.

The connection outlives its read as long as views of the memory are alive, because it carries their releases.
"""

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
from dsnb.transfer.protocol import TransferRefused
from dsnb.transfer.shared_memory.free_list import merge_adjacent
from dsnb.transfer.shared_memory.memory import ByteArray, PrivateMapping
from dsnb.transfer.shared_memory.messages import (
    HEADER,
    RECEIVE_BYTES,
    MessageHeader,
    MessageKind,
    PartialMessage,
    close_socket,
    pack_message,
    receive_with_descriptor,
    send_with_descriptor,
    unpack_header,
)

_RELEASE_BATCH_BYTES = 12 << 20
"""Releases are sent at once when they amount to this many bytes in several slabs; else with the next message."""

_NO_WAIT = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
connections: set[ClientConnection] = set()
"""All connections of this process: keeps each one alive as long as there are views of its memory."""


class ClientConnection:
    """A socket to a worker, with the worker's memory and the live views of it. Methods that send are thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._mapping: PrivateMapping | None = None
        self._lock = threading.Lock()
        self._released: deque[tuple[int, int]] = deque()
        self._released_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._awaiting_proof: list[bytes] | None = []
        """Messages to send after the worker's proof has arrived; None from then on."""
        self._release_threshold = self._max_unsent_release = _RELEASE_BATCH_BYTES
        self._finished = False
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._partial: PartialMessage | None = None
        connections.add(self)

    @property
    def descriptor(self) -> int:
        return self._sock.fileno()

    # ---- sending

    def send_first(self, data: bytes, descriptor: int) -> None:
        """Send the first message, with a descriptor, before the peer has proven that it is the worker.

        Raises:
            TransferRefused: the message could not be sent.
        """
        try:
            sent = send_with_descriptor(self._sock, data, descriptor, _NO_WAIT)
        except OSError as error:
            self.finish()
            raise TransferRefused(f"the worker's socket cannot be written to ({error})") from None
        with self._lock:
            if sent < len(data):
                self._unsent.append(data[sent:])

    def mark_proven(self) -> None:
        """Send the messages that were held back until the peer proved that it is the worker."""
        with self._lock:
            if self._awaiting_proof is not None:
                self._unsent.extend(self._awaiting_proof)
                self._awaiting_proof = None
                self._flush()
        self._send_releases()

    def send(self, *messages: bytes) -> None:
        """Send messages and pending releases. Never blocks: if the socket is full, the rest follows with the next."""
        with self._lock:
            if self._awaiting_proof is not None:
                self._awaiting_proof.extend(messages)
            else:
                self._unsent.extend(messages)
                self._flush()
        # Meanwhile views may have died, or the read may have ended, and found the lock taken.
        self._send_releases()

    def _flush(self) -> None:
        self._unsent.extend(self._release_messages())
        while self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            try:
                sent = self._sock.send(data, _NO_WAIT)
            except BlockingIOError:
                sent = 0
            except OSError:  # the worker is gone, or drops everything at the end of the socket
                return
            if sent < len(data):
                self._unsent.append(data[sent:])
                return

    def _release_messages(self) -> list[bytes]:
        """RELEASE messages for slabs without views; discards private copies of their pages first."""
        if self._mapping is None:
            return []
        self._released_bytes = 0
        released = [self._released.popleft() for _ in range(len(self._released))]
        for at, nbytes in merge_adjacent(released):
            self._mapping.discard_private_pages(at, nbytes)
        return [pack_message(MessageKind.RELEASE, at) for at, _ in released]

    # ---- views

    def base_array(self, at: int, nbytes: int) -> ByteArray:
        """A slab's bytes as an array; the slab is released when the last view of it is gone."""
        if self._mapping is None:
            raise UnavailableError("a frame came before the memory that it lies in")
        return self._mapping.tracked_array(at, nbytes, self._on_view_gone)

    def _on_view_gone(self, at: int, nbytes: int) -> None:
        """Handle the death of a slab's last view. Runs in any thread, at any point of its code, so it never blocks."""
        self._released.append((at, nbytes))
        self._released_bytes += nbytes
        if self._finished or self._should_send_releases:
            self._send_releases()

    def _send_releases(self) -> None:
        # Never waits for the lock: this thread may hold it itself. Every holder calls this method again afterwards.
        while self._has_work and self._lock.acquire(blocking=False):
            try:
                self._flush()
                if self._finished and not self._has_views and not self._released:
                    self._close()
            finally:
                self._lock.release()

    @property
    def _has_work(self) -> bool:
        """Whether there is something to do that does not wait for the next message."""
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
        """End the read; the connection stays open as long as there are views."""
        with self._lock:
            self._finished = True
            if self._mapping is not None:
                self._mapping.close_pagemap()
            self._close_descriptors()  # descriptors that arrived without their WELCOME message
        self._send_releases()

    def _close(self) -> None:
        connections.discard(self)
        close_socket(self._sock)
        self._mapping = None

    def stop_receiving(self) -> None:
        """Make `receive` fail. The socket stays open for sending: its end would release slabs that still have views."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    # ---- receiving

    def wait(self, timeout: float) -> None:
        """Wait until a message has arrived, for at most `timeout` seconds."""
        with suppress(OSError, ValueError):  # the socket was closed meanwhile
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            poll.poll(1000 * timeout)

    def receive(self, *, wait: bool) -> None:
        """Receive some bytes; if there are none, block if `wait` is true, else return.

        Raises:
            EOFError: the worker has closed the connection.
        """
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            if self._partial is not None and not self._received:
                got = self._sock.recv_into(self._partial.remaining, 0, flags)
                self._partial.filled += got
            elif self._mapping is None:  # the memory's descriptor may come with the next bytes
                data, descriptors = receive_with_descriptor(self._sock, RECEIVE_BYTES, flags)
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
        """Yield the messages that have arrived completely, as (header, text, body)."""
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
        """Map the worker's memory, whose descriptor has arrived.

        Raises:
            TransferRefused: the descriptor was not received.
        """
        if not self._descriptors:  # the kernel drops it if this process has too many open files
            raise TransferRefused(f"this process cannot open the worker's memory: {open_files_text()}")
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

"""Reads a file of a store from its beginning to its end, several blocks ahead of the reader.

A request to a store takes some 10 to 100 ms, whatever its size, so blocks are large and several are requested at once.
Reading begins with a few blocks ahead; whenever the reader had to wait, their number doubles.
"""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from dsnb.errors import DeadlineExceededError
from dsnb.storage.urls import RemoteFile, shown

T = TypeVar("T")

BLOCK_BYTES: Final = 1 << 20
DEADLINE_S: Final = 300.0
"""How long a reader waits for one block, including repeated requests."""
_FIRST_AHEAD: Final = 4
_MOST_BYTES_AHEAD: Final = 16 << 20


class ReadAhead(io.RawIOBase):
    """A remote file as a readable one.

    Args:
        file: The file.
        block_bytes: How many bytes to request at once.
    """

    def __init__(self, file: RemoteFile, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__()
        self._file = file
        self._block_bytes = block_bytes
        self._most_ahead = max(2, _MOST_BYTES_AHEAD // block_bytes)
        self._ahead = min(_FIRST_AHEAD, self._most_ahead)
        self._next_start = 0
        self._fetches: deque[Future[bytes]] = deque()
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block:
            self._block = memoryview(self._next_block())
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _next_block(self) -> bytes:
        if self._file.size is None:
            data = b"" if self._next_start else self._file.read_all()
            self._next_start += len(data) or 1
            return data
        self._request()
        if not self._fetches:
            return b""
        fetch = self._fetches[0]
        if not fetch.done() and self._next_start > self._block_bytes:
            self._ahead = min(2 * self._ahead, self._most_ahead)
        self._request()
        data = result_of(fetch, self._file.url)
        self._fetches.popleft()  # not before: an interrupt while it waits must not lose the block
        return data

    def _request(self) -> None:
        """Request as many blocks as may be under way; the one that is waited for is not counted."""
        size = self._file.size or 0
        while len(self._fetches) <= self._ahead and self._next_start < size:
            end = self._next_start + self._block_bytes
            self._fetches.append(self._file.fetch(self._next_start, end))
            self._next_start = end

    def close(self) -> None:
        self._fetches.clear()  # requests under way end by themselves
        self._block = memoryview(b"")
        super().close()


def result_of(fetch: Future[T], url: str) -> T:
    """Wait for data of a file and return them.

    Raises:
        DeadlineExceededError: they did not come in time.
    """
    try:
        return fetch.result(DEADLINE_S)
    except TimeoutError:
        if fetch.done():
            raise  # the store's own
        raise DeadlineExceededError(
            f"{shown(url)} did not arrive within {DEADLINE_S:g} s",
            did="this error takes the place of its elements",
            hint="look at the network between this host and the store",
        ) from None

"""Definitions and big captured arrays, kept by what they contain: outside the journal, once each."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import xxhash

from dsnb.errors import DataLossError, NotFoundError
from dsnb.wire.messages import BlobPiece

PIECE = 1 << 20


class BlobStore:
    """Content-addressed bytes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes | bytearray] = {}

    def put(self, digest: str, data: bytes | bytearray) -> None:
        with self._lock:
            self._blobs.setdefault(digest, data)

    def put_definition(self, data: bytes) -> str:
        """Keep a definition and return its digest."""
        digest = xxhash.xxh3_128_hexdigest(data)
        self.put(digest, data)
        return digest

    def get(self, digest: str) -> bytes | bytearray:
        """The bytes of that digest.

        Raises:
            NotFoundError: they are not here.
        """
        with self._lock:
            data = self._blobs.get(digest)
        if data is None:
            raise NotFoundError(
                f"the dispatcher does not hold the blob {digest}", hint="register the dataset again; it was dropped"
            )
        return data

    def missing(self, digests: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these are not here."""
        with self._lock:
            return tuple(digest for digest in digests if digest not in self._blobs)

    def receive(self, pieces: Iterator[BlobPiece]) -> None:
        """Put a blob together from its pieces.

        Raises:
            DataLossError: fewer bytes came than were announced.
        """
        first = next(pieces, None)
        if first is None:
            raise DataLossError("a blob arrived without a piece", did="it was not kept", hint="try again")
        data = bytearray(first.data)
        for piece in pieces:
            data += piece.data
        if len(data) != first.nbytes:
            raise DataLossError(
                f"a blob of {first.nbytes:,} bytes arrived with {len(data):,}", did="it was not kept", hint="try again"
            )
        self.put(first.digest, data)

    def send(self, digest: str) -> Iterator[BlobPiece]:
        """A blob in pieces; the first one says how long it is."""
        data = memoryview(self.get(digest))
        for at in range(0, max(1, len(data)), PIECE):
            yield BlobPiece(digest=digest, nbytes=len(data), data=bytes(data[at : at + PIECE]))

    def keep_only(self, digests: set[str]) -> None:
        """Let everything else go."""
        with self._lock:
            for digest in self._blobs.keys() - digests:
                del self._blobs[digest]

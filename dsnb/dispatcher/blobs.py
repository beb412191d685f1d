"""Definitions and big captured arrays, kept by what they contain: outside the journal, once each."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import xxhash

from dsnb.errors import DataLossError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import BlobPiece

PIECE = 1 << 20

Blob = bytes | bytearray | mmap.mmap


class BlobStore:
    """Content-addressed bytes. Thread-safe.

    Args:
        folder: Where they are kept, made if it is not there, and what it holds is known again; None for the memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._folder = folder
        self._blobs: dict[str, bytes | bytearray | Path] = {}
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self._blobs = {path.name: path for path in folder.iterdir()}

    def put(self, digest: str, data: bytes | bytearray) -> None:
        if not digest.isalnum():  # it becomes the name of a file
            raise InvalidArgumentError(f"{digest!r} is no digest", did="nothing was kept")
        kept = data if self._folder is None else self._write(self._folder / digest, data)
        with self._lock:
            self._blobs.setdefault(digest, kept)

    def put_definition(self, data: bytes) -> str:
        """Keep a definition and return its digest."""
        digest = xxhash.xxh3_128_hexdigest(data)
        self.put(digest, data)
        return digest

    def get(self, digest: str) -> Blob:
        """The bytes of that digest; those of a file are mapped, so that all who have them share the memory.

        Raises:
            NotFoundError: they are not here.
        """
        with self._lock:
            data = self._blobs.get(digest)
        try:
            return _mapped(data) if isinstance(data, Path) else data if data is not None else _unknown(digest)
        except FileNotFoundError:
            return _unknown(digest)

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
        """Let everything else go; whoever has mapped a file keeps what is in it."""
        with self._lock:
            for digest in self._blobs.keys() - digests:
                kept = self._blobs.pop(digest)
                if isinstance(kept, Path):
                    kept.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes | bytearray) -> Path:
        # Written aside and renamed: what bears its name is whole, whenever this process dies.
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(aside, path)
        return path


def _mapped(path: Path) -> Blob:
    with path.open("rb") as file:
        empty = os.fstat(file.fileno()).st_size == 0
        return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _unknown(digest: str) -> Blob:
    raise NotFoundError(
        f"the dispatcher does not hold the blob {digest}", hint="register the dataset again; it was dropped"
    )

"""Definitions and big captured arrays, kept by what they contain: outside the journal, once each.

A blob is compared with its digest when it arrives, and when it is read from its file: a disk may give back other bytes
than it was given. One that is damaged is no longer there, so that the next registration brings it again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from dsnb.cache import files
from dsnb.cache.failpoints import Failpoint
from dsnb.errors import DataLossError, InvalidArgumentError, NotFoundError
from dsnb.wire import blobs
from dsnb.wire.messages import BlobPiece

Blob = bytes | bytearray | mmap.mmap

_RENAME_FAILPOINT = Failpoint("blob name")
_SWEEP_FAILPOINT = Failpoint("blob sweep")


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
            folder.mkdir(exist_ok=True, mode=0o700)
            files.remove_stale_temporary_files(str(folder), _SWEEP_FAILPOINT)
            self._blobs = {path.name: path for path in folder.iterdir() if _is_digest(path.name)}

    def put(self, digest: str, data: bytes | bytearray) -> None:
        """Keep bytes that are known to have this digest."""
        if not _is_digest(digest):  # it becomes the name of a file
            raise InvalidArgumentError(f"{digest!r} is no digest", did="nothing was kept")
        kept = data if self._folder is None else self._write(self._folder / digest, data)
        with self._lock:
            self._blobs.setdefault(digest, kept)

    def put_definition(self, data: bytes) -> str:
        """Keep a definition and return its digest."""
        digest = blobs.blob_digest(data)
        self.put(digest, data)
        return digest

    def get(self, digest: str) -> Blob:
        """The bytes of that digest; those of a file are mapped, so that all who have them share the memory.

        Raises:
            NotFoundError: they are not here.
            DataLossError: the file holds other bytes.
        """
        with self._lock:
            found = self._blobs.get(digest)
        if not isinstance(found, Path):
            return found if found is not None else _raise_not_found(digest)
        try:
            data = _mapped(found)
            blobs.check_digest(digest, data, f"is in {found}, and")
        except FileNotFoundError:
            return _raise_not_found(digest)
        except DataLossError:
            self._drop_damaged(digest, found)
            raise
        return data

    def _drop_damaged(self, digest: str, damaged: Path) -> None:
        """Let a damaged file go: a dataset is registered under this name, so it is no file of the user's."""
        with self._lock:
            if self._blobs.get(digest) == damaged:
                del self._blobs[digest]
        with contextlib.suppress(OSError):
            damaged.unlink(missing_ok=True)

    def missing(self, digests: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these are not here."""
        with self._lock:
            return tuple(digest for digest in digests if digest not in self._blobs)

    def receive(self, pieces: Iterator[BlobPiece]) -> None:
        """Put a blob together from its pieces.

        Raises:
            DataLossError: it did not arrive whole.
        """
        self.put(*blobs.join_pieces(pieces))

    def send(self, digest: str) -> Iterator[BlobPiece]:
        """A blob in pieces; each says how long all of it is."""
        return blobs.blob_pieces(digest, self.get(digest))

    def keep_only(self, digests: set[str]) -> None:
        """Let everything else go; whoever has mapped a file keeps what is in it."""
        with self._lock:
            for digest in self._blobs.keys() - digests:
                kept = self._blobs.pop(digest)
                if isinstance(kept, Path) and _matches_digest(kept):
                    kept.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes | bytearray) -> Path:
        # Written aside and renamed: a file with a digest's name is complete, whenever this process dies.
        try:
            files.replace_without_sync(str(path), data, _RENAME_FAILPOINT, mode=0o600)
        except OSError as error:
            raise files.translate_os_error(
                error, f"keeping a pipeline in {path.parent}", "it was not registered"
            ) from error
        return path


def _is_digest(name: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def _matches_digest(path: Path) -> bool:
    """Whether a file holds what its name says; nobody but dsnb names files so."""
    try:
        return path.is_file() and not path.is_symlink() and blobs.blob_digest(_mapped(path)) == path.name
    except OSError:
        return False


def _mapped(path: Path) -> Blob:
    with path.open("rb") as file:
        empty = os.fstat(file.fileno()).st_size == 0
        return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _raise_not_found(digest: str) -> Blob:
    raise NotFoundError(
        f"the dispatcher does not hold the blob {digest}", hint="register the dataset again; it was dropped"
    )

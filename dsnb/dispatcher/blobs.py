"""Content-addressed storage of definitions and large captured arrays: outside the journal, each content once.

A blob is compared with its digest when it arrives, and each time it is read from its file, because a disk may return
other bytes than were written. A damaged blob counts as missing, so that the next registration sends it again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from dsnb.errors import DataLossError, InvalidArgumentError, NotFoundError
from dsnb.storage import files
from dsnb.storage.failpoints import Failpoint
from dsnb.wire import blobs
from dsnb.wire.messages import BlobPiece

Blob = bytes | bytearray | mmap.mmap

_RENAME_FAILPOINT = Failpoint("blob name")
_SWEEP_FAILPOINT = Failpoint("blob sweep")


class BlobStore:
    """Content-addressed bytes. Thread-safe.

    Args:
        folder: The folder for the files, created if it does not exist; blobs that it holds are available again. None to
            keep blobs in memory.
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
        """Store bytes that are known to have this digest.

        Raises:
            InvalidArgumentError: `digest` is not a digest.
        """
        if not _is_digest(digest):  # the digest becomes a file name, so it must not hold a path
            raise InvalidArgumentError(f"{digest!r} is no digest", did="nothing was kept")
        kept = data if self._folder is None else self._write(self._folder / digest, data)
        with self._lock:
            self._blobs.setdefault(digest, kept)

    def put_definition(self, data: bytes) -> str:
        """Store a definition and return its digest."""
        digest = blobs.blob_digest(data)
        self.put(digest, data)
        return digest

    def get(self, digest: str) -> Blob:
        """The bytes with that digest. Files are mapped, so that all users of a blob share the memory.

        Raises:
            NotFoundError: there is no such blob.
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
        """Delete a damaged file. A registered dataset uses its name, so it is not a file of the user."""
        with self._lock:
            if self._blobs.get(digest) == damaged:
                del self._blobs[digest]
        with contextlib.suppress(OSError):
            damaged.unlink(missing_ok=True)

    def missing(self, digests: tuple[str, ...]) -> tuple[str, ...]:
        """The digests among these that have no blob."""
        with self._lock:
            return tuple(digest for digest in digests if digest not in self._blobs)

    def debug_state(self) -> dict[str, int]:
        """The bytes of each blob, by its digest."""
        with self._lock:
            kept = dict(self._blobs)
        return {digest: blob.stat().st_size if isinstance(blob, Path) else len(blob) for digest, blob in kept.items()}

    def receive(self, pieces: Iterator[BlobPiece]) -> None:
        """Store a blob that arrives in pieces.

        Raises:
            DataLossError: the blob did not arrive completely, or has another digest.
        """
        self.put(*blobs.join_pieces(pieces))

    def send(self, digest: str) -> Iterator[BlobPiece]:
        """A blob in pieces; each piece carries the length of the whole blob."""
        return blobs.blob_pieces(digest, self.get(digest))

    def keep_only(self, digests: set[str]) -> None:
        """Delete all blobs except these; existing mappings of deleted files stay valid."""
        with self._lock:
            for digest in self._blobs.keys() - digests:
                kept = self._blobs.pop(digest)
                if isinstance(kept, Path) and _matches_digest(kept):
                    kept.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes | bytearray) -> Path:
        # Write to a temporary file and rename: a file with a digest's name is complete even if this process dies.
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
    """Whether a file's name is its digest, in which case dsnb wrote it and may delete it."""
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

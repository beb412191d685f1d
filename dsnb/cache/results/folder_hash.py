"""Hashes a folder: names and contents of all files, to compare folders, and their total size."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

import msgspec
import xxhash

from dsnb.errors import InvalidArgumentError

_PIECE: Final = 1 << 20


class FolderContent(msgspec.Struct, frozen=True):
    """The hash and size of a folder's content.

    Attributes:
        digest: The hash of the names and contents, 32 hexadecimal digits.
        nbytes: The total size of the files, in bytes.
    """

    digest: str
    nbytes: int


def hash_folder(
    folder: str, visit: Callable[[int], None] | None = None, *, follow_links: bool = False
) -> FolderContent:
    """Hash a folder; reads all files in it.

    Args:
        folder: The folder.
        visit: Called with a descriptor of each file, and of each folder after its content; used to sync them.
        follow_links: Whether the targets of links count too; otherwise only the links themselves do.

    Raises:
        InvalidArgumentError: the folder contains something that is not a file, folder or link.
        OSError: the system's error.
    """
    total = blake2b(digest_size=16)
    weight = 0
    for name, kind, size, digest in sorted(
        _walk(folder, "", visit, (os.path.realpath(folder),) if follow_links else ())
    ):
        weight += size
        for part in (name.encode("utf-8", "surrogateescape"), kind, size.to_bytes(8, "little"), digest):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return FolderContent(total.hexdigest(), weight)


def _walk(
    folder: str, below: str, visit: Callable[[int], None] | None, parents: tuple[str, ...]
) -> Iterator[tuple[str, bytes, int, bytes]]:
    """Yield name, kind, size and digest of everything in a folder.

    `parents` holds the folders around this one if links are followed, so that no folder is read inside itself.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = below + entry.name
        if entry.is_symlink():
            target = os.fsencode(os.readlink(entry.path))
            yield name, b"link", len(target), target
            leads_to = os.path.realpath(entry.path)
            if parents and os.path.isfile(leads_to):
                yield (f"{name}/", b"file", *_hash_file(leads_to, visit))
            elif parents and os.path.isdir(leads_to) and leads_to not in parents:
                yield from _walk(leads_to, f"{name}/", visit, (*parents, leads_to))
        elif entry.is_dir(follow_symlinks=False):
            yield name, b"folder", 0, b""
            yield from _walk(entry.path, f"{name}/", visit, parents and (*parents, os.path.realpath(entry.path)))
        else:
            yield (name, b"file", *_hash_file(entry.path, visit))
    if visit is not None:
        _visit(folder, os.O_RDONLY | os.O_DIRECTORY, visit)


def _hash_file(path: str, visit: Callable[[int], None] | None) -> tuple[int, bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block otherwise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidArgumentError(f"{path!r} is no file, folder or link", hint="write files")
        if visit is not None:
            visit(descriptor)
        return _hash_descriptor(descriptor)
    finally:
        os.close(descriptor)


def _hash_descriptor(descriptor: int) -> tuple[int, bytes]:
    digest = xxhash.xxh3_128()
    size = 0
    while piece := os.read(descriptor, _PIECE):
        digest.update(piece)
        size += len(piece)
    return size, digest.digest()


def _visit(path: str, flags: int, visit: Callable[[int], None]) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        visit(descriptor)
    finally:
        os.close(descriptor)

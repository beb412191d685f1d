"""What is in a folder: a hash of names and bytes that says whether two folders hold the same, and what it weighs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

import xxhash

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError

_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """What a folder holds.

    Attributes:
        digest: Of the names and bytes in it, in 32 hexadecimal digits.
        bytes: The length of its files.
    """

    digest: str
    bytes: int


def content_of(folder: str, visit: Callable[[int], None] | None = None, *, follow: bool = False) -> Content:
    """Read a folder through.

    Args:
        folder: Where to look.
        follow: Whether what links in it lead to counts too; else they are read as links.
        visit: Called with a descriptor of each file, and of each folder after what is in it: to sync them.

    Raises:
        InvalidArgumentError: there is something in it that is no file, folder or link.
        OSError: as the system has it.
    """
    total = blake2b(digest_size=16)
    weight = 0
    for name, kind, size, digest in sorted(_parts(folder, "", visit, (os.path.realpath(folder),) if follow else ())):
        weight += size
        for part in (name.encode("utf-8", "surrogateescape"), kind, size.to_bytes(8, "little"), digest):
            total.update(len(part).to_bytes(8, "little"))
            total.update(part)
    return Content(total.hexdigest(), weight)


def _parts(
    folder: str, below: str, visit: Callable[[int], None] | None, above: tuple[str, ...]
) -> Iterator[tuple[str, bytes, int, bytes]]:
    """The parts of a folder.

    Where links are followed, `above` has the folders around this one, so that none is read within itself.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = below + entry.name
        if entry.is_symlink():
            target = os.fsencode(os.readlink(entry.path))
            yield name, b"link", len(target), target
            leads_to = os.path.realpath(entry.path)
            if above and os.path.isfile(leads_to):
                yield (f"{name}/", b"file", *_file(leads_to, visit))
            elif above and os.path.isdir(leads_to) and leads_to not in above:
                yield from _parts(leads_to, f"{name}/", visit, (*above, leads_to))
        elif entry.is_dir(follow_symlinks=False):
            yield name, b"folder", 0, b""
            yield from _parts(entry.path, f"{name}/", visit, above and (*above, os.path.realpath(entry.path)))
        else:
            yield (name, b"file", *_file(entry.path, visit))
    if visit is not None:
        _visit(folder, os.O_RDONLY | os.O_DIRECTORY, visit)


def _file(path: str, visit: Callable[[int], None] | None) -> tuple[int, bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidArgumentError(f"{path!r} is no file, folder or link", hint="write files")
        if visit is not None:
            visit(descriptor)
        return _read_through(descriptor)
    finally:
        os.close(descriptor)


def _read_through(descriptor: int) -> tuple[int, bytes]:
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

"""What sort of file system a folder lies on: local ones keep SQLite and growing files safe, network ones do not.

A trial tells nothing: on a network mount SQLite's WAL answers "ok" while each host sees its own rows only. So the type
decides, by a list; what is on no list counts as not local.
"""

from __future__ import annotations

import os
from typing import Final

from dsnb.dataclass import dataclass

_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "bcachefs", "jfs", "reiserfs"}
    | {"apfs", "hfs", "vfat", "exfat", "ntfs3", "ntfs", "fuseblk", "fuse.fuse-overlayfs", "ecryptfs", "squashfs"}
)
_MOUNTS: Final = "/proc/self/mountinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """Where a folder lies.

    Attributes:
        kind: The type, as in "ext4" or "nfs4"; "unknown" where it cannot be told.
        mount: Where it is mounted.
        local: Whether it is known to be this host's own.
    """

    kind: str
    mount: str
    local: bool

    def __str__(self) -> str:
        return f"{self.kind} at {self.mount}"


def filesystem_of(path: str, mounts: str = _MOUNTS) -> FileSystem:
    """The file system of a path that exists, or of the nearest folder above it that does.

    Args:
        path: Any path.
        mounts: Where the kernel lists what is mounted.
    """
    path = os.path.realpath(path)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            found = [_mount(line) for line in file]
    except OSError:
        # No such list: macOS, say, whose network mounts are rare. It is said to be unknown and not to be local.
        return FileSystem(kind="unknown", mount="/", local=False)
    # The last of the longest: a later mount hides an earlier one at the same place.
    above = [(mount, kind) for mount, kind in found if _is_under(path, mount)]
    mount, kind = max(reversed(above), key=lambda pair: len(pair[0]), default=("/", "unknown"))
    return FileSystem(kind=kind, mount=mount, local=kind in _LOCAL)


def _mount(line: str) -> tuple[str, str]:
    before, _, after = line.partition(" - ")
    return _unescaped(before.split(" ")[4]), after.split(" ")[0]


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _is_under(path: str, mount: str) -> bool:
    return mount in ("/", path) or path.startswith(mount + "/")

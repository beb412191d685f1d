"""The type of the file system of a folder: SQLite and growing files are safe on local ones, and not on network ones.

A test at run time would not help: on a network mount, SQLite's WAL reports success while each host sees only its own
rows. So the type decides, by two lists; a type in neither counts as neither local nor a network file system.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "bcachefs", "jfs", "reiserfs"}
    | {"apfs", "hfs", "vfat", "exfat", "ntfs3", "ntfs", "fuseblk", "fuse.fuse-overlayfs", "ecryptfs", "squashfs"}
)
_NETWORK_PREFIXES: Final = (
    *("nfs", "cifs", "smb", "9p", "virtiofs", "lustre", "gpfs", "beegfs", "ceph", "afs", "gluster"),
    "fuse.",  # except those in _LOCAL
)
_MOUNTS: Final = "/proc/self/mountinfo"


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of a folder.

    Attributes:
        kind: The type, such as "ext4" or "nfs4"; "unknown" if it cannot be determined.
        mount: The mount point.
    """

    kind: str
    mount: str

    @property
    def local(self) -> bool:
        """Whether it is known to be local to this host."""
        return self.kind in _LOCAL

    @property
    def network(self) -> bool:
        """Whether each host is known to cache file contents for itself: two hosts that write one database lose rows."""
        return not self.local and self.kind.startswith(_NETWORK_PREFIXES)

    def __str__(self) -> str:
        return f"{self.kind} at {self.mount}"


def filesystem_of(path: str, mounts: str = _MOUNTS) -> FileSystem:
    """The file system of a path; if the path does not exist, of its nearest existing parent.

    Args:
        path: Any path.
        mounts: The file in which the kernel lists all mounts.
    """
    path = os.path.realpath(path)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            found = [_mount(line) for line in file]
    except OSError:
        # No such list on macOS, for example. The file system counts as unknown and not local.
        return FileSystem(kind="unknown", mount="/")
    # The last of the longest mount points: a later mount hides an earlier one at the same path.
    above = [(mount, kind) for mount, kind in found if _is_under(path, mount)]
    mount, kind = max(reversed(above), key=lambda pair: len(pair[0]), default=("/", "unknown"))
    return FileSystem(kind=kind, mount=mount)


def _mount(line: str) -> tuple[str, str]:
    before, _, after = line.partition(" - ")
    return _unescaped(before.split(" ")[4]), after.split(" ")[0]


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _is_under(path: str, mount: str) -> bool:
    return mount in ("/", path) or path.startswith(mount + "/")

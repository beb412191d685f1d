"""A small disk of one process's own, which can be full or read-only for real: root is refused by nothing less."""

from __future__ import annotations

import ctypes
import os

_NEW_MOUNTS, _NEW_USER = 0x0002_0000, 0x1000_0000
_READ_ONLY, _REMOUNT, _RECURSIVE, _PRIVATE = 1, 1 << 5, 1 << 14, 1 << 18


def mount(folder: str, size: str) -> None:
    """Mount a file system in memory on a folder, seen by this process and its children alone.

    Call it before anything has started a thread.

    Args:
        folder: Where.
        size: As in "2m".

    Raises:
        OSError: that may not be done here.
    """
    user, group = os.geteuid(), os.getegid()
    _call_libc("unshare", _NEW_MOUNTS | (_NEW_USER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _call_libc("mount", b"none", b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None)
    _call_libc("mount", b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode())


def make_read_only(folder: str) -> None:
    """Let nobody write to what was mounted on a folder; no file there may be open for writing."""
    _call_libc("mount", b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(_REMOUNT | _READ_ONLY), None)


def _call_libc(name: str, *arguments: object) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")

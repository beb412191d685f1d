"""Puts a socket of this process into words, for the failure of a test that left it open."""

from __future__ import annotations

import re
import socket
from pathlib import Path


def describe_socket(target: str) -> str:
    """Say where `socket:[12345]`, the target of a descriptor's link, leads."""
    inode = re.sub(r"\D", "", target)
    for protocol in ("tcp", "tcp6"):
        for fields in _rows(protocol):
            if fields[9] == inode:
                return f"{target} {protocol} {_address(fields[1])} <-> {_address(fields[2])}"
    for fields in _rows("unix"):
        if fields[6] == inode:
            return f"{target} unix {fields[7] if len(fields) > 7 else '(no name)'}"
    return target


def _rows(protocol: str) -> list[list[str]]:
    table = Path("/proc/self/net") / protocol
    return [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []


def _address(field: str) -> str:
    """Read "0100007F:1F90": the kernel prints each 32-bit word of an address in the machine's byte order."""
    host, port = field.split(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return f"{socket.inet_ntop(family, b''.join(words))}:{int(port, 16)}"

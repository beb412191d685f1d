"""A fixed list of workers (`worker_addresses`): which entry belongs to a worker with a given address.

An entry is "host", "host:port", "host:%port%" or "host:%port_name%", with or without a protocol; an IPv6 address is in
brackets. An entry belongs to the first worker that matches it, until that worker is gone; then a successor may join on
another port. All names of this machine's loopback are one host. The index of a worker's entry is its static index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dsnb.errors import FailedPreconditionError

_ENTRY = re.compile(r"(?:[\w+.-]+://)?(?P<host>.+?)(?::(?P<port>\d+|%port(_\w+)?%))?")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


def static_index(entries: Sequence[str], address: str, taken: Mapping[int, str]) -> int:
    """The index of a worker's entry in the list.

    Args:
        entries: The list.
        address: The address that the worker reported.
        taken: The addresses of the present workers, by static index.

    Raises:
        FailedPreconditionError: the list has no entry for the address, or other workers have all such entries.

    Example:
        >>> static_index(["a:%port%", "b:7000", "a:%port%"], "a:5050", {0: "a:6060"})
        2
    """
    for index, other in taken.items():
        if other == address:
            return index
    host, port = _parts(address)
    # An entry with this port can belong to no other worker of the host, so it goes before entries for any port.
    indices = [at for wanted in (port, "") for at, entry in enumerate(entries) if _parts(entry) == (host, wanted)]
    for index in indices:
        if index not in taken:
            return index
    listed = ", ".join(entries)
    if not indices:
        raise FailedPreconditionError(
            f"The worker's address is not configured: {address} is none of {listed}",
            did="the worker was not let in",
            hint="put it into DispatcherConfig(worker_addresses=...), give the worker its worker_address, or leave the "
            "list out: then workers are numbered as they come",
        )
    raise FailedPreconditionError(
        f"other workers are already running at the configured host: {address} finds its places taken in {listed}",
        did="the worker was not let in",
        hint="lengthen DispatcherConfig(worker_addresses=...); a worker that died frees its place when it is counted "
        "as lost, after worker_timeout_ms at the latest",
    )


def matches_entry(entry: str, address: str) -> bool:
    """Whether an entry of the list may belong to a worker with this address.

    Example:
        >>> matches_entry("a:%port%", "a:5050"), matches_entry("a:7000", "a:5050")
        (True, False)
    """
    host, port = _parts(address)
    return _parts(entry) in ((host, port), (host, ""))


def _parts(address: str) -> tuple[str, str]:
    """Host and port of an address or entry; the port is empty if any port matches."""
    found = _ENTRY.fullmatch(address)
    if found is None:
        return address, ""
    host, port = found["host"].lower(), found["port"] or ""
    return "localhost" if host in _LOOPBACK else host, "" if port.startswith("%") else port

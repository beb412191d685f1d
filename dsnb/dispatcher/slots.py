"""A fixed list of workers: which place in it belongs to a worker that tells its address.

An entry is "host", "host:port", "host:%port%" or "host:%port_name%", a protocol before it or not, an IPv6 address in
brackets. A place belongs to the worker that came first, for as long as it is here: one that is gone frees it, so that
its successor may come on another port. All names of this machine's loopback are one host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dsnb.errors import FailedPreconditionError

_ENTRY = re.compile(r"(?:[\w+.-]+://)?(?P<host>.+?)(?::(?P<port>\d+|%port(_\w+)?%))?")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


def static_index(entries: Sequence[str], address: str, taken: Mapping[int, str]) -> int:
    """The place of a worker in the list.

    Args:
        entries: The list.
        address: What the worker told.
        taken: The addresses of the workers that are here, by their places.

    Raises:
        FailedPreconditionError: the list has no place for such an address, or others have it.

    Example:
        >>> place_of(["a:%port%", "b:7000", "a:%port%"], "a:5050", {0: "a:6060"})
        2
    """
    for index, other in taken.items():
        if other == address:
            return index
    host, port = _parts(address)
    # An entry that names the port is meant for this worker alone, so it goes before those for any port.
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
    """Whether a place in the list may belong to a worker.

    Example:
        >>> is_place_of("a:%port%", "a:5050"), is_place_of("a:7000", "a:5050")
        (True, False)
    """
    host, port = _parts(address)
    return _parts(entry) in ((host, port), (host, ""))


def _parts(address: str) -> tuple[str, str]:
    """Host and port of an address or entry; no port where any will do."""
    found = _ENTRY.fullmatch(address)
    if found is None:
        return address, ""
    host, port = found["host"].lower(), found["port"] or ""
    return "localhost" if host in _LOOPBACK else host, "" if port.startswith("%") else port

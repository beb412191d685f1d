"""Who may see a page, and who may press its buttons.

A page of another origin can make a browser ask our server, but cannot learn the key that stands in the address that was
given to the user; another user of the machine can reach the port, but does not know the key either. So: with the key a
page may be seen through whatever address it was reached by (a tunnel, Jupyter's proxy) and may control the service;
without it a page is shown to this machine's own addresses alone, to look at.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

from dsnb.dataclass import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

NO_KEY = "open the address that svc.dashboard() or `dsnb dashboard` gave, with its key, to control the service"
ASKED_FOR = "it is served with --read-only"
BEYOND = "it is served beyond this machine; `panel serve dashboard --address 127.0.0.1` serves it with controls"
REPLAYED = "what it shows is over"


class Access(Enum):
    """What a page may do."""

    REFUSED = "refused"
    LOOK = "look"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rule of one server.

    Attributes:
        key: What the address holds; empty where the server decides by other means whom it lets in.
        read_only: Why nobody may control the service; empty if those with the key may.
    """

    key: str = ""
    read_only: str = ""

    def of(self, host: str, given: str) -> Access:
        """What a page may do that was asked for under a host's name with a key."""
        known = not self.key or hmac.compare_digest(self.key.encode(), given.encode())
        if known:
            return Access.LOOK if self.read_only else Access.CONTROL
        return Access.LOOK if _name(host) in LOOPBACK else Access.REFUSED

    def why_not(self, access: Access) -> str:
        """Why a page may only look, in words."""
        return "" if access is Access.CONTROL else self.read_only or NO_KEY


def on_loopback(arguments: Sequence[str]) -> bool:
    """Whether a `panel serve` with these arguments listens on this machine alone.

    Without `--address` it listens everywhere, but for a Unix socket, which has an owner instead of an address.
    """
    if "--unix-socket" in arguments:
        return True
    given = [after for before, after in pairwise(arguments) if before == "--address"]
    given += [argument.removeprefix("--address=") for argument in arguments if argument.startswith("--address=")]
    return bool(given) and all(address in LOOPBACK for address in given)


def _name(host: str) -> str:
    """A host without its port."""
    return host.rpartition("]")[0] + "]" if "]" in host else host.partition(":")[0]

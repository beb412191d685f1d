"""Which pages are shown, and which of them may control the service.

The address that the user gets contains a key. A page of another origin can make a browser send requests to our server,
and another user of the machine can reach its port, but neither knows the key. So a page that has the key is shown, and
may control the service, whatever address it was opened under (a tunnel, Jupyter's proxy); without it, nothing is shown.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

import msgspec

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

READ_ONLY_REQUESTED = "it is served with --read-only"
NOT_ON_LOOPBACK = (
    "it is served beyond this machine; `panel serve dashboard --address 127.0.0.1` serves it with controls"
)
IS_REPLAY = "what it shows is over"


class Access(Enum):
    """What a page is allowed to do."""

    REFUSED = "refused"
    READ_ONLY = "look"
    CONTROL = "control"


class AccessPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The access rule of one server.

    Attributes:
        key: The key in the address; empty for a server that only its owner can reach.
        read_only_reason: Why no page may control the service; empty if pages with the key may.
    """

    key: str = ""
    read_only_reason: str = ""

    def access_for(self, given: str) -> Access:
        """The access of a page that was requested with this key."""
        if self.key and not hmac.compare_digest(self.key.encode(), given.encode()):
            return Access.REFUSED
        return Access.READ_ONLY if self.read_only_reason else Access.CONTROL


def on_loopback(arguments: Sequence[str]) -> bool:
    """Whether a `panel serve` with these arguments listens on loopback only.

    Without `--address` it listens on all addresses.
    """
    addresses = [after for before, after in pairwise(arguments) if before == "--address"]
    addresses += [argument.removeprefix("--address=") for argument in arguments if argument.startswith("--address=")]
    return bool(addresses) and all(address in LOOPBACK for address in addresses)

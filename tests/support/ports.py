"""Ports that nobody else is given: a server may leave one and be started on it again.

The system gives out the ports of its own range at random, so what one test has just left the server of another test may
get, which runs beside it.
"""

from __future__ import annotations

import itertools
import os
import socket

_PROCESSES, _EACH = 8, 1500
_number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
_first = 20_000 + _number * _EACH  # below the range from which Linux gives out ports by itself
_ports = itertools.cycle(range(_first, _first + _EACH))


def own_port() -> int:
    """A port of the loopback interface on which nobody listens, and which no server gets by chance."""
    for port in itertools.islice(_ports, _EACH):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports of this process's share are taken")

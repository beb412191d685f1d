"""Ports that nobody else is given: a server may leave one and be started on it again.

The system gives out the ports of its own range at random, so what one test has just left the server of another test may
get, which runs beside it.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Below the range from which Linux gives out ports by itself; the test processes beside this one have others.
_RANGE = range(20_000 + _WORKER, 32_000, _WORKERS)
_ports = itertools.cycle(random.sample(_RANGE, len(_RANGE)))


def unused_port() -> int:
    """A port of the loopback interface on which nobody listens, and which no server gets by chance."""
    for port in itertools.islice(_ports, len(_RANGE)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports are taken")

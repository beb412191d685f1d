"""Finds out where a client runs: in which cell, process and host. People recognise these, but not a client's id."""

from __future__ import annotations

import inspect
import os
import socket
import threading
from collections import Counter

from msgspec.structs import replace

from dsnb.code.tracebacks import cell_number
from dsnb.wire.messages import ClientOrigin

_lock = threading.Lock()
_begun: Counter[tuple[int, int]] = Counter()
"""How many clients each process and cell has begun. The process is in the key, because a fork copies the counts."""


def current_origin() -> ClientOrigin:
    """Where the calling thread runs, not counted as a client yet."""
    return ClientOrigin(cell=_calling_cell(), pid=os.getpid(), host=socket.gethostname())


def count_client(origin: ClientOrigin) -> ClientOrigin:
    """The origin with the number of its clients so far, of which a new one is the last."""
    with _lock:
        _begun[origin.pid, origin.cell] += 1
        return replace(origin, ordinal=_begun[origin.pid, origin.cell])


def _calling_cell() -> int:
    """The number of the cell whose code the thread runs; 0 if there is none.

    The outermost frame of a cell counts: a function may come from an earlier cell than the one that calls it. A thread
    runs a function of the cell that defined it, whichever cell runs meanwhile.
    """
    found, frame = 0, inspect.currentframe()
    while frame is not None:
        found = cell_number(frame.f_code.co_filename) or found
        frame = frame.f_back
    return found

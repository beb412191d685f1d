"""Where a client runs, as it reports it and the status has it."""

from __future__ import annotations

import msgspec


class ClientOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client runs: the cell, the process and the host.

    Attributes:
        cell: The number of the notebook cell that reads, as in `In [3]`; 0 if no cell reads.
        pid: The id of its process.
        host: The name of its host. In a status it is empty if all workers and clients are on one host.
        ordinal: How many clients the same cell has begun, with this one; without a cell, its process. A loop over
            epochs begins one for each epoch.
    """

    cell: int = 0
    pid: int = 0
    host: str = ""
    ordinal: int = 0

"""Every way of handing over, and how all tests are made to use one of them.

    DSNB_TRANSFER=shared_memory python -m pytest tests/service tests/conformance

has readers that were not asked for a way of their own use that one, as far as it is possible there ("local" needs a
worker in the reader's process), and has tests that go through all ways go through that one only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dsnb.client import tasks
from dsnb.errors import UnavailableError
from dsnb.transfer import local
from dsnb.transfer.protocol import Endpoint
from dsnb.transfer.selection import choose_transfer
from dsnb.wire.messages import TaskInfo

FORCED_TRANSFER = os.environ.get("DSNB_TRANSFER")
TRANSFERS = [FORCED_TRANSFER] if FORCED_TRANSFER else ["grpc", "local", "shared_memory", "tcp"]
TESTS_TRANSFER_CHOICE = pytest.mark.skipif(
    FORCED_TRANSFER is not None, reason="tests the choice of a way, which DSNB_TRANSFER has made"
)
DEPENDS_ON_TRANSFER = pytest.mark.skipif(
    FORCED_TRANSFER is not None,
    reason="what limits a job depends on how its elements come, which DSNB_TRANSFER changes",
)
BETWEEN_PROCESSES = [name for name in TRANSFERS if name != "local"]


def force_transfer(patch: pytest.MonkeyPatch) -> None:
    """Have readers use the way that the environment names."""
    if FORCED_TRANSFER is None:
        return
    assert FORCED_TRANSFER in ("grpc", "local", "shared_memory", "tcp"), f"DSNB_TRANSFER is {FORCED_TRANSFER!r}"

    def forced(
        info: TaskInfo, protocol: str | None, token: str, *, refusals: Mapping[str, str], checksum: bool, **more: Any
    ) -> tuple[Endpoint, str]:
        # A worker without an address is one that a test made up in this process: there is one way to it.
        possible = {
            "local": local.find(info.worker_uid) is not None,
            "tcp": bool(info.address and info.data_port and not refusals),
        }.get(FORCED_TRANSFER, bool(info.address and not refusals and not checksum))
        wanted = FORCED_TRANSFER if protocol is None and possible else protocol
        return choose_transfer(info, wanted, token, refusals=refusals, checksum=checksum, **more)

    patch.setattr(tasks, "choose_transfer", forced)


def no_route(patch: pytest.MonkeyPatch) -> None:
    """Have readers reach no worker, and try it twice."""

    def refused(*_args: Any, **_named: Any) -> tuple[Endpoint, str]:
        raise UnavailableError("no route")

    patch.setattr(tasks, "choose_transfer", refused)
    patch.setattr(tasks, "ATTEMPTS", 2)


def overwrite_memory(array: np.ndarray[Any, Any], byte: int = 0xEE) -> None:
    """Write all over an array's memory, as libraries do that do not know of read-only arrays."""
    ctypes.memset(array.ctypes.data, byte, array.nbytes)

"""Marks the notebooks that take long: their kernels start services, train and kill processes.

A notebook that needs a framework or an engine is skipped where that is not installed.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from jupyter_core.utils import ensure_event_loop

QUICK = {"03_modes_and_splits.ipynb"}
"""The notebooks that `pytest` runs as it is; the others are run by CI."""

PEERS = {"10_outgrown.ipynb": "distributed", "11_pytorch.ipynb": "torch"}
"""What a notebook needs beside `dsnb[notebook]`; CI runs it in the environment that has the extra `peers`."""


def pytest_configure(config: pytest.Config) -> None:
    # jupyter_core makes an event loop for its first client and keeps it for good; made now, it is no leak of a test's.
    config.add_cleanup(ensure_event_loop().close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cells of the other notebooks as slow, and those to skip. Called with the items of all folders."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent != here:
            continue
        if item.path.name not in QUICK:
            item.add_marker(pytest.mark.slow)
        if missing := _missing_peer(item.path.name):
            item.add_marker(pytest.mark.skip(reason=f"{missing} is not installed (the extra dsnb[peers] has it)"))


def _missing_peer(notebook: str) -> str | None:
    """The peer for want of which this notebook is skipped; with `DSNB_REQUIRE_PEERS=1` it is run, and fails."""
    peer = PEERS.get(notebook)
    missing = peer is not None and find_spec(peer) is None
    return peer if missing and os.environ.get("DSNB_REQUIRE_PEERS") != "1" else None

# ruff: noqa: INP001 - a folder of notebooks is no package
"""Lets nbval run the notebooks beside tests that look for what is left behind."""

from __future__ import annotations

import os
import tempfile

import pytest
from jupyter_core.utils import ensure_event_loop


def pytest_configure(config: pytest.Config) -> None:
    # nbval talks to its kernels over an event loop that jupyter_core makes at the first use and keeps for good, with
    # two sockets in it. Made now, before any test counts, it is nobody's leak; closed at the end, it is not even ours.
    config.add_cleanup(ensure_event_loop().close)
    if "DSNB_RUNTIME_DIR" not in os.environ:  # a service of the person who runs this may have the name of a notebook's
        folder = tempfile.TemporaryDirectory(prefix="notebooks-")
        os.environ["DSNB_RUNTIME_DIR"] = folder.name
        config.add_cleanup(folder.cleanup)

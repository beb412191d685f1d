"""Starts the thread of fsspec's event loop, which lasts as long as the process, before a test looks for leaks."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("fsspec") is not None:
    from fsspec import asyn

    asyn.get_loop()

"""Checks an installed dsnb: run it with the Python of an environment that has the wheel, outside the checkout."""

from __future__ import annotations

import sys
import threading
from pathlib import Path


def check_import() -> None:
    """`import dsnb` starts no thread and loads neither panel nor bokeh."""
    import dsnb

    assert threading.active_count() == 1, threading.enumerate()
    assert not {"panel", "bokeh"} & set(sys.modules)
    checkout = Path(__file__).resolve().parents[1]
    assert checkout not in Path(dsnb.__file__).resolve().parents, f"this is the checkout's own: {dsnb.__file__}"


def check_data() -> None:
    """What is no Python came along."""
    import dsnb

    package = Path(dsnb.__file__).parent
    assert (package / "py.typed").exists()
    assert list(package.glob("demo/*.zip")), "the demo's images are missing"
    assert (Path(sys.prefix) / "share/jupyter/notebook_templates/dsnb/dsnb.ipynb").exists(), "the template is missing"
    assert list(package.glob("wire/proto/*.proto")), "the .proto files are missing"


def check_dashboard() -> None:
    """The dashboard is served, theme and all, and a page of it can be had."""
    from urllib.request import urlopen

    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import snapshot_stream

    server = start_in_thread(snapshot_stream("no-such-service"))
    try:
        with urlopen(server.url, timeout=30) as page:
            assert page.status == 200
            assert b"dsnb" in page.read()
    finally:
        server.stop()


if __name__ == "__main__":
    for check in (check_import, check_data, check_dashboard):
        check()
        print(f"ok {check.__name__}: {check.__doc__}")

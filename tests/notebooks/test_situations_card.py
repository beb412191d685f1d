"""The card under a cell: it moves while a cell runs, scales, and ends with its service.

`tests/browser/test_lab.py` looks at it in a real JupyterLab; here is what the kernel holds.
"""

from __future__ import annotations

import pytest

from tests.support.kernel import Kernel
from tests.support.requires import require_module

SHOW = """
import time
import dsnb
svc = dsnb.start(workers=1, name="carded")
shown = svc._repr_mimebundle_()
print(*sorted(shown))
"""
# All in one cell, whose loop holds the kernel's main thread: what arrives, a thread of the card's has brought.
BUSY = """
widgets = svc._card._widgets
until = time.monotonic() + 30
while "runs as" not in widgets._body.value and time.monotonic() < until:
    sum(range(1000))
print("runs as" in widgets._body.value, widgets._slider.value, "open the dashboard" in widgets._head.value)
"""
SLIDE = """
widgets._slider.value = 2  # what the front end sends when it is let go
print(len(svc.wait_until(lambda now: len(now.workers) == 2).workers))
"""
ONE_FEED = """
import threading, urllib.request
urllib.request.urlopen(svc.dashboard_url(), timeout=20).read()
print(*sorted(thread.name for thread in threading.enumerate() if thread.name in {"dsnb-card", "dsnb-dashboard-feed"}))
"""
STOP = """
svc.stop()
print(widgets._head.value.endswith(": stopped"), widgets._slider.disabled, sorted(svc._repr_mimebundle_()))
"""


@pytest.mark.slow
def test_a_card_is_live_while_a_cell_runs_scales_and_ends_with_the_service(own_kernel: Kernel) -> None:
    require_module("ipywidgets")
    own_kernel.take_census()
    assert own_kernel.run(SHOW) == "application/vnd.jupyter.widget-view+json text/html text/plain\n"
    assert own_kernel.run(BUSY) == "True 1 True\n"
    assert own_kernel.run(SLIDE) == "2\n"
    assert own_kernel.run(ONE_FEED) == "dsnb-card dsnb-dashboard-feed\n"
    assert own_kernel.run(STOP) == "True True ['text/html', 'text/plain']\n"
    left = own_kernel.leftovers()
    assert not any("dsnb" in thread for thread in left.get("threads", [])), left

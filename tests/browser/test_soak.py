"""A page that is open for long holds no more than one that was opened just now."""

from __future__ import annotations

import pytest

import dsnb
from tests.browser.conftest import Tab, Training

MINUTES = 10


def heap_mb(tab: Tab) -> float:
    """What the page's scripts hold, after its garbage was collected."""
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 300)
def test_the_heap_is_flat_over_ten_minutes(tab: Tab, service: dsnb.DataService, training: Training) -> None:
    training.begin("fast", pause=0.01)
    training.begin("slow", pause=0.1)
    tab.open(service.dashboard_url())
    tab.page.wait_for_timeout(120_000)  # until the figures of the last minute are full
    before, nodes = heap_mb(tab), tab.page.evaluate("document.querySelectorAll('*').length")
    tab.page.wait_for_timeout(60_000 * (MINUTES - 2))
    assert heap_mb(tab) < before + 2
    assert tab.page.evaluate("document.querySelectorAll('*').length") < 1.3 * nodes
    assert tab.state() == "live"
    assert tab.complaints == []

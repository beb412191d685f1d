"""The page by keyboard alone: every control is reached with Tab, is seen to have the focus, and works with Enter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dsnb
from tests.browser.conftest import Tab, Training, read_some

_MAX_CONTROLS = 80
_CONTROLS = """() => [...document.querySelectorAll('button, select, input, .scroll, .events')]
  .filter(one => !one.disabled && one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length)
  .map(NAME)"""
_FOCUSED = """() => {
  const one = document.activeElement;
  return one === document.body ? "" : (NAME)(one) + (getComputedStyle(one).outlineStyle === "none" ? " unseen" : "");
}"""
_NAME = """one => [one.nodeName, one.id, one.closest('section, header')?.id ?? '',
  one.dataset.do ?? one.dataset.pick ?? '', one.dataset.target ?? one.dataset.value ?? ''].join(' ')"""


@pytest.fixture
def served(service: dsnb.DataService) -> Iterator[Any]:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import address_lookup, snapshot_stream

    server = start_in_thread(snapshot_stream(service.name), look_up_address=address_lookup(service.name))
    yield server
    server.stop()


@pytest.mark.slow
def test_every_control_is_reached_and_works_by_keyboard(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any
) -> None:
    training.begin("a", pause=0.01)
    read_some(service, "a", 20)
    tab.open(served.url)
    tab.wait("document.querySelector('button[data-do=pause]')")
    wanted = set(tab.page.evaluate(_CONTROLS.replace("NAME", _NAME)))
    assert len(wanted) > 5
    assert wanted <= reached_controls(tab)
    tab.page.focus("button[data-do='pause']")
    tab.page.keyboard.press("Enter")
    tab.wait("document.querySelector('.notice.done[data-verb=pause]')")
    service.wait_until(lambda now: now.jobs[0].state == "paused", timeout=20)


def reached_controls(tab: Tab) -> set[str]:
    """What has the focus in turn while Tab is pressed; marked as "unseen" if it shows no outline."""
    found: set[str] = set()
    for _ in range(_MAX_CONTROLS):
        tab.page.keyboard.press("Tab")
        name = str(tab.page.evaluate(_FOCUSED.replace("NAME", _NAME)))
        if not name:
            break
        found.add(name)
    return found

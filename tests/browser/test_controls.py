"""Each button does what it says, checked at the service; a page that may only look has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dsnb
from tests.browser.conftest import Tab, Training, read_some


@pytest.fixture
def served(service: dsnb.DataService) -> Iterator[Any]:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import reach_of, source_for

    server = start_in_thread(source_for(service.name), reach=reach_of(service.name))
    yield server
    server.stop()


def press(tab: Tab, do: str, **names: str) -> None:
    """Press a button, and once more if it asks back."""
    wanted = "".join(f"[data-target*='{name}']" for name in names.values())
    selector = f"button[data-do='{do}']{wanted}"
    tab.wait(f"document.querySelector({selector!r})")
    tab.page.click(selector)
    tab.wait(f"document.querySelector({selector!r})?.matches('.armed') || document.querySelector('.notice')")
    if tab.page.query_selector(f"{selector}.armed"):
        assert tab.page.query_selector(".notice") is None, "a grave button did something at its first press"
        tab.page.click(selector)


def test_a_trainer_is_sent_away_and_the_page_says_who_confirmed_it(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any
) -> None:
    training.begin("quick", pause=0.002)
    training.begin("holds", pause=30.0, on_lag="wait")
    read_some(service, "quick", 20)
    tab.open(served.url)
    press(tab, "send_away", job="train", trainer="holds")
    tab.wait("document.querySelector('.notice.done')")
    assert "confirmed by the service" in tab.text(".notice.done")
    read_some(service, "quick", 2000)  # many windows: nobody waits for it any longer
    assert tab.complaints == []


def test_a_page_without_the_key_may_only_look(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any
) -> None:
    training.begin("a", pause=0.02)
    read_some(service, "a", 5)
    tab.open(served.url.partition("?")[0])
    tab.wait("document.querySelector('.lane[data-trainer=\"a\"]')")
    assert tab.text("[data-field='read-only']") == "read-only"
    assert tab.page.query_selector("[data-do]") is None

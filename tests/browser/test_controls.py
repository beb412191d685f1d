"""Each button does what it says, checked at the service; a page that may only look has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.monitor.snapshot import Snapshot
from tests.browser.conftest import Tab, Training, read_some


@pytest.fixture
def served(service: dsnb.DataService) -> Iterator[Any]:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import address_lookup, snapshot_stream

    server = start_in_thread(snapshot_stream(service.name), look_up_address=address_lookup(service.name))
    yield server
    server.stop()


def press(tab: Tab, do: str, *, grave: bool = False, **names: str) -> None:
    """Press a button, once more if it asks back, and read on the page that the service has confirmed it."""
    wanted = "".join(f"""[data-target*='"{kind}": "{name}"']""" for kind, name in names.items())
    selector = f"button[data-do='{do}']{wanted}"
    tab.wait(f"document.querySelector({selector!r})")
    tab.page.click(selector)
    if grave:
        tab.wait(f"document.querySelector({selector!r})?.matches('.armed')")
        assert tab.page.query_selector(f".notice[data-verb='{do}']") is None, "it did something at its first press"
        tab.page.click(selector)
    tab.wait(f"document.querySelector('.notice.done[data-verb={do}]')")
    assert "confirmed by the service" in tab.text(f".notice.done[data-verb='{do}']")


@pytest.mark.slow
def test_a_trainer_is_sent_away_and_the_page_says_who_confirmed_it(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any
) -> None:
    training.begin("quick", pause=0.002)
    training.begin("holds", pause=30.0, on_lag="wait")
    read_some(service, "quick", 20)
    tab.open(served.url)
    press(tab, "evict", grave=True, job="train", trainer="holds")
    read_some(service, "quick", 2000)  # many windows: nobody waits for it any longer
    assert tab.complaints == []


@pytest.mark.slow
def test_a_job_is_paused_resumed_and_cancelled(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any, artefacts: Path
) -> None:
    training.begin("a", pause=0.005, fails=True)
    read_some(service, "a", 20)
    tab.open(served.url)
    press(tab, "pause", job="train")
    service.wait_until(lambda now: state_of(now, "train") == "paused")
    tab.wait("document.querySelector('tr[data-job=train] [data-field=state]').dataset.value === 'paused'")
    tab.page.screenshot(path=artefacts / "paused.png", full_page=True)
    press(tab, "resume", job="train")
    service.wait_until(lambda now: state_of(now, "train") == "running")
    press(tab, "cancel", grave=True, job="train")
    service.wait_until(lambda now: state_of(now, "train") != "running")
    training.end()
    assert isinstance(training.failure, dsnb.errors.CancelledError)
    assert "the dashboard" in training.failure.what
    assert tab.complaints == []


@pytest.mark.slow
def test_workers_are_added_drained_and_removed(
    tab: Tab, service: dsnb.DataService, served: Any, artefacts: Path
) -> None:
    tab.open(served.url)
    press(tab, "scale", workers="3")
    service.wait_until(lambda now: names(now) == ["w0", "w1", "w2"])
    tab.page.screenshot(path=artefacts / "scaled.png", full_page=True)
    press(tab, "autoscale", maximum="32")
    service.wait_until(lambda now: now.autoscale is not None and now.autoscale.maximum == 32)
    press(tab, "fix")
    service.wait_until(lambda now: now.autoscale is None)
    press(tab, "drain", worker="w1")
    service.wait_until(lambda now: names(now) == ["w0", "w2"])
    press(tab, "remove", grave=True, worker="w0")
    service.wait_until(lambda now: names(now) == ["w2"])
    tab.wait("document.querySelectorAll('tr[data-worker]').length === 1")
    press(tab, "scale", workers="0")
    service.wait_until(lambda now: not now.workers)
    assert tab.complaints == []


def names(snapshot: Snapshot) -> list[str]:
    return sorted(worker.name for worker in snapshot.workers if worker.state == "running")


def state_of(snapshot: Snapshot, name: str) -> str:
    job = snapshot.job(name)
    return job.state if job else "gone"


@pytest.mark.slow
def test_a_page_without_the_key_shows_nothing(tab: Tab, service: dsnb.DataService, served: Any) -> None:
    tab.page.goto(served.url.partition("?")[0])
    assert "key" in tab.text("[data-card='refused']")
    assert service.name not in tab.text("body").split()
    assert tab.page.query_selector("[data-panel]") is None
    assert tab.page.query_selector("[data-do]") is None

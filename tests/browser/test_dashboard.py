"""The dashboard in a browser, under a real service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dsnb
from dsnb.monitor.snapshot import JobStatus
from tests.browser.conftest import Tab, Training, read_some
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext


@pytest.fixture
def served(service: dsnb.DataService) -> Iterator[Any]:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import address_lookup, snapshot_stream

    server = start_in_thread(snapshot_stream(service.name), look_up_address=address_lookup(service.name))
    yield server
    server.stop()


def the_job(service: dsnb.DataService, name: str = "train") -> JobStatus:
    job = service.status().job(name)
    assert job is not None
    return job


@pytest.mark.slow
def test_a_trainer_that_loses_data_is_named(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any, artefacts: Path
) -> None:
    tab.open(served.url)
    training.begin("fast", pause=0.0)
    training.begin("slow", pause=0.05)
    tab.wait("document.querySelector('.lane[data-trainer=\"slow\"]')?.dataset.level === 'bad'", timeout=40)
    tab.wait("document.querySelector('.lane[data-trainer=\"slow\"] .words').innerText.includes('LOSING DATA, skipped')")
    assert tab.text("[data-card='losing'] [data-field='loses']") == "slow"
    tab.page.screenshot(path=artefacts / "losing.png", full_page=True)
    assert tab.complaints == []


@pytest.mark.slow
def test_picks_change_what_is_shown(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any, artefacts: Path
) -> None:
    training.begin("one", pause=0.01)
    training.begin("two", pause=0.01, job="other")
    read_some(service, "one", 10)
    read_some(service, "two", 10, job="other")
    tab.open(served.url)
    tab.page.select_option("select[data-pick='job']", "other")
    tab.wait("document.querySelector('#trainers tr[data-trainer=\"two\"]')")
    task = next(task for task in the_job(service, "other").tasks if task.worker == "w1")
    tab.page.click(f"button[data-pick='task'][data-value='{task.task_id}']")
    tab.wait(f"document.querySelector('button[data-value=\"{task.task_id}\"]').getAttribute('aria-pressed') === 'true'")
    tab.wait("document.querySelector('.track').title.includes('of w1')")
    tab.page.click("button[data-pick='span'][data-value='300']")
    tab.wait("document.querySelector('button[data-value=\"300\"]').getAttribute('aria-pressed') === 'true'")
    tab.page.screenshot(path=artefacts / "picked.png", full_page=True)
    assert tab.complaints == []


@pytest.mark.slow
def test_three_tabs_share_one_feed(
    tab: Tab, chromium: BrowserContext, service: dsnb.DataService, training: Training, artefacts: Path
) -> None:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import snapshot_stream

    watch, asked = snapshot_stream(service.name), []

    def counted(stop: Any) -> Any:
        asked.append(stop)
        return watch(stop)

    server = start_in_thread(counted)
    try:
        others = [Tab(chromium.new_page()) for _ in range(2)]
        for one in (tab, *others):
            one.open(server.url)
        training.begin("a", pause=0.005)
        for one in (tab, *others):
            one.page.bring_to_front()
            one.wait('+document.querySelector(\'tr[data-trainer="a"] [data-field="elements"]\')?.dataset.value > 20')
            assert one.complaints == []
            assert one.strangers() == []
        assert len(asked) == 1
        tab.page.screenshot(path=artefacts / "one_of_three_tabs.png", full_page=True)
        for one in others:
            one.page.close()
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overflows_from_phone_to_wall(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any, artefacts: Path, theme: str
) -> None:
    name = "a-search-over-learning-rates-of-november"
    training.begin("learning-rate=0.0001,wide-resnet-50,augmented", pause=0.004, job=name, on_lag="spill")
    training.begin("lr=0.1", pause=0.02, job=name)
    training.begin("on disk", pause=0.2, job=name, on_lag="spill")
    read_some(service, "lr=0.1", 30, job=name)
    tab.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    tab.open(served.url)
    assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
    tab.wait("document.querySelectorAll('tr[data-trainer]').length === 3 && document.querySelector('.diskword')")
    for width in (400, 700, 768, 1000, 1280, 1600, 2000):
        tab.page.set_viewport_size({"width": width, "height": 1000})
        tab.wait(f"innerWidth === {width}")
        found: list[str] = []

        def fits(found: list[str] = found) -> bool:
            found[:] = too_wide(tab)
            return not found

        try:
            wait_for(fits, what=f"all to fit {width} pixels", timeout=30.0)  # laid out within a frame or two
        except AssertionError as error:
            tab.page.screenshot(path=artefacts / f"{theme}-{width}-too-wide.png", full_page=True)
            error.add_note(f"too wide are {found}")
            raise
        tab.page.screenshot(path=artefacts / f"{theme}-{width}.png", full_page=True)
    assert tab.complaints == []


def too_wide(tab: Tab) -> list[str]:
    """What sticks out of the page, its card, or the box in which a table could be scrolled; labels that overlap."""
    found: list[str] = tab.page.evaluate(
        """() => {
          const names = [];
          const page = document.documentElement;
          if (page.scrollWidth > page.clientWidth) names.push("the page");
          const boxes = ".panel, .card, .top, .heading, .keys, .chips, .words, .strip, .track, .scroll";
          for (const one of document.querySelectorAll(boxes))
            if (one.scrollWidth > one.clientWidth + 1) {
              const panel = one.closest("[data-panel]")?.dataset.panel ?? "the page";
              names.push(`${one.className || one.id} of ${panel}`);
            }
          const labels = [...document.querySelectorAll(".ruler > *")].filter(one => one.offsetWidth);
          const boxed = labels.map(one => [one.getBoundingClientRect(), one.textContent]);
          for (const [box, text] of boxed)
            for (const [other, beside] of boxed)
              if (text < beside && box.left < other.right && other.left < box.right) names.push(`${text} on ${beside}`);
          return names;
        }"""
    )
    return found


@pytest.mark.slow
def test_the_theme_can_be_changed_and_is_kept(tab: Tab, service: dsnb.DataService, served: Any) -> None:
    tab.open(served.url)
    before = tab.page.evaluate("document.documentElement.dataset.theme")
    tab.page.click("#theme")
    after = tab.page.evaluate("document.documentElement.dataset.theme")
    assert {before, after} == {"light", "dark"}
    tab.open(served.url)
    assert tab.page.evaluate("document.documentElement.dataset.theme") == after


@pytest.mark.slow
def test_a_finished_job_has_a_receipt_and_stays_in_the_columns_of_its_table(
    tab: Tab, service: dsnb.DataService, served: Any
) -> None:
    list(dsnb.Dataset.range(1_220).apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
    tab.open(served.url)
    wait_for(lambda: tab.text("[data-field='receipt']"), what="the receipt")
    assert tab.text("[data-field='receipt']") == "receipt of epoch 1: 1,220 of 1,220 elements, each once"
    row = "getComputedStyle(document.querySelector('tr[data-job=train]')).display"
    assert tab.page.evaluate(row) == "table-row"


@pytest.mark.slow
def test_the_services_own_dashboard_ends_with_it(tab: Tab) -> None:
    with dsnb.start(workers=1, name="own") as service:
        url = service.dashboard_url()
        assert service.dashboard_url() == url
        tab.open(url)
        wait_for(lambda: tab.text("[data-field='service']") == "own", what="the service's name")
        list(dsnb.Dataset.range(1_220).apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
        wait_for(lambda: "1,220" in tab.text("[data-field='consumed']"), what="the elements on the page")
        assert tab.complaints == []
    tab.page.wait_for_selector("[data-ended]")
    tab.wait("Date.now() - performance.timeOrigin > 12000")  # the page has noticed by now that its server is gone
    assert re.match(
        r"The service was stopped at \d\d:\d\d:\d\d\. This is its last state: 1,220 elements consumed\.",
        tab.text("[data-field='banner']"),
    )
    assert tab.page.is_hidden("#lost")
    assert tab.state() == "ended"
    tab.page.goto("about:blank")


@pytest.mark.slow
def test_from_another_host_only_the_key_shows_anything(tab: Tab, service: dsnb.DataService, served: Any) -> None:
    elsewhere = served.url.replace("127.0.0.1", "hub.example")
    tab.page.goto(elsewhere.partition("?")[0])
    assert "key" in tab.text("[data-card='refused']")
    assert tab.page.query_selector("[data-panel]") is None
    tab.open(elsewhere)
    wait_for(lambda: tab.state() == "live", what="the page to be live under the other name")
    assert tab.complaints == []

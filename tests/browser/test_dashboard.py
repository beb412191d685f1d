"""The dashboard in a browser, under a real service."""

from __future__ import annotations

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
    from dsnb.dashboard.source import source_for

    server = start_in_thread(source_for(service.name))
    yield server
    server.stop()


def on_page(tab: Tab, job: JobStatus) -> dict[str, float]:
    """The numbers of a job that the page shows now, all of one moment."""
    wanted = {name: ("[data-card='sharing']", name) for name in ("produced", "consumed")}
    for trainer in job.trainers:
        row = f"tr[data-trainer='{trainer.trainer_id}']"
        for field in ("elements", "hits", "misses", "skipped", "offset", "lag"):
            wanted[f"{trainer.trainer_id} {field}"] = (row, field)
    return tab.values(wanted)


def in_status(job: JobStatus) -> dict[str, float]:
    """The same numbers as the service tells them."""
    told: dict[str, float] = {"produced": job.produced, "consumed": job.consumed}
    for trainer in job.trainers:
        told |= {f"{trainer.trainer_id} {f}": getattr(trainer, f) for f in ("elements", "hits", "misses", "skipped")}
        told[f"{trainer.trainer_id} offset"] = sum(place.offset for place in trainer.places)
        told[f"{trainer.trainer_id} lag"] = trainer.lag
    return told


def the_job(service: dsnb.DataService, name: str = "train") -> JobStatus:
    job = service.status().job(name)
    assert job is not None
    return job


def test_numbers_move_and_equal_the_status_at_rest(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any, artefacts: Path
) -> None:
    tab.open(served.url)
    tab.wait("document.querySelector('[data-card=\"no-job\"]')")
    training.begin("fast", pause=0.002)
    training.begin("slow", pause=0.02)
    read_some(service, "slow", 20)
    tab.wait("document.querySelectorAll('#trainers tr[data-trainer]').length === 2")
    first = on_page(tab, the_job(service))
    moved = ("produced", "consumed", "fast elements", "slow elements")
    wait_for(
        lambda: all(on_page(tab, the_job(service))[name] > first[name] for name in moved),
        what="the numbers on the page to move",
    )
    tab.page.screenshot(path=artefacts / "moving.png", full_page=True)
    training.end()
    wait_for(
        lambda: on_page(tab, job := the_job(service)) == in_status(job),
        what="the page to show what status() tells",
        timeout=30,
    )
    workers = {worker.name: worker.produced for worker in service.status().workers}
    assert tab.values({name: (f"tr[data-worker='{name}']", "produced") for name in workers}) == workers
    assert tab.complaints == []
    assert tab.strangers() == []


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


def test_picks_change_what_is_shown(tab: Tab, service: dsnb.DataService, training: Training, served: Any) -> None:
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
    assert tab.complaints == []


def test_three_tabs_share_one_feed(
    tab: Tab, chromium: BrowserContext, service: dsnb.DataService, training: Training
) -> None:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import source_for

    watch, asked = source_for(service.name), []

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
        assert len(asked) == 1
        for one in others:
            one.page.close()
    finally:
        server.stop()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overflows_from_phone_to_wall(
    tab: Tab, service: dsnb.DataService, training: Training, served: Any, artefacts: Path, theme: str
) -> None:
    training.begin("learning-rate=0.0001,wide-resnet-50,augmented", pause=0.004)
    training.begin("lr=0.1", pause=0.02)
    read_some(service, "lr=0.1", 30)
    tab.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    tab.open(served.url)
    assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
    for width in (400, 760, 1440, 2000):
        tab.page.set_viewport_size({"width": width, "height": 1000})
        tab.wait(f"innerWidth === {width}")
        wait_for(lambda: not too_wide(tab), what=f"all to fit {width} pixels")  # laid out within a frame or two
        tab.page.screenshot(path=artefacts / f"{theme}-{width}.png", full_page=True)
    assert tab.complaints == []
    assert tab.strangers() == []


def too_wide(tab: Tab) -> list[str]:
    """What sticks out of the page or of its card, tables that scroll by themselves aside."""
    found: list[str] = tab.page.evaluate(
        """() => {
          const names = [];
          const page = document.documentElement;
          if (page.scrollWidth > page.clientWidth) names.push("the page");
          for (const one of document.querySelectorAll(".panel, .card, .top, .heading, .keys, .chips, .words"))
            if (one.scrollWidth > one.clientWidth + 1) names.push(one.className || one.id);
          return names;
        }"""
    )
    return found


def test_the_theme_can_be_changed_and_is_kept(tab: Tab, service: dsnb.DataService, served: Any) -> None:
    tab.open(served.url)
    before = tab.page.evaluate("document.documentElement.dataset.theme")
    tab.page.click("#theme")
    after = tab.page.evaluate("document.documentElement.dataset.theme")
    assert {before, after} == {"light", "dark"}
    tab.open(served.url)
    assert tab.page.evaluate("document.documentElement.dataset.theme") == after


def test_the_services_own_dashboard_ends_with_it(tab: Tab) -> None:
    with dsnb.start(workers=1, name="own") as service:
        url = service.dashboard_url()
        assert service.dashboard_url() == url
        tab.open(url)
        wait_for(lambda: tab.text("[data-field='service']") == "own", what="the service's name")
        tab.page.goto("about:blank")

"""Each number on the page is the status's: all of them at rest, and between two looks at the status while they move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.monitor.snapshot import JobStatus, Snapshot, TrainerStatus
from tests.browser.conftest import Tab, Training, read_some
from tests.support.cluster import Cluster
from tests.support.waiting import wait_for

Numbers = dict[str, float]
"""By panel, what the number is of, and its field: `trainers fast elements`."""

_READ = """() => {
  const found = {};
  for (const one of document.querySelectorAll("[data-panel] [data-field][data-value]")) {
    if (isNaN(Number(one.dataset.value)) || one.dataset.value === "") continue;  // names and states
    const of = one.closest("[data-trainer], [data-waits], [data-worker], [data-job], [data-provider]")?.dataset ?? {};
    const name = of.trainer ?? of.waits ?? of.worker ?? of.job ?? of.provider ?? "";
    found[[one.closest("[data-panel]").dataset.panel, name, one.dataset.field].join(" ")] = Number(one.dataset.value);
  }
  return found;
}"""


@pytest.fixture
def service() -> Iterator[dsnb.DataService]:
    """One that keeps a pass which nobody reads for as long as the page may take to follow on a busy machine.

    By itself it is freed, and taken off status and page, five seconds after its last reader left.
    """
    dispatcher = {"name": "browser", "task_gc_timeout_ms": 120_000}
    worker = {"cross_trainer_cache_size_bytes": 20_000}
    with Cluster(workers=2, dispatcher=dispatcher, worker=worker) as cluster, cluster.service:
        yield cluster.service


@pytest.fixture
def page(tab: Tab, service: dsnb.DataService) -> Iterator[Tab]:
    yield tab.open(service.dashboard_url())
    assert tab.complaints == []


def on_page(tab: Tab) -> Numbers:
    """All numbers that stand on the page at one moment."""
    return {str(name): float(number) for name, number in tab.page.evaluate(_READ).items()}


def counters(now: Snapshot) -> Numbers:
    """What only grows while a job is read, as the page names it."""
    job = the_job(now)
    told: Numbers = {"cards  produced": job.produced, "cards  consumed": job.consumed}
    told |= {f"jobs {job.name} produced": job.produced, f"jobs {job.name} consumed": job.consumed}
    for trainer in job.trainers:
        told |= {
            f"trainers {trainer.trainer_id} {field}": getattr(trainer, field)
            for field in ("elements", "hits", "misses", "skipped")
        }
    for worker in now.workers:
        told |= {f"workers {worker.name} {f}": getattr(worker, f) for f in ("produced", "errors")}
    return told


def at_rest(now: Snapshot) -> Numbers:
    """All that the page may show of a job that nobody reads any longer: its rates are nought."""
    job = the_job(now)
    told = counters(now) | {
        "header  pass": job.iteration + 1,
        "cards  rate": 0,
        "cards  byte_rate": 0,
        f"jobs {job.name} pass": job.iteration + 1,
        f"jobs {job.name} clients": job.clients,
        f"jobs {job.name} rate": 0,
    }
    skipped = sum(trainer.skipped for trainer in job.trainers)
    told |= {"cards  skipped": skipped} if skipped else {}  # the card says "every trainer gets every element" else
    told |= splits(job)
    for worker in now.workers:
        told |= {f"workers {worker.name} {field}": 0 for field in ("busy", "rate", "sent_rate")}
        told |= {f"workers {worker.name} {field}": getattr(worker, field) for field in ("cache_bytes", "tasks")}
    for trainer in job.trainers:
        told |= _of_trainer(trainer)
    return told


def splits(job: JobStatus) -> Numbers:
    """How far the pass is; nothing once nobody reads and the tasks have gone."""
    told: Numbers = {}
    for at, split in enumerate(job.splits):
        told |= {f"splits {at} {f}": getattr(split, f) for f in ("done", "in_hand")}
        told[f"splits {at} given"] = round(min(1.0, (split.done + split.in_hand) / max(1, split.total)), 4)
        told |= {f"splits {at} lost": split.lost} if split.lost else {}
    return told


def _of_trainer(trainer: TrainerStatus) -> Numbers:
    row = f"trainers {trainer.trainer_id}"
    return {
        f"{row} offset": sum(place.offset for place in trainer.cursors),
        f"{row} lag": trainer.lag,
        f"{row} rate": 0,
        f"{row} wait": round(min(1.0, trainer.wait_ns / trainer.active_ns), 3),
    }


def the_job(now: Snapshot) -> JobStatus:
    job = now.job("train")
    assert job is not None
    return job


def differences(tab: Tab, service: dsnb.DataService) -> dict[str, Any]:
    """Where page and status differ, number by number; the strip shows a trainer at one of its places."""
    shown, now = on_page(tab), service.status()
    lags = {t.trainer_id: {float(place.lag) for place in t.cursors} for t in the_job(now).trainers}
    strip = {name: shown.pop(name) for name in list(shown) if name.startswith("strip ")}
    wrong: dict[str, Any] = {n: lag for n, lag in strip.items() if lag not in lags[n.split()[1]]}
    legend = {name: shown.pop(name) for name in list(shown) if name.startswith("throughput ")}
    wrong |= {name: rate for name, rate in legend.items() if rate}
    restless = (" cpus", " rss_bytes", " host_cpus", " host_memory")
    for name in [name for name in shown if name.startswith("workers ") and name.endswith(restless)]:
        del shown[name]  # the process or its host changes them from one moment to the next
    told = at_rest(now)
    return wrong | {
        name: (shown.get(name), told.get(name)) for name in shown | told if shown.get(name) != told.get(name)
    }


@pytest.mark.slow
def test_while_they_move_all_counters_lie_between_the_status_before_and_after(
    page: Tab, service: dsnb.DataService, training: Training, artefacts: Path
) -> None:
    training.begin("fast", pause=0.002)
    training.begin("slow", pause=0.02)
    read_some(service, "slow", 20)
    for _ in range(4):
        before = counters(service.status())

        def caught_up(before: Numbers = before) -> bool:
            shown = on_page(page)
            return all(shown.get(name, -1) >= number for name, number in before.items())

        wait_for(caught_up, what="the page to have come where the status was", timeout=20)
        shown, after = on_page(page), counters(service.status())
        assert {name for name, number in after.items() if not before[name] <= shown[name] <= number} == set()
        assert after["cards  consumed"] > before["cards  consumed"], "nothing moved"
    page.page.screenshot(path=artefacts / "moving.png", full_page=True)


@pytest.mark.slow
def test_at_rest_every_number_on_the_page_is_the_status(
    page: Tab, service: dsnb.DataService, training: Training, artefacts: Path
) -> None:
    training.begin("fast", pause=0.002, mode="distributed_epoch")
    training.begin("slow", pause=0.05, mode="distributed_epoch")
    read_some(service, "slow", 20)
    service.pause("train")
    wait_for(
        lambda: (told := splits(the_job(service.status()))) and told.items() <= on_page(page).items(),
        what="the page to show the splits of the paused job",
        timeout=20,
    )
    service.resume("train")
    training.end()
    seen: dict[str, Any] = {}

    def same() -> bool:
        seen.clear()
        seen.update(differences(page, service))
        return not seen

    try:
        wait_for(same, what="the page to show what the status tells", timeout=40)
    except AssertionError as error:
        error.add_note(f"they differ, page and status, in {seen}")
        raise
    names = set(on_page(page))
    assert {name.split()[0] for name in names} >= {"header", "cards", "trainers", "workers", "jobs"}
    page.page.screenshot(path=artefacts / "at_rest.png", full_page=True)

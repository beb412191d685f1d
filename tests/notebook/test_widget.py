"""What a service shows of itself where no widgets can be shown.

The live card is tested in a kernel (`tests/notebooks/test_situations_card.py`) and in a Lab (`tests/browser`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dsnb
from dsnb.monitor.snapshot import JobStatus, Snapshot, TrainerStatus
from dsnb.monitor.status_html import status_tables, summary
from dsnb.notebook import display


@pytest.fixture
def service() -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=1, name="plain") as service:
        yield service


def test_outside_a_kernel_a_service_is_text_and_html(service: dsnb.DataService) -> None:
    shown = service._repr_mimebundle_()
    assert sorted(shown) == ["text/html", "text/plain"]
    assert shown["text/plain"] == "DataService('plain', 1 worker)"


def test_the_html_reads_well_where_styles_and_scripts_are_dropped(service: dsnb.DataService) -> None:
    html = service._repr_mimebundle_()["text/html"]
    for unsafe in ("<style", "<script", "<svg", "<thead", "<details", "style="):
        assert unsafe not in html
    assert "<table>" in html


def snapshot(*jobs: JobStatus) -> Snapshot:
    return Snapshot(version=1, seq=1, time=1.0, service="s", target="grpc://h:1", started=0.0, jobs=jobs)


def job(name: str, *trainers: TrainerStatus) -> JobStatus:
    return JobStatus(
        name=name,
        anonymous=False,
        dataset_id="d",
        pipeline="range",
        mode="OFF",
        cached=True,
        iteration=0,
        state="running",
        clients=1,
        produced=5,
        consumed=5,
        trainers=trainers,
    )


def test_waiting_is_a_bar_of_text_and_names_are_escaped() -> None:
    one = TrainerStatus(trainer_id="<b>", clients=1, elements=5, wait_ns=62, active_ns=100, skipped=1200)
    html = status_tables(snapshot(job("train", one)))
    assert "██████░░░░ 62 %" in html
    assert "&lt;b&gt;" in html
    assert "<b>1,200 elements skipped</b>" in summary(snapshot(job("train", one)))


def test_old_jobs_do_not_fill_the_card() -> None:
    html = status_tables(snapshot(*(job(f"job-{at}") for at in range(20))))
    assert "job-19" in html
    assert "job-5" not in html
    assert "and 12 older jobs" in html


def test_links_lead_through_the_jupyter_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
    assert 'href="/user/me/proxy/5006/?key=k"' in display.dashboard_links("http://127.0.0.1:5006/?key=k")
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX")
    html = display.dashboard_links("http://127.0.0.1:5006/?key=k")
    assert 'href="http://127.0.0.1:5006/?key=k"' in html
    assert 'href="/proxy/5006/?key=k"' in html

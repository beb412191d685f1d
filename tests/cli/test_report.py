"""`dsnb report`: one page, of a file that keeps a run or of a service that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsnb
from dsnb.cli import main
from tests.support.waiting import wait_for


def test_a_page_is_made_of_what_a_file_kept_though_the_service_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, page = tmp_path / "run.db", tmp_path / "run.html"
    with dsnb.start(workers=1, name="kept") as service, service.record(db, every=0.1):
        list(dsnb.Dataset.range(9).apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
        service.wait_until(lambda now: now.jobs[0].state == "finished")
        wait_for(lambda: made(db, page) and "finished" in page.read_text("utf-8"), what="the end of it to be kept")
    capsys.readouterr()
    assert main(["report", str(db), str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(page)}
    assert "Job train" in page.read_text("utf-8")


def test_two_runs_are_shown_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "before.db", tmp_path / "after.db"]
    for file in files:
        with dsnb.start(workers=1) as service, service.record(file, every=0.1):
            list(dsnb.Dataset.range(9).apply(dsnb.distribute("distributed_epoch", service, job_name="train")))
            service.wait_until(lambda now: now.jobs[0].consumed == 9)
    page = tmp_path / "both.html"
    assert main(["report", *map(str, files), str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"report written to {page}\n")
    text = page.read_text("utf-8")
    assert "<h1>before.db and after.db</h1>" in text
    assert '<td>elements consumed</td><td class="number">9</td><td class="number">9</td>' in text


def test_three_runs_are_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a.db", "b.db", "c.db", str(tmp_path / "page.html")]) == 2
    assert "one run or two, not 3" in capsys.readouterr().err


def made(db: Path, page: Path) -> bool:
    return main(["report", str(db), str(page)]) == 0


@pytest.mark.slow
def test_a_page_is_made_of_a_service_by_its_name_and_of_the_only_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "run.html"
    with dsnb.start(workers=1, name="watched"):
        for source in (["watched"], []):
            assert main(["report", *source, str(page)]) == 0
            assert capsys.readouterr().out == f"report written to {page}\n"
            assert "<h1>watched</h1>" in page.read_text("utf-8")
            page.unlink()


def test_what_a_report_cannot_be_made_of_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "run.html"
    assert main(["report", str(tmp_path / "none.db"), str(page)]) == 1
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "other.db").write_text("something else")
    assert main(["report", str(tmp_path / "other.db"), str(page)]) == 1
    assert "other.db" in capsys.readouterr().err
    assert main(["report", str(page)]) == 1
    assert "no dsnb service of this user runs here" in capsys.readouterr().err
    assert not page.exists()

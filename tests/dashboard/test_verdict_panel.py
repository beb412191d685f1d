"""The verdict on the page: the monitor's words, about the job that is shown."""

from __future__ import annotations

import zlib
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsnb.dashboard.page import PageSession
from dsnb.dashboard.panels.verdict import job_verdicts, verdict, verdict_line
from dsnb.dashboard.replay import Replay
from dsnb.dashboard.view import Selection
from dsnb.monitor.run_file import RUN_FILE, RunReader
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, latest_verdicts, verdicts
from dsnb.storage.sqlite import Database
from dsnb.wire.codec import encode
from tests.dashboard.snapshots import SECOND, job, seen, snapshot, trainer, worker


def at(seconds: int, wait: float) -> Snapshot:
    """Two jobs: `train` waits that share of its time, `other` never does."""
    waiting = trainer("a", elements=seconds, active_ns=seconds * SECOND, wait_ns=int(wait * seconds * SECOND))
    content = trainer("b", elements=seconds, active_ns=seconds * SECOND)
    jobs = (job(trainers=(waiting,)), job("other", trainers=(content,)))
    return snapshot(seconds, jobs=jobs, workers=(worker(),))


def test_the_words_are_those_of_the_monitor() -> None:
    view = seen(at(1, 0.5), at(5, 0.5))
    told = [one for one in verdicts(at(1, 0.5), at(5, 0.5)) if one.job == "train"]
    assert told
    assert list(job_verdicts(view)) == told
    made = verdict(view)
    assert 'data-level="bad"' in made
    assert "waits 50 % of its time" in made


def test_the_verdict_is_about_the_job_that_is_shown() -> None:
    view = seen(at(1, 0.5), at(5, 0.5), choice=Selection(job="other"))
    assert {one.job for one in job_verdicts(view)} == {"other"}
    assert 'data-level="good"' in verdict(view)


def test_a_silent_service_has_no_verdict() -> None:
    assert verdict(seen(at(1, 0.5), at(5, 0.5), age_s=20.0)) == ""
    assert verdict(seen(at(1, 0.5))) == ""
    assert verdict(seen()) == ""


def test_what_is_to_be_typed_is_code_and_markup_of_names_is_none() -> None:
    found = Verdict(level="bad", cause="c", job="j", subject="s", text="t", remedy="Say `dsnb <x>` or not.")
    assert "<span>Say <code>dsnb &lt;x&gt;</code> or not.</span>" in verdict_line(found)


@pytest.mark.parametrize("job_stays", [True, False], ids=["named", "anonymous"])
def test_the_verdict_on_a_recorded_job_stays_long_after_it_ended(tmp_path: Path, *, job_stays: bool) -> None:
    """Its readers left after 20 s; the page shows a minute, and its verdict is about seconds an hour ago."""
    run = [replace(one, jobs=one.jobs[:1]) for one in (at(second, 0.5) for second in range(1, 21))]
    rest = [replace(one, clients=0, state="idle") for one in run[-1].jobs] if job_stays else []
    run += [snapshot(second, jobs=tuple(rest), workers=(worker(),)) for second in range(25, 3_600, 25)]
    with closing(Database(tmp_path / "run.db", RUN_FILE)) as database, database.transaction():
        rows = [(one.time, zlib.compress(encode(one))) for one in run]
        database.execute_many("INSERT INTO snapshots VALUES (?, ?)", rows)
    with RunReader(tmp_path / "run.db") as reader:
        replay = Replay(reader)
        replay.play(on=False)
        page = PageSession(replay)
        for end in (30, 100, len(run), 50, 15):
            replay.seek(run[end - 1].time)
            page.tick()
            (told,) = latest_verdicts(run[:end], "train")
            assert "is input-bound" in told.text
            assert told.text in unescape(str(page.board.html_verdict)), end

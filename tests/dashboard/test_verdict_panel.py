"""The verdict on the page: the monitor's words, about the job that is shown."""

from __future__ import annotations

from dsnb.dashboard.panels.verdict import _line, job_verdicts, verdict
from dsnb.dashboard.view import Selection
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.verdict import Verdict, verdicts
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
    assert "<span>Say <code>dsnb &lt;x&gt;</code> or not.</span>" in _line(found)

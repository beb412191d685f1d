"""Two recorded runs side by side: the numbers and the page."""

from __future__ import annotations

import re

import pytest

from dsnb.monitor.comparison_report import RecordedRun, render_comparison
from dsnb.monitor.run_comparison import Quantity, job_quantities, job_runs, paired, stage_quantities, trainer_quantities
from dsnb.monitor.snapshot import Snapshot
from tests.dashboard.snapshots import SECOND, job, snapshot, stage, trainer, worker


def run(per_second: int, *, wait: float, name: str = "train", decode_ms: int = 1, workers: int = 1) -> list[Snapshot]:
    """Ten seconds, of which the job was read from the third to the eighth."""

    def at(second: int) -> Snapshot:
        read = min(max(0, second - 3), 5)
        made = read * per_second
        reader = trainer("a", elements=made, active_ns=read * SECOND, wait_ns=int(wait * read * SECOND))
        decode = stage("map(decode)", elements=made, busy_ns=made * decode_ms * 1_000_000)
        here = {"clients": 1} if second < 9 else {"clients": 0, "state": "idle"}
        one = job(name, produced=made, consumed=made, trainers=(reader,), stages=(decode,), **here)
        there = tuple(
            worker(f"w{n}", pid=n, clock_ns=second * SECOND, cpu_ns=second * SECOND // 2) for n in range(workers)
        )
        return snapshot(second, workers=there, jobs=(one,) if second >= 2 else ())

    return [at(second) for second in range(1, 11)]


def quantities(first: list[Snapshot], second: list[Snapshot]) -> dict[str, Quantity]:
    [(one, other)] = paired(job_runs(first), job_runs(second))
    found = [*job_quantities(one, other), *trainer_quantities(one, other), *stage_quantities(one, other)]
    return {quantity.name: quantity for quantity in found}


def test_rates_are_those_of_the_time_in_which_the_job_was_read() -> None:
    found = quantities(run(100, wait=0.5), run(250, wait=0.1, workers=3))
    assert found["was read for"].texts == ("5.0 s", "5.0 s")
    assert found["consumed per second"].texts == ("100/s", "250/s")
    assert (found["consumed per second"].difference, found["consumed per second"].assessment) == ("2.5 times", "better")
    assert (found["longest wait of a reader"].difference, found["longest wait of a reader"].assessment) == (
        "−40 points",
        "better",
    )
    assert found["workers"].texts == ("1", "3")
    assert found["workers"].assessment == ""
    assert found["CPUs that workers use"].texts == ("0.5", "1.5")


def test_trainers_and_operations_are_compared_by_name() -> None:
    found = quantities(run(100, wait=0.0), run(80, wait=0.3, decode_ms=4))
    assert (found["a consumes"].difference, found["a consumes"].assessment) == ("−20 %", "worse")
    assert (found["a waits"].texts, found["a waits"].assessment) == (("0 %", "30 %"), "worse")
    assert (found["map(decode)"].texts, found["map(decode)"].assessment) == (("1.0 ms", "4.0 ms"), "worse")


def test_clients_without_a_name_are_not_compared_one_by_one() -> None:
    one, other = (snapshot(1, jobs=(job(cached=False, trainers=(trainer(f"c-{n}"),)),)) for n in (1, 2))
    [pair] = paired(job_runs([one]), job_runs([other]))
    assert list(trainer_quantities(*pair)) == []


@pytest.mark.parametrize(
    "unit, first, second, difference, assessment",
    [
        ("rate", 100.0, 101.0, "about the same", ""),
        ("rate", 100.0, 104.0, "+4 %", ""),
        ("rate", 100.0, 112.0, "+12 %", "better"),
        ("rate", 100.0, 40.0, "−60 %", "worse"),
        ("rate", 0.0, 40.0, "", "better"),
        ("rate", 7.0, 7.0, "the same", ""),
        ("rate", None, 40.0, "", ""),
        ("share", 0.10, 0.101, "the same", ""),
        ("share", 0.10, 0.112, "+1 points", ""),
    ],
)
def test_a_difference_is_judged_only_if_it_is_clear(
    unit: str, first: float | None, second: float, difference: str, assessment: str
) -> None:
    one = Quantity(name="it", unit=unit, first=first, second=second, better="more")
    assert (one.difference, one.assessment) == (difference, assessment)


def test_the_only_jobs_are_compared_even_if_their_names_differ() -> None:
    pairs = list(paired(job_runs(run(1, wait=0.0, name="old")), job_runs(run(1, wait=0.0, name="new"))))
    assert [(one.job.name, other.job.name) for one, other in pairs] == [("old", "new")]


def test_operations_of_one_name_are_counted_through() -> None:
    twice = job(stages=(stage("map(f)", elements=1, busy_ns=SECOND), stage("map(f)", elements=1, busy_ns=2 * SECOND)))
    [pair] = paired(job_runs([snapshot(1, jobs=(twice,))]), job_runs([snapshot(1, jobs=(twice,))]))
    assert [(one.name, one.first) for one in stage_quantities(*pair)] == [("map(f)", 1.0), ("map(f) #2", 2.0)]


def test_the_page_has_both_runs_beside_each_other() -> None:
    other = [*run(250, wait=0.1), snapshot(11, jobs=(job("extra"),))]
    page = render_comparison(
        RecordedRun(name="before.db", snapshots=run(100, wait=0.5)), RecordedRun(name="<after>", snapshots=other)
    )
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("<body>")[1]))
    assert "consumed per second 100/s 250/s 2.5 times, better" in text
    assert "is input-bound: trainer &#x27;a&#x27; waits 50 %" in text
    assert "is slightly input-bound: trainer &#x27;a&#x27; waits 10 %" in text
    assert "Only in &lt;after&gt;: extra" in text
    assert page.count("<polyline") == 2
    assert "<after>" not in page
    assert "http" not in page


def test_runs_without_a_common_job_are_said_to_have_none() -> None:
    one = RecordedRun(name="a", snapshots=[snapshot(1)])
    assert "no job in common" in render_comparison(one, one)

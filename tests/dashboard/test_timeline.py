"""The runs of splits on their axis of time."""

from __future__ import annotations

import re
from typing import Any

from dsnb.dashboard.panels.splits import split_timeline
from dsnb.dashboard.panels.timeline import MAX_BARS, MAX_LANES, WorkerRow, rows, shown_span
from dsnb.monitor.snapshot import GrantStatus, Snapshot, SplitStatus
from tests.dashboard.snapshots import job, seen, snapshot


def grant(first: int, given: float, done: float = 0.0, worker: str = "w0", **rest: Any) -> GrantStatus:
    """One split, given and done at those seconds."""
    fields: dict[str, Any] = {"iteration": 0, "provider": 0, "repetition": 0, "end": first + 1}
    state = rest.pop("state", "done" if done else "in hand")
    fields |= {"task_id": f"t-{worker}", **rest}
    return GrantStatus(worker=worker, first=first, state=state, granted_at=given, ended_at=done, **fields)


def at(second: int, *grants: GrantStatus) -> Snapshot:
    split = SplitStatus(source="list_files(9)", repetition=0, total=9, done=1, in_hand=1)
    return snapshot(second, jobs=(job(mode="DYNAMIC", splits=(split,), grants=grants),))


def drawn(*snapshots: Snapshot) -> tuple[WorkerRow, ...]:
    return rows(seen(*snapshots).history, "train", since=0.0, now=snapshots[-1].time)


def test_each_worker_has_its_runs_and_the_one_in_hand_grows() -> None:
    found = drawn(at(9, grant(0, 1.0, 2.0), grant(1, 2.0), grant(2, 1.0, 3.0, "w10"), grant(3, 3.0, 4.0, "w2")))
    assert [row.worker for row in found] == ["w0", "w2", "w10"]
    assert [(run.begin, run.end) for run in found[0].bars] == [(1.0, 2.0), (2.0, 9.0)]


def test_what_an_earlier_moment_told_is_not_forgotten_and_the_later_word_counts() -> None:
    early = at(3, grant(0, 1.0, 2.0), grant(1, 2.0), grant(2, 2.5))
    found = drawn(early, *(at(second, grant(1, 2.0, 3.5)) for second in range(4, 12)))
    assert [run.grant.first for run in found[0].bars] == [0, 1], "nobody knows when the third came to its end"
    assert [run.grant.state for run in found[0].bars] == ["done", "done"]


def test_a_straggler_stands_out_from_its_fellows() -> None:
    usual = [grant(number, number, number + 0.5) for number in range(1, 7)]
    found = drawn(at(20, *usual, grant(7, 8.0, 12.0), grant(8, 19.6), grant(9, 15.0, state="lost", worker="w1")))
    straggling = {run.grant.first for row in found for run in row.bars if run.is_straggler}
    assert straggling == {7}
    late = drawn(at(25, *usual, grant(8, 19.6)))
    assert {run.grant.first for row in late for run in row.bars if run.is_straggler} == {8}


def test_too_few_fellows_make_no_straggler() -> None:
    found = drawn(at(20, grant(0, 1.0, 1.1), grant(1, 2.0, 12.0)))
    assert not any(run.is_straggler for row in found for run in row.bars)


def test_a_run_that_was_asked_for_early_begins_when_the_one_before_it_is_done_and_is_not_drawn_before() -> None:
    found = drawn(at(9, grant(0, 1.0, 4.0), grant(1, 2.0, 5.0), grant(2, 4.0), grant(3, 4.5)))
    assert [(run.begin, run.end, run.lane) for run in found[0].bars] == [(1, 4, 0), (4, 5, 0), (5, 9, 0)]


def test_tasks_of_two_passes_lie_in_lanes_of_their_own() -> None:
    found = drawn(at(9, grant(0, 1.0, 4.0), grant(0, 2.0, 5.0, task_id="next"), grant(1, 4.0, 6.0)))
    assert [run.lane for run in found[0].bars] == [0, 1, 0]
    many = drawn(at(9, *(grant(0, 1.0, 8.0, task_id=f"t-{number}") for number in range(9))))
    assert many[0].lanes == MAX_LANES


def test_the_picture_is_bounded_and_its_scale_fits_what_there_is() -> None:
    found = drawn(at(100, *(grant(number, 90 + number / 100, 91 + number / 100) for number in range(900))))
    runs = [run for row in found for run in row.bars]
    assert len(runs) == MAX_BARS
    assert max(run.grant.first for run in runs) == 899
    assert shown_span(found, 100.0, 60) == 15.0
    assert shown_span(drawn(at(100, grant(0, 75.0))), 100.0, 60) == 30.0
    assert shown_span(drawn(at(100, grant(0, 10.0))), 100.0, 60) == 60
    assert shown_span(drawn(at(200, grant(0, 10.0))), 200.0, 300) == 300


def test_what_was_lost_given_again_or_is_late_is_marked_and_explained() -> None:
    usual = [grant(number, number, number + 0.5) for number in range(1, 7)]
    gone = grant(7, 7.0, 8.0, "w1", state="lost", end=10)
    again = grant(7, 9.0, 13.0, reassigned=True)
    made = split_timeline(seen(at(20, *usual, gone, again)))
    assert re.search(r'<i class="lost"[^>]* title="splits 7 to 9 of list_files\(9\): lost after 1.0 s"', made)
    assert re.search(r'<i class="done straggles again"[^>]*much longer than others, assigned again after a loss"', made)
    for words in ("lost with its worker", "straggler", "given again"):
        assert f"{words}</span>" in made


def test_within_a_second_the_picture_stays_as_it_is() -> None:
    first, more = at(20, grant(0, 3.0, 4.0), grant(1, 5.0)), (grant(0, 3.0, 4.0), grant(1, 5.0, 20.3))
    later = snapshot(21, time=20.5, jobs=at(20, *more).jobs)

    def picture(*snapshots: Snapshot) -> str:
        found = re.search(r'class="timeline".*?class="keys"', split_timeline(seen(*snapshots)))
        assert found
        return found[0]

    assert picture(first, later) == picture(first)

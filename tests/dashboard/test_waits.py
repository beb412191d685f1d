"""Where each trainer's time goes."""

from __future__ import annotations

import re

import pytest

from dsnb.dashboard.panels.waits import time_shares, wait_causes, wait_history, waits
from dsnb.dashboard.view import View
from dsnb.monitor.snapshot import RoundsStatus, Snapshot
from tests.dashboard.snapshots import SECOND, job, seen, snapshot, stage, task, trainer


def at(seconds: int, *, wait: float = 0.5, decode: float = 0.6, batch: float = 0.2) -> Snapshot:
    """A service whose one trainer waits that share of its time, and whose one worker works those of its own."""
    reader = trainer("a", active_ns=seconds * SECOND, wait_ns=int(wait * seconds * SECOND), elements=seconds)
    work = (
        stage("batch(8)", depth=0, busy_ns=int(batch * seconds * SECOND)),
        stage("map(decode)", depth=1, busy_ns=int(decode * seconds * SECOND)),
    )
    return snapshot(seconds, jobs=(job(trainers=(reader,), stages=work, tasks=(task(),)),))


def shares(view: View) -> dict[str, float]:
    assert view.job is not None
    return {part.name: round(part.share, 3) for part in wait_causes(view, view.job)}


def test_a_wait_is_laid_at_the_door_of_what_the_workers_did() -> None:
    view = seen(at(1), at(2))
    assert shares(view) == {
        "map(decode)": 0.6,
        "batch(8)": 0.2,
        "other operations": 0.0,
        "hand-over, with workers idle": 0.2,
    }
    assert view.job is not None
    whole = time_shares(0.5, 0.1, wait_causes(view, view.job))
    assert [(part.kind, round(part.share, 3)) for part in whole] == [
        ("own", 0.4),
        ("decode", 0.1),
        ("op0", 0.3),
        ("op1", 0.1),
        ("ops", 0.0),
        ("idle", 0.1),
    ]


def test_idle_workers_are_not_blamed_on_an_operation() -> None:
    assert shares(seen(at(1, decode=0, batch=0), at(2, decode=0, batch=0)))["hand-over, with workers idle"] == 1.0


def test_the_parts_of_a_time_fill_it() -> None:
    for decode in (0.0, 0.3, 5.0):  # several threads of one worker make more than a second of work in a second
        view = seen(at(1, decode=decode), at(2, decode=decode))
        assert view.job is not None
        assert sum(part.share for part in time_shares(0.7, 0.4, wait_causes(view, view.job))) == pytest.approx(1.0)


def test_the_past_is_drawn_in_steps_that_do_not_move() -> None:
    view = seen(*(at(second) for second in range(1, 21)))
    found = wait_history(view.history, "train", "a", span_s=60)
    assert [number for number, _ in found] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert all(wait == pytest.approx(0.5) for _, wait in found)
    later = wait_history(view.history[2:], "train", "a", span_s=60)
    assert later == found[1:], "what was drawn once stays as it was"


def test_each_trainer_has_its_number_and_its_bar() -> None:
    made = waits(seen(at(1), at(2)))
    assert 'data-field="wait" data-value="0.5"' in made
    assert re.findall(r'<i class="(\w+)" style="width:([\d.]+)%"', made) == [
        ("own", "50.0"),
        ("decode", "0.0"),
        ("op0", "30.0"),
        ("op1", "10.0"),
        ("ops", "0.0"),
        ("idle", "10.0"),
    ]
    assert "not reading now" in waits(seen(at(1)))


def test_in_a_coordinated_read_the_quick_wait_for_the_slow() -> None:
    def then(seconds: int, *shares: float) -> Snapshot:
        readers = tuple(
            trainer(f"consumer {n}", active_ns=seconds * SECOND, wait_ns=int(share * seconds * SECOND))
            for n, share in enumerate(shares)
        )
        return snapshot(seconds, jobs=(job(cached=False, trainers=readers, rounds=RoundsStatus(round=seconds)),))

    held = waits(seen(then(1, 0.9, 0.01, 0.9), then(2, 0.9, 0.01, 0.9)))
    assert "waits for consumer 1" in re.sub("<[^>]*>", "", held)
    assert held.count('class="fellow"') == 3
    for shares in ((0.9, 0.8, 0.9), (0.0, 0.01, 0.0)):
        assert 'class="fellow"' not in waits(seen(then(1, *shares), then(2, *shares)))

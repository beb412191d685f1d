"""A loss is predicted for a trainer that falls behind, and for no other."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.monitor.snapshot import Snapshot, TrainerStatus
from dsnb.monitor.verdict import Verdict, verdicts
from dsnb.wire.messages import LinkReport
from tests.dashboard.snapshots import SECOND, job, place, snapshot, task, trainer, worker

FRAME = 8
FAST_LAG = 50


def slow_trainer(second: int, *, lag: int, wait: float = 0.0, **rest: Any) -> TrainerStatus:
    """A trainer that began `second` seconds ago, lags so many elements, and will miss some in half a minute."""
    active = second * SECOND
    times = {"active_ns": active, "wait_ns": int(wait * active), "eviction_in_s": 30.0, "on_lag": "skip"}
    return trainer(
        "slow", elements=50 * second, cursors=(place(offset=1_000 * second - lag, lag=lag),), **(times | rest)
    )


def service(second: int, slow: TrainerStatus) -> Snapshot:
    link = LinkReport(task_id="t-w0", worker="w0", trainer_id="slow", sent=100 * FRAME, frame_slices=100)
    window = task(
        head=1_000 * second, tail=max(0, 1_000 * second - 2_000), capacity_bytes=1 << 20, window_bytes=1 << 20
    )
    fast = trainer("fast", elements=1_000 * second, cursors=(place(offset=1_000 * second - FAST_LAG, lag=FAST_LAG),))
    jobs = (job(trainers=(slow, fast), tasks=(window,), links=(link,)),)
    return snapshot(second, jobs=jobs, workers=(worker(),))


def predictions(before: TrainerStatus, after: TrainerStatus) -> list[Verdict]:
    found = verdicts(service(1, before), service(4, after))
    return [one for one in found if "will begin to lose data" in one.text]


def test_a_trainer_that_falls_behind_is_told_when_it_will_lose_data() -> None:
    (found,) = predictions(slow_trainer(1, lag=100), slow_trainer(4, lag=400))
    assert found.subject == "slow"
    assert "400 elements behind and will begin to lose data in 30 s" in found.text


@pytest.mark.parametrize(
    "before, after, reason",
    [
        (slow_trainer(1, lag=100), slow_trainer(4, lag=400, clients=0), "it has left"),
        (slow_trainer(1, lag=100), slow_trainer(4, lag=400, evicted_by="anna"), "it was evicted, and that was told"),
        (slow_trainer(1, lag=100, wait=0.5), slow_trainer(4, lag=400, wait=0.5), "it waits for data"),
        (slow_trainer(1, lag=400), slow_trainer(4, lag=400), "its lag does not grow"),
        (slow_trainer(1, lag=400), slow_trainer(4, lag=100), "it catches up"),
        (slow_trainer(1, lag=0), slow_trainer(4, lag=FRAME), "its lag is one frame on its way"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_other_trainer_is_predicted_to_lose_data(before: TrainerStatus, after: TrainerStatus, reason: str) -> None:
    assert not predictions(before, after), reason


def test_the_fastest_trainer_is_never_predicted_to_lose_what_is_produced_ahead_of_it() -> None:
    """It lags, and more so each second, but nothing is evicted before the fastest trainer has it."""
    alone = [
        snapshot(
            second,
            jobs=(job(trainers=(slow_trainer(second, lag=100 * second),), tasks=(task(head=1_000 * second),)),),
            workers=(worker(),),
        )
        for second in (1, 4)
    ]
    assert not [one for one in verdicts(*alone) if one.cause == "window"]


def test_trainers_side_by_side_are_not_predicted_to_lose_what_is_produced_ahead_of_both() -> None:
    """As recorded: the worker made 240 elements at once for two trainers that were one element apart."""

    def moment(second: int, lags: tuple[int, int]) -> Snapshot:
        head = 100 + lags[0]
        readers = tuple(
            trainer(
                name,
                active_ns=second * SECOND,
                on_lag="skip",
                eviction_in_s=30.0,
                cursors=(place(offset=head - lag, lag=lag),),
            )
            for name, lag in zip(("a", "b"), lags, strict=True)
        )
        window = task(head=head, tail=0, capacity_bytes=1 << 20, window_bytes=1 << 18)
        links = tuple(
            LinkReport(task_id="t-w0", worker="w0", trainer_id=name, sent=100 * FRAME, frame_slices=100)
            for name in "ab"
        )
        return snapshot(second, jobs=(job(trainers=readers, tasks=(window,), links=links),), workers=(worker(),))

    assert not [one for one in verdicts(moment(1, (4, 4)), moment(4, (244, 245))) if one.cause == "window"]


@pytest.mark.parametrize("on_lag", ["skip", "wait", "spill"])
@pytest.mark.parametrize("skipped", [0, 500], ids=["will lose", "loses"])
def test_no_trainer_is_advised_to_use_what_it_uses(on_lag: str, skipped: int) -> None:
    before = slow_trainer(1, lag=100, on_lag=on_lag)
    after = slow_trainer(4, lag=400, on_lag=on_lag, skipped=skipped)
    (found,) = [one for one in verdicts(service(1, before), service(4, after)) if one.cause == "window"]
    assert found.remedy
    assert f'"{on_lag}"' not in found.remedy


@pytest.mark.parametrize("lost", [{"lost": 848}, {"lost_parts": 1}])
def test_elements_that_were_lost_with_a_worker_are_a_loss(lost: dict[str, int]) -> None:
    before, after = (service(second, trainer("slow", **rest)) for second, rest in ((1, {}), (4, lost)))
    told = [one.text for one in verdicts(before, after) if one.cause == "loss"]
    assert told == ["Job 'train' lost elements with a worker within 3.0 s."]

"""Trainers of different speed share one pass through the cross-trainer cache, each as it asked to be treated."""

from __future__ import annotations

import getpass
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import DataLossWarning, DeadlineExceededError, InvalidArgumentError, NotFoundError
from dsnb.monitor.snapshot import Snapshot, TrainerStatus
from dsnb.notebook.service import DataService
from tests.support.transfers import TRANSFERS
from tests.support.waiting import wait_for

WINDOW = 64 * 1024
KB = np.ones(128, np.int64)  # an element has 1 KB: 64 of them fill the window


@pytest.fixture
def service() -> Iterator[DataService]:
    with dsnb.start(workers=1, cross_trainer_cache_size_bytes=WINDOW) as service:
        yield service


def trainer(service: DataService, name: str, on_lag: Any = "skip", transfer: str | None = None, **more: Any) -> Any:
    cache = dsnb.CrossTrainerCache(name, on_lag=on_lag, **more)
    shared = dsnb.distribute(
        "parallel_epochs", service, job_name="job", cross_trainer_cache=cache, data_transfer_protocol=transfer
    )
    return iter(dsnb.Dataset.range(1 << 40).map(lambda x: x * KB).repeat().apply(shared))


def read(iterator: Any, count: int) -> list[int]:
    return [int(array[0]) for array in islice(iterator, count)]


def seen(service: DataService, name: str) -> TrainerStatus:
    job = service.status().job("job")
    assert job is not None
    found = job.trainer(name)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_one_that_spills_loses_nothing_however_far_it_falls_behind(service: DataService, transfer: str) -> None:
    slow, fast = trainer(service, "slow", "spill", transfer), trainer(service, "fast", transfer=transfer)
    assert read(slow, 5) == list(range(5))
    begin = next(fast)[0]  # behind what was put on disk for the slow one, if it came late
    assert read(fast, 2000 - begin) == list(range(begin + 1, 2001))
    place = seen(service, "slow")
    assert place.on_lag == "spill"
    assert place.lag >= 1900
    assert place.lag_bytes >= 1900 * KB.nbytes
    assert place.eviction_in_s == 0.0
    assert read(slow, 1995) == list(range(5, 2000))
    assert seen(service, "slow").skipped == 0
    assert seen(service, "slow").spilled > 1000
    slow.close()
    fast.close()


def test_one_that_waits_holds_the_others_up_and_loses_nothing(service: DataService) -> None:
    # Together: else what the first one has consumed may be evicted before the second one comes.
    slow, fast = (trainer(service, name, "wait", start_together=2) for name in ("slow", "fast"))
    ahead: list[int] = []  # of the fast one, which falls behind itself in the end
    reading = threading.Thread(target=lambda: ahead.extend(read(fast, 500)))
    reading.start()
    got = read(slow, 5)
    service.wait_until(full_window)
    assert len(ahead) < 200
    got += read(slow, 495)
    reading.join(30.0)
    assert got == ahead == list(range(500))
    slow.close()
    fast.close()


def full_window(now: Snapshot) -> bool:
    """Whether the window has no room for another frame, and the fast trainer has had all that is in it."""
    job = now.job("job")
    fast = job.trainer("fast") if job else None
    return bool(job and fast and job.tasks[0].window_bytes > WINDOW * 3 // 4 and fast.lag == 0)


@pytest.mark.slow
def test_one_that_skips_is_told_when_it_will_fall_off(service: DataService) -> None:
    slow, fast = trainer(service, "slow"), trainer(service, "fast")
    read(slow, 1)

    def about_to_fall() -> bool:
        read(fast, 1)
        return seen(service, "slow").eviction_in_s > 0 or seen(service, "slow").skipped > 0

    wait_for(about_to_fall, what="the slow trainer to drift", timeout=30.0)
    read(fast, 1000)
    begins = "trainer 'slow' of job 'job' begins to lose data: .*on_lag=.wait."
    with pytest.warns(DataLossWarning, match=begins) as warned:
        wait_for(lambda: read(fast, 500) and read(slow, 5) and warned.list, what="the warning", timeout=30.0)
    assert warned.list[0].filename == __file__  # at the line that reads, not inside of dsnb
    read(fast, 1000)
    read(slow, 5)
    assert seen(service, "slow").skipped > 500  # and not a word more: warnings are errors here
    slow.close()
    fast.close()


@pytest.mark.slow
def test_mixtures_work_each_is_treated_as_it_asked() -> None:
    with dsnb.start(workers=2, cross_trainer_cache_size_bytes=WINDOW) as service:
        got: dict[str, list[int]] = {}

        def run(name: str, on_lag: str, pause: float) -> None:
            iterator = trainer(service, name, on_lag, start_together=4)
            got[name] = []
            while len(got[name]) < 400:
                with suppress(DataLossWarning) if on_lag == "skip" else nullcontext():
                    got[name].append(int(next(iterator)[0]))
                paused.wait(pause)
            iterator.close()

        paused = threading.Event()
        threads = [
            threading.Thread(target=run, args=arguments)
            for arguments in (("a", "skip", 0.001), ("b", "wait", 0.002), ("c", "spill", 0.01), ("d", "spill", 0.0))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        # Two workers produce the same sequence (parallel_epochs): each trainer has a start of it from both.
        for name in "bcd":
            assert whole_starts(got[name]), f"{name} missed something"


def whole_starts(numbers: list[int]) -> bool:
    """Whether these are the starts of two sequences 0, 1, 2, ... with nothing left out."""
    longer = max(numbers) + 1
    return sorted(numbers) == sorted([*range(longer), *range(len(numbers) - longer)])


@pytest.mark.slow
def test_what_is_kept_for_one_that_left_goes_after_its_time(service: DataService) -> None:
    slow, fast = trainer(service, "slow", "spill", timeout=8.0), trainer(service, "fast")
    read(slow, 5)
    slow.close()
    read(fast, 500)
    assert spilled_bytes(service.status()) > 0
    service.wait_until(lambda now: spilled_bytes(now) == 0)
    fast.close()


def spilled_bytes(now: Snapshot) -> int:
    job = now.job("job")
    assert job is not None
    return sum(task.spill_bytes for task in job.tasks)


@pytest.mark.slow
def test_one_can_be_sent_away_by_hand(service: DataService) -> None:
    slow, fast = trainer(service, "slow", "spill"), trainer(service, "fast")
    read(slow, 5)
    read(fast, 500)
    service.evict("job", "slow")
    service.wait_until(lambda now: spilled_bytes(now) == 0)
    by = f"svc.evict() of {getpass.getuser()} in process {os.getpid()} on {socket.gethostname()}"
    assert any(f"'slow' of job 'job' was evicted by {by}" in event.text for event in service.status().events)
    assert seen(service, "slow").evicted_by == by
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        first = read(slow, 40)[-1]  # what it had got before, and then what is there
    assert first > 400
    assert seen(service, "slow").skipped > 300
    assert not any("begins to lose data" in event.text for event in service.status().events)
    with pytest.raises(NotFoundError, match="no trainer 'nobody'") as caught:
        service.evict("job", "nobody")
    assert "'slow', 'fast'" in caught.value.hint
    with pytest.raises(NotFoundError, match="no job 'none'"):
        service.evict("none", "slow")
    slow.close()
    fast.close()


@pytest.mark.slow
def test_those_that_start_together_are_given_nothing_before(service: DataService) -> None:
    one = trainer(service, "one", start_together=2)
    first: list[int] = []
    reading = threading.Thread(target=lambda: first.extend(read(one, 10)))
    reading.start()
    service.wait_until(lambda now: bool(now.job("job") and now.job("job").tasks and now.job("job").tasks[0].head > 5))  # type: ignore[union-attr]
    assert not first
    other = trainer(service, "other", start_together=2)
    assert read(other, 10) == list(range(10))
    reading.join(60.0)
    assert first == list(range(10))
    one.close()
    other.close()


@pytest.mark.slow
def test_those_that_start_together_see_one_sequence_over_all_workers() -> None:
    with dsnb.start(workers=3) as service:
        got: dict[str, list[int]] = {}

        def run(name: str, pause: float) -> None:
            cache = dsnb.CrossTrainerCache(name, on_lag="wait", start_together=2)
            shared = dsnb.distribute("distributed_epoch", service, job_name="job", cross_trainer_cache=cache)
            got[name] = []
            for x in dsnb.Dataset.range(300).apply(shared):
                got[name].append(int(x))
                paused.wait(pause)

        paused = threading.Event()
        threads = [threading.Thread(target=run, args=a) for a in (("one", 0.0), ("other", 0.002))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    assert got["one"] == got["other"]
    assert sorted(got["one"]) == list(range(300))


@pytest.mark.slow
def test_one_that_waits_in_vain_for_the_others_is_told_so(service: DataService) -> None:
    with (
        trainer(service, "alone", start_together=2, timeout=0.5) as alone,
        pytest.raises(DeadlineExceededError, match=r"not all trainers .* here are 'alone'"),
    ):
        next(alone)


def test_one_may_begin_with_the_newest(service: DataService) -> None:
    fast = trainer(service, "fast")
    read(fast, 1000)
    late = trainer(service, "late", start="newest")
    assert read(late, 1)[0] >= 1000
    late.close()
    fast.close()


@pytest.mark.parametrize(
    "make,told",
    [
        (lambda: dsnb.CrossTrainerCache(""), "non-empty trainer ID"),
        (lambda: dsnb.CrossTrainerCache("a", on_lag="block"), "`on_lag` is 'block'"),  # type: ignore[arg-type]
        (lambda: dsnb.CrossTrainerCache("a", start="middle"), "`start` is 'middle'"),  # type: ignore[arg-type]
        (lambda: dsnb.CrossTrainerCache("a", start_together=0), "`start_together` is 0"),
        (lambda: dsnb.CrossTrainerCache("a", start_together=True), "`start_together` is True"),
        (lambda: dsnb.CrossTrainerCache("a", timeout=0), "`timeout` is 0"),
        (lambda: dsnb.CrossTrainerCache("a", timeout="soon"), "`timeout` is 'soon'"),  # type: ignore[arg-type]
    ],
)
def test_a_wish_that_cannot_be_is_refused_at_once(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        make()
    assert caught.value.hint


@pytest.mark.slow
def test_a_cache_that_nobody_reads_leaves_its_bytes_to_the_others() -> None:
    with dsnb.start(workers=1, cross_trainer_cache_size_bytes=4 * WINDOW) as service:
        cache = dsnb.CrossTrainerCache("a")
        iterators = []
        for name in ("one", "two"):
            shared = dsnb.distribute("parallel_epochs", service, job_name=name, cross_trainer_cache=cache)
            iterators.append(iter(dsnb.Dataset.range(1 << 40).map(lambda x: x * KB).repeat().apply(shared)))
            read(iterators[-1], 10)
        iterators[0].close()
        service.wait_until(lambda now: capacity(now, "two") > 3 * WINDOW)
        read(iterators[1], 1000)
        assert capacity(service.status(), "two") > 3 * WINDOW
        iterators[1].close()


def capacity(now: Snapshot, name: str) -> int:
    job = now.job(name)
    return job.tasks[0].capacity_bytes if job and job.tasks else 0


@pytest.mark.slow
def test_the_client_of_an_evicted_trainer_is_told_who_evicted_it_and_joins_again_by_iterating(
    service: DataService,
) -> None:
    slow, fast = trainer(service, "slow"), trainer(service, "fast")
    read(slow, 5)
    read(fast, 30)
    service.evict("job", "slow")
    read(fast, 500)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        wait_for(lambda: read(slow, 1) and told, what="the warning")
    assert [one.category for one in told] == [DataLossWarning]
    assert "'slow' of job 'job' was evicted by svc.evict() of " in str(told[0].message)
    slow.close()
    service.wait_until(lambda now: not now.job("job").trainer("slow").clients)  # type: ignore[union-attr]
    again = trainer(service, "slow")
    read(again, 5)
    assert seen(service, "slow").evicted_by == ""
    again.close()
    fast.close()

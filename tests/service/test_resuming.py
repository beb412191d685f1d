"""Reading positions of distributed datasets: exact at every position, on a new service, with other workers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.testing import assert_resumable
from tests.support.cluster import Cluster
from tests.support.reading import first, joined, numbers

Make = Callable[[Any], dsnb.Dataset]


def spread(mode: Any, **options: Any) -> Callable[[Any], Callable[[dsnb.Dataset], dsnb.Dataset]]:
    return lambda service: dsnb.distribute(mode, service, **options)


OFF, DYNAMIC = spread("parallel_epochs"), spread("distributed_epoch")
R = dsnb.Dataset.range

PIPELINES: dict[str, Make] = {
    "OFF": lambda s: R(12).apply(OFF(s)),
    "OFF, unseeded": lambda s: R(12).shuffle(5).apply(OFF(s)),
    "OFF, batches": lambda s: R(13).batch(4).apply(OFF(s)),
    "OFF, named": lambda s: R(12).apply(dsnb.distribute("parallel_epochs", s, job_name="train")),
    "OFF, one at a time": lambda s: R(9).apply(dsnb.distribute("parallel_epochs", s, max_outstanding_requests=1)),
    "DYNAMIC": lambda s: R(24).map(lambda x: x * 3).filter(lambda x: x % 2 == 0).apply(DYNAMIC(s)),
    "DYNAMIC, mixed": lambda s: R(24).shuffle(6).batch(4).apply(DYNAMIC(s)),
    "DYNAMIC, repeated": lambda s: R(7).repeat(3).apply(DYNAMIC(s)),
    "DYNAMIC, two sources": lambda s: dsnb.Dataset.zip(R(9), R(9)).map(lambda x, y: x + 0 * y).apply(DYNAMIC(s)),
    "DATA": lambda s: R(13).shuffle(13).apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, s)),
    "DATA, on threads in no order": lambda s: (
        R(13).map(str, num_parallel_calls=2, deterministic=False).apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, s))
    ),
    "batches behind": lambda s: R(10).apply(OFF(s)).map(lambda x: x + 1).batch(3).prefetch(2),
    "DYNAMIC, batches behind": lambda s: R(20).apply(DYNAMIC(s)).batch(3),
    "a shuffle behind": lambda s: R(8).apply(OFF(s)).shuffle(5),
    # Of two workers, either may come first: the elements that may be skipped are equal.
    "skip behind": lambda s: (
        R(8).map(lambda x: max(x, 3)).apply(OFF(s)).skip(3).enumerate().map(lambda i, x: x).batch(2)
    ),
    "two services behind": lambda s: R(5).apply(OFF(s)).concatenate(R(5).apply(DYNAMIC(s))).batch(3),
    "passes behind": lambda s: R(5).apply(OFF(s)).repeat(3).batch(4).prefetch(1),
    "DYNAMIC, passes behind": lambda s: R(9).apply(DYNAMIC(s)).repeat(3).batch(4),
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=2) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a_read_goes_on_at_any_position_of_the_same_service(cluster: Cluster, make: Make) -> None:
    assert_resumable(make(cluster.service), positions=[0, 1, 3, 8, 20])


def rows(elements: Any) -> list[int]:
    return [int(row) for element in elements for row in np.ravel(element)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", [name for name in PIPELINES if "passes" not in name])
def test_a_new_service_goes_on_with_any_number_of_workers(name: str, workers: int) -> None:
    make = PIPELINES[name]
    with Cluster(workers=2) as cluster:
        dataset = make(cluster.service)
        everything = rows(dataset)
        elements = iter(dataset)
        before = [next(elements) for _ in range(3)]
        state = json.loads(json.dumps(elements.state_dict()))
        elements.close()
    with Cluster(workers=workers) as cluster:
        elements = iter(make(cluster.service))
        elements.load_state_dict(state)
        assert sorted(rows(before) + rows(elements)) == sorted(everything)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a_read_goes_on_at_every_position_long(make: Make) -> None:
    for workers in (1, 2, 4):
        with Cluster(workers=workers) as cluster:
            assert_resumable(make(cluster.service))


def test_one_worker_goes_on_in_the_same_order(cluster: Cluster) -> None:
    cluster.workers.pop().stop()
    dataset = R(100).shuffle(50).batch(3).apply(OFF(cluster.service))
    elements = iter(dataset)
    rows([next(elements) for _ in range(10)])
    state, wanted = elements.state_dict(), rows(elements)
    again = iter(dataset)
    again.load_state_dict(state)
    assert rows(again) == wanted


def test_what_this_process_holds_comes_again_in_the_same_turns(cluster: Cluster) -> None:
    dataset = R(30).apply(OFF(cluster.service)).shuffle(40, seed=1).batch(7)
    elements = iter(dataset)
    next(elements)
    state = elements.state_dict()
    wanted = [element.tolist() for element in elements]
    # The buffer had taken 40 of the 60 elements by then: what they are was decided.
    again = iter(dataset)
    again.load_state_dict(state)
    found = [element.tolist() for element in again]
    assert found[:4] == wanted[:4]
    assert sorted(joined(found)) == sorted(joined(wanted))


def test_workers_do_not_run_functions_for_what_is_behind(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "calls"

    def noted(x: int, path: str = str(log)) -> int:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{x}\n")
        return x

    cluster.workers.pop().stop()
    dataset = R(60).map(noted).batch(2).apply(OFF(cluster.service))
    elements = iter(dataset)
    rows([next(elements) for _ in range(25)])
    state = elements.state_dict()
    elements.close()
    log.unlink()
    again = iter(dataset)
    again.load_state_dict(state)
    assert rows(again) == list(range(50, 60))
    assert set(map(int, log.read_text().split())) <= set(range(50, 60))


@pytest.mark.slow
def test_errors_keep_their_places(cluster: Cluster) -> None:
    def picky(x: int) -> int:
        if x % 5 == 2:
            raise ValueError(f"{x}")
        return x

    assert_resumable(R(14).map(picky).batch(2).apply(OFF(cluster.service)), positions=[0, 2, 3, 7])
    assert_resumable(R(14).map(picky).apply(OFF(cluster.service)).batch(3), positions=[0, 2, 3, 7])


def test_the_next_loop_is_the_pass_behind(cluster: Cluster) -> None:
    dataset = R(6).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="train"))
    numbers(dataset)
    elements = iter(dataset)
    first(4, elements)
    state = elements.state_dict()
    elements.close()
    other = R(6).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="another name"))
    again = iter(other)
    again.load_state_dict(state)
    assert len(numbers(again)) == 8
    assert cluster.job("another name").iteration == 1
    assert len(numbers(other)) == 12
    assert cluster.job("another name").iteration == 2


def test_the_loop_after_a_position_at_the_end_is_the_pass_behind(cluster: Cluster) -> None:
    cluster.workers.pop().stop()

    def made(name: str) -> dsnb.Dataset:
        shuffled = R(20).shuffle(20, seed=2)
        return shuffled.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name=name)).repeat(2).batch(5)

    dataset = made("train")
    rows(dataset)
    elements = iter(dataset)
    rows(elements)
    state = json.loads(json.dumps(elements.state_dict()))
    wanted = rows(dataset)
    for name in ("train", "another"):
        cluster.service.forget("train") if name == "train" else None
        again = made(name)
        resumed = iter(again)
        resumed.load_state_dict(state)
        assert rows(resumed) == []
        assert resumed.state_dict() == state
        assert rows(again) == wanted
        assert cluster.job(name).iteration == 5


def test_a_dispatcher_that_comes_back_goes_on_with_a_resumed_pass(tmp_path: Path) -> None:
    with Cluster(workers=2, dispatcher={"work_dir": str(tmp_path)}) as cluster:
        dataset = R(400).shuffle(10).apply(DYNAMIC(cluster.service))
        elements = iter(dataset)
        before = first(100, elements)
        state = elements.state_dict()
        elements.close()
        again = iter(dataset)
        again.load_state_dict(state)
        middle = first(50, again)
        cluster.restart_dispatcher()
        twice = again.state_dict()
        assert sorted([*before, *middle, *numbers(again)]) == list(range(400))
        last = iter(dataset)
        last.load_state_dict(twice)
        assert sorted([*before, *middle, *numbers(last)]) == list(range(400))


# ---- what is refused


INEXACT: dict[str, tuple[Make, str]] = {
    "a function on threads": (
        lambda s: R(9).map(str, num_parallel_calls=2, deterministic=False).apply(OFF(s)),
        r"map\(str\) hands out what is ready first",
    ),
    "a shared window": (
        lambda s: R(9).apply(
            dsnb.distribute("parallel_epochs", s, job_name="j", cross_trainer_cache=dsnb.CrossTrainerCache("a"))
        ),
        "the trainers of a cross-trainer cache share one place",
    ),
    "a recording of a service": (
        lambda s: R(9).apply(OFF(s)).cache(),
        r"cache\(\) keeps what from the service handed out",
    ),
    "inside of a function": (
        lambda s: R(2).flat_map(partial(lambda inner, _: inner, R(3).apply(OFF(s)))),
        "read inside of a function",
    ),
}


@pytest.mark.parametrize("make,told", INEXACT.values(), ids=INEXACT)
def test_what_is_not_exact_is_named(cluster: Cluster, make: Make, told: str) -> None:
    with iter(make(cluster.service)) as elements:
        next(elements)
        with pytest.raises(FailedPreconditionError, match=told):
            elements.state_dict()
        next(elements)


def test_a_pass_that_others_read_too_has_no_exact_position(cluster: Cluster) -> None:
    one, other = (
        iter(
            R(2000).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="j", max_outstanding_requests=2))
        )
        for _ in range(2)
    )
    for _ in range(20):
        next(one)
        next(other)
    with pytest.raises(FailedPreconditionError, match="other readers of the job had elements of this pass"):
        one.state_dict()
    one.close()
    other.close()


def test_a_pass_that_somebody_reads_cannot_begin_elsewhere(cluster: Cluster) -> None:
    dataset = R(50).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="j"))
    with iter(dataset) as elements:
        next(elements)
        state = elements.state_dict()
        other = iter(R(50).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="j")))
        other.load_state_dict(state)
        with pytest.raises(FailedPreconditionError, match=r"pass 1 of job 'j' is being read by 1 client"):
            other.start()
        assert len(numbers(elements)) == 99


def test_a_service_without_workers_says_so(cluster: Cluster) -> None:
    dataset = R(50).apply(OFF(cluster.service))
    with iter(dataset) as elements:
        next(elements)
        state = elements.state_dict()
    for worker in cluster.workers:
        worker.stop()
    elements = iter(dataset)
    elements.load_state_dict(state)
    with pytest.raises(FailedPreconditionError, match="no worker that could continue"):
        elements.start()


def test_a_position_of_another_mode_or_pipeline_is_refused(cluster: Cluster) -> None:
    elements = iter(R(9).map(abs).apply(OFF(cluster.service)))
    next(elements)
    state = elements.state_dict()
    for dataset, told in [
        (R(9).map(abs).apply(DYNAMIC(cluster.service)), "operation 3, the service, has another function or other"),
        (R(8).map(abs).apply(OFF(cluster.service)), r"operation 1 is range\(9\), and here it is range\(8\)"),
    ]:
        with iter(dataset) as other, pytest.raises(InvalidArgumentError, match=told):
            other.load_state_dict(state)
    elements.close()


@pytest.mark.parametrize("damage", [{"tasks": 3}, {"tasks": [{}]}, {"turns": [["a", 1]]}, {"providers": [[0, 1]]}])
def test_a_damaged_position_is_refused_before_anything_is_read(cluster: Cluster, damage: dict[str, Any]) -> None:
    dataset = R(9).apply(OFF(cluster.service))
    with iter(dataset) as elements:
        next(elements)
        state = elements.state_dict()
    state["sources"]["0"].update(damage)

    def resume() -> None:
        elements = iter(dataset)
        elements.load_state_dict(state)
        elements.start()  # only the service knows how many splits there are

    with pytest.raises(InvalidArgumentError, match=r"damaged|does not fit"):
        resume()
    assert not cluster.status().jobs


@pytest.mark.soak
def test_a_service_that_has_ended_cannot_tell_a_position() -> None:
    with Cluster(workers=1) as cluster:
        elements = iter(R(5000).batch(2).apply(OFF(cluster.service)))
        next(elements)
    with pytest.raises(UnavailableError):
        elements.state_dict()
    elements.close()


def test_an_endless_read_remembers_a_bounded_number_of_turns(cluster: Cluster) -> None:
    elements = iter(R(3).repeat().apply(OFF(cluster.service)))
    for _ in itertools.repeat(None, 3000):
        next(elements)
    assert len(json.dumps(elements.state_dict())) < 1500
    elements.close()

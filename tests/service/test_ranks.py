"""Ranks that train together on finite data take the same number of steps, whatever happens to their workers."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.client.rounds import ConsumerRounds
from dsnb.errors import DataLossWarning, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.wire.schedule import RoundsUpdate
from tests.support.cluster import Cluster
from tests.support.marks import slow
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for

ROWS = 101
"""A prime number: it is no multiple of any number of ranks."""


def ranks(service: Any, count: int, data: dsnb.Dataset | None = None, **options: Any) -> list[dsnb.Dataset]:
    """The dataset of each rank."""
    mode = options.pop("mode", "distributed_epoch")
    source = dsnb.Dataset.range(ROWS) if data is None else data
    return [
        source.apply(dsnb.distribute(mode, service, job_name="train", rank=rank, world_size=count, **options))
        for rank in range(count)
    ]


def epochs(datasets: list[dsnb.Dataset], count: int = 1, step: Callable[[int, int], None] | None = None) -> list[Any]:
    """For each epoch, what each rank got; `step` is called with the rank and the number of each of its steps."""

    def train(rank: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        for _ in range(count):
            found.append([])
            for number, element in enumerate(datasets[rank]):
                if step is not None:
                    step(rank, number)
                found[-1].append(element)
        return found

    columns = run_in_threads([lambda rank=rank: train(rank) for rank in range(len(datasets))], 120.0)
    return [list(epoch) for epoch in zip(*columns, strict=True)]


def check_drop(epoch: list[list[Any]], rows: int = ROWS) -> None:
    """All ranks took the same number of steps; no element came twice, and fewer than one for each rank are missing."""
    (steps,) = {len(rank) for rank in epoch}
    got = Counter(int(x) for rank in epoch for x in rank)
    assert steps == rows // len(epoch)
    assert max(got.values(), default=1) == 1


@pytest.mark.parametrize("workers, transfer", [(1, "grpc"), (3, "local"), slow(1, "local"), slow(1, "shared_memory"),
                                               slow(3, "grpc"), slow(3, "shared_memory")])  # fmt: skip
def test_ranks_take_the_same_number_of_steps_in_each_epoch(workers: int, transfer: str) -> None:
    with Cluster(workers) as cluster:
        for epoch in epochs(ranks(cluster.service, 3, data_transfer_protocol=transfer), 3):
            check_drop(epoch)


@pytest.mark.parametrize("count", [1, 2, 5, 150])
def test_pad_fills_the_last_round_and_says_so(count: int) -> None:
    if count > ROWS:
        data, rows = dsnb.Dataset.range(3), 3  # fewer elements than ranks
        count = 4
    else:
        data, rows = dsnb.Dataset.range(ROWS), ROWS
    with Cluster(2) as cluster:
        (epoch,) = epochs(ranks(cluster.service, count, data, at_end="pad"))
    assert {len(rank) for rank in epoch} == {-(-rows // count)}
    assert Counter(int(x) for rank in epoch for x, filler in rank if not filler) == Counter(range(rows))
    fillers = [int(x) for rank in epoch for x, filler in rank if filler]
    assert len(fillers) == -rows % count
    assert len(set(fillers)) <= 1, "all are the first element of the last round"


def test_repeat_fills_the_last_round_with_elements_of_it() -> None:
    with Cluster(2) as cluster:
        (epoch,) = epochs(ranks(cluster.service, 3, at_end="repeat"))
    got = Counter(int(x) for rank in epoch for x in rank)
    assert {len(rank) for rank in epoch} == {34}
    assert set(got) == set(range(ROWS))
    assert got.total() == ROWS + 1


def test_structures_batches_and_specs_stay_as_they_are() -> None:
    rows = dsnb.Dataset.range(20).map(lambda x: {"x": np.full(3, x), "y": x}).batch(2)
    with Cluster(2) as cluster:
        plain, padded = (ranks(cluster.service, 3, rows, at_end=at_end)[0] for at_end in ("drop", "pad"))
        (epoch,) = epochs(ranks(cluster.service, 3, rows))
    assert {batch["x"].shape for rank in epoch for batch in rank} == {(2, 3)}
    assert plain.element_spec == rows.element_spec
    if rows.element_spec is not None:
        assert padded.element_spec == (rows.element_spec, dsnb.TensorSpec((), bool))


def test_the_number_of_steps_is_known_where_workers_share_the_data_exactly() -> None:
    with Cluster(1) as cluster:
        for at_end, steps in ("drop", 33), ("pad", 34), ("repeat", 34):
            assert len(ranks(cluster.service, 3, at_end=at_end)[0]) == steps
        unknown = ranks(cluster.service, 3, dsnb.Dataset.range(9).filter(lambda x: x > 1))[0]
        assert unknown.cardinality() == dsnb.UNKNOWN_CARDINALITY
        endless = ranks(cluster.service, 3, dsnb.Dataset.range(9).repeat())[0]
        assert endless.cardinality() == dsnb.INFINITE_CARDINALITY


def test_each_worker_gives_its_own_pass_where_workers_do_not_share() -> None:
    with Cluster(2) as cluster:
        (epoch,) = epochs(ranks(cluster.service, 2, mode="parallel_epochs"))
    assert [len(rank) for rank in epoch] == [ROWS, ROWS]
    assert Counter(int(x) for rank in epoch for x in rank) == Counter([*range(ROWS)] * 2)


def test_a_rank_that_breaks_off_goes_on_in_the_same_epoch(cluster: Cluster) -> None:
    found: list[list[int]] = [[], []]

    def train(rank: int, dataset: dsnb.Dataset) -> None:
        for element in dataset:
            found[rank].append(int(element))
            if len(found[rank]) == 20:
                break
        found[rank].extend(int(element) for element in dataset)

    datasets = ranks(cluster.service, 2)
    run_in_threads([lambda rank=rank: train(rank, datasets[rank]) for rank in range(2)])
    check_drop([*found])


@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "one order"])
@pytest.mark.parametrize("at_end,steps", [("drop", 50), slow("repeat", 51)])
def test_loops_of_exactly_len_steps_are_whole_epochs(
    cluster: Cluster, at_end: str, steps: int, *, deterministic: bool
) -> None:
    """Lightning never asks for the end: it leaves after the last of `len()` steps."""
    data = dsnb.Dataset.range(ROWS).with_options(dsnb.Options(deterministic=deterministic))
    datasets = ranks(cluster.service, 2, data, at_end=at_end)
    found: list[list[list[int]]] = [[[] for _ in range(4)] for _ in datasets]

    def train(rank: int) -> None:
        for got in found[rank]:
            got.extend(int(element) for element in itertools.islice(datasets[rank], steps))

    run_in_threads([lambda rank=rank: train(rank) for rank in range(2)])
    for epoch in zip(*found, strict=True):
        assert [len(got) for got in epoch] == [steps] * 2
        counts = Counter(element for got in epoch for element in got)
        assert len(counts) == (100 if at_end == "drop" else ROWS), "each epoch has its own elements, each of them once"


def test_a_rank_that_comes_back_behind_the_last_step_skips_and_takes_from_the_next_epoch(cluster: Cluster) -> None:
    datasets = ranks(cluster.service, 2)
    first: list[list[int]] = [[], []]
    second: list[list[int]] = [[], []]

    def train(rank: int) -> None:
        first[rank] = [int(element) for element in itertools.islice(datasets[rank], 50)]
        second[rank] = [int(element) for element in datasets[rank].skip(20)]

    run_in_threads([lambda rank=rank: train(rank) for rank in range(2)])
    assert [len(got) for got in (*first, *second)] == [50, 50, 30, 30]
    assert max(Counter(second[0] + second[1]).values()) == 1


def test_an_error_of_user_code_stands_in_its_ranks_place(cluster: Cluster) -> None:
    def fail(x: int) -> int:
        if x == 7:
            raise ValueError("seven")
        return x

    found: list[list[Any]] = [[], []]

    def train(rank: int, dataset: dsnb.Dataset) -> None:
        elements = iter(dataset)
        while True:
            try:
                found[rank].append(int(next(elements)))
            except StopIteration:
                return
            except ValueError as error:
                found[rank].append(str(error).partition("\n")[0])

    datasets = ranks(cluster.service, 2, dsnb.Dataset.range(20).map(fail))
    run_in_threads([lambda rank=rank: train(rank, datasets[rank]) for rank in range(2)])
    assert [len(got) for got in found] == [10, 10]
    assert sorted(map(str, [*found[0], *found[1]])) == sorted(["seven", *(str(x) for x in range(20) if x != 7)])


def test_an_error_that_is_all_there_is_does_not_pass_for_an_empty_epoch(cluster: Cluster) -> None:
    def broken() -> Iterator[int]:
        raise ValueError("no such file")
        yield 1

    datasets = ranks(cluster.service, 2, dsnb.Dataset.from_generator(broken), mode="parallel_epochs")

    def train(dataset: dsnb.Dataset) -> None:
        with pytest.raises(ValueError, match="no such file"):
            list(dataset)

    run_in_threads([lambda one=one: train(one) for one in datasets])


def test_a_worker_that_leaves_in_an_epoch_gives_what_it_has_and_nothing_is_lost() -> None:
    rows = dsnb.Dataset.range(600)
    with Cluster(3) as cluster:

        def step(rank: int, number: int) -> None:
            if (rank, number) == (0, 30):
                cluster.workers[1].drain()

        (epoch,) = epochs(ranks(cluster.service, 2, rows), step=step)
    check_drop(epoch, 600)
    assert Counter(int(x) for rank in epoch for x in rank) == Counter(range(600))


def test_a_worker_that_comes_in_an_epoch_takes_part() -> None:
    rows = dsnb.Dataset.range(2_000)
    with Cluster(1) as cluster:

        def step(rank: int, number: int) -> None:
            if (rank, number) == (0, 10):
                cluster.add_worker()

        (epoch,) = epochs(ranks(cluster.service, 3, rows), step=step)
    check_drop(epoch, 2_000)


def test_a_worker_without_a_part_takes_over_the_part_of_one_that_is_gone() -> None:
    with Cluster(1) as cluster, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        endless = dsnb.Dataset.range(50).repeat()

        def train(dataset: dsnb.Dataset, rank: int) -> int:
            for number, _ in enumerate(dataset):
                if (rank, number) == (0, 10):
                    cluster.add_worker()
                    cluster.workers[0].stop()
                if number == 2_000:
                    break
            return number

        datasets = ranks(cluster.service, 2, endless, mode=dsnb.ShardingPolicy.DATA)
        assert run_in_threads([lambda rank=rank: train(datasets[rank], rank) for rank in (0, 1)], 60.0) == [2_000] * 2


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_an_error_that_ends_the_data_reaches_each_rank(cluster: Cluster, pause: float) -> None:
    def broken() -> Iterator[int]:
        yield from range(4)
        time.sleep(pause)  # the ranks have consumed everything meanwhile
        raise OSError("the disk is gone")

    datasets = ranks(cluster.service, 2, dsnb.Dataset.from_generator(broken), mode="parallel_epochs")

    def train(dataset: dsnb.Dataset) -> None:
        with pytest.raises(OSError, match="the disk is gone"):
            list(dataset)

    run_in_threads([lambda one=one: train(one) for one in datasets])


@pytest.mark.slow
def test_a_rank_that_ends_after_the_service_was_stopped_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, told, receive = threading.Event(), set[ConsumerRounds](), ConsumerRounds.receive_update

    def receive_and_note(rounds: ConsumerRounds, update: RoundsUpdate) -> None:
        receive(rounds, update)
        if update.schedules and not update.schedules[-1].tasks:  # the end
            told.add(rounds)

    monkeypatch.setattr(ConsumerRounds, "receive_update", receive_and_note)

    def train(rank: int, dataset: dsnb.Dataset) -> int:
        elements = iter(dataset)
        steps = sum(1 for _ in itertools.islice(elements, 4))
        if rank == 1:
            assert ended.wait(60.0)
        steps += sum(1 for _ in elements)
        if rank == 0:
            wait_for(lambda: len(told) == 2, what="both ranks to know where the data end")
            service.stop()
            ended.set()
        return steps

    with dsnb.start(workers=1) as service:
        datasets = ranks(service, 2, dsnb.Dataset.range(8))
        assert run_in_threads([lambda rank=rank: train(rank, datasets[rank]) for rank in (0, 1)]) == [4, 4]


@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
def test_ranks_that_wait_when_the_service_is_stopped_are_told_at_once() -> None:
    held, release = os.pipe()
    waiting = threading.Semaphore(0)

    def prepare(number: int) -> int:
        if number == 6:
            os.read(held, 1)
        return number

    def train(dataset: dsnb.Dataset) -> None:
        elements = iter(dataset)
        for _ in range(3):
            next(elements)
        waiting.release()
        with pytest.raises(UnavailableError, match="the service 'default' has ended"):
            next(elements)

    def stop() -> None:
        for _ in range(2):
            assert waiting.acquire(timeout=60.0)
        service.stop()

    with dsnb.start(workers=1) as service:
        datasets = ranks(service, 2, dsnb.Dataset.range(100).map(prepare))
        run_in_threads([*(lambda one=one: train(one) for one in datasets), stop], 60.0)
    os.write(release, b".")
    os.close(release)
    os.close(held)


@pytest.mark.slow
def test_ranks_end_when_the_last_worker_of_a_static_mode_is_gone() -> None:
    data = dsnb.Dataset.range(100_000)
    with Cluster(1) as cluster, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)

        def step(rank: int, number: int) -> None:
            if (rank, number) == (0, 5):
                cluster.workers[0].stop()
                cluster.add_worker()

        (epoch,) = epochs(ranks(cluster.service, 2, data, mode=dsnb.ShardingPolicy.DATA), step=step)
    assert len({len(rank) for rank in epoch}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("after", [5, 60, 190])
def test_ranks_stay_in_step_when_a_worker_is_killed(after: int) -> None:
    rows = dsnb.Dataset.range(600)
    with dsnb.start(workers=3, name=f"ranks-{after}", isolation="process") as service, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        pids = [worker.pid for worker in service.status().workers if worker.name == "w1"]

        def step(rank: int, number: int) -> None:
            if (rank, number) == (1, after) and pids:
                os.kill(pids.pop(), signal.SIGKILL)

        first, second = epochs(ranks(service, 2, rows), 2, step=step)
    for epoch in (first, second):
        assert len({len(rank) for rank in epoch}) == 1
        assert max(Counter(int(x) for rank in epoch for x in rank).values()) == 1
    check_drop(second, 600)


def test_an_epoch_is_over_for_the_service_when_all_ranks_have_read_it(cluster: Cluster) -> None:
    datasets = ranks(cluster.service, 2)
    epochs(datasets, 2)

    def iterations() -> list[str]:
        job = cluster.status().job("train")
        return [] if job is None else [job.state]

    wait_for(lambda: iterations() == ["finished"], what="the end of the epoch")


# ---- arguments


def test_rank_auto_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(1) as cluster:
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(FailedPreconditionError, match="nothing in this process tells its rank") as raised:
            dsnb.distribute("distributed_epoch", cluster.service, job_name="train", rank="auto")
        assert "torchrun" in raised.value.hint
        monkeypatch.setenv("SLURM_PROCID", "1")
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
        second = dsnb.Dataset.range(4).apply(
            dsnb.distribute("distributed_epoch", cluster.service, job_name="train", rank="auto")
        )
        first = ranks(cluster.service, 2, dsnb.Dataset.range(4))[0]
        (epoch,) = epochs([first, second])
        assert [[int(x) for x in rank] for rank in epoch] == [[0, 2], [1, 3]]
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "3")
        with pytest.raises(InvalidArgumentError, match="`world_size` is 4, but this process is rank 2 of 3"):
            dsnb.distribute("distributed_epoch", cluster.service, job_name="train", rank="auto", world_size=4)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"rank": 0}, "rank and world_size must be given together"),
        ({"world_size": 2}, "rank and world_size must be given together"),
        ({"rank": 2, "world_size": 2}, "rank is 2, and world_size 2"),
        ({"rank": -1, "world_size": 2}, "`rank` is -1"),
        ({"rank": "first", "world_size": 2}, "`rank`"),
        ({"rank": 0, "world_size": 2, "num_consumers": 2}, "mean the same"),
        ({"rank": 0, "world_size": 2, "at_end": "stop"}, "`at_end`"),
        ({"at_end": "drop"}, "there are no ranks"),
        ({"rank": 0, "world_size": 2, "job_name": None}, "world_size needs a job_name"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        dsnb.distribute("distributed_epoch", "localhost:1", **{"job_name": "train", **arguments})
    assert said in raised.value.what


def test_at_end_is_refused_for_data_without_an_end(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match="the dataset never ends"):
        ranks(cluster.service, 2, dsnb.Dataset.range(3).repeat(), at_end="pad")


def test_ranks_that_disagree_on_the_end_are_told(cluster: Cluster) -> None:
    with iter(ranks(cluster.service, 2, at_end="pad")[0]).start():
        other = iter(ranks(cluster.service, 2, at_end="drop")[1])
        with pytest.raises(InvalidArgumentError, match="Existing at_end: <pad>; got <drop>"):
            next(other)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as cluster:
        yield cluster

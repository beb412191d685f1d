"""Ranks that were saved at a step go on with the next one: on a new service, with other workers, or in place."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from tests.support.cluster import Cluster
from tests.support.marks import slow
from tests.support.reading import first, run_in_threads

ROWS = 101
"""A prime number: it is no multiple of any number of ranks."""
RANKS = 3
State = dict[str, Any]


def rank_of(service: Any, rank: int, data: dsnb.Dataset | None = None, **options: Any) -> dsnb.Dataset:
    mode = options.pop("mode", "distributed_epoch")
    options = {"job_name": "train", "world_size": RANKS, "at_end": "repeat", **options}
    source = dsnb.Dataset.range(ROWS) if data is None else data
    return source.apply(dsnb.distribute(mode, service, rank=rank, **options))


def together(act: Callable[[int], Any], count: int = RANKS) -> list[Any]:
    """Do something in all ranks at once, as each waits for the others."""
    return run_in_threads([partial(act, rank) for rank in range(count)], 120.0)


def read_and_save(service: Any, steps: int, **options: Any) -> tuple[list[list[int]], list[State], list[list[int]]]:
    """What each rank got in its first steps, its state then, and what it got afterwards."""

    def train(rank: int) -> tuple[list[int], State, list[int]]:
        with iter(rank_of(service, rank, **options)).start() as elements:
            before = rows(first(steps, elements))
            state = json.loads(json.dumps(elements.state_dict()))
            return before, state, rows(elements)

    before, states, after = zip(*together(train), strict=True)
    return list(before), list(states), list(after)


def resume(service: Any, states: list[State], **options: Any) -> list[list[int]]:
    def train(rank: int) -> list[int]:
        elements = iter(rank_of(service, rank, **options))
        elements.load_state_dict(states[rank])
        with elements:
            return rows(elements)

    return together(train, len(states))


def rows(elements: Any) -> list[int]:
    return [int(row) for element in elements for row in np.ravel(element)]


@pytest.mark.parametrize(
    "workers, steps",
    [(1, 7), (3, 101), *(slow(*case) for case in [(1, 0), (1, 1), (1, 33), (1, 34), (3, 7), (3, 33), (3, 100)])],
)
def test_ranks_go_on_at_the_next_step_as_if_nothing_had_happened(workers: int, steps: int) -> None:
    with Cluster(workers) as cluster:
        before, states, after = read_and_save(cluster.service, steps, mode="parallel_epochs")
    with Cluster(workers) as cluster:
        assert resume(cluster.service, states, mode="parallel_epochs") == after
    assert {len(one) + len(other) for one, other in zip(before, after, strict=True)} == {len(before[0]) + len(after[0])}


@pytest.mark.parametrize("workers", [slow(1), slow(2), 4])
@pytest.mark.parametrize("steps", [slow(1), 10, slow(30)])
def test_a_new_service_gives_what_is_left_once_with_any_number_of_workers(workers: int, steps: int) -> None:
    with Cluster(2) as cluster:
        before, states, _ = read_and_save(cluster.service, steps)
    with Cluster(workers) as cluster:
        after = resume(cluster.service, states)
    got = Counter(row for rank in (*before, *after) for row in rank)
    assert set(got) == set(range(ROWS))
    assert got.total() == ROWS + 1, "the last round is filled up"
    assert {len(rank) for rank in after} == {34 - steps}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [dsnb.ShardingPolicy.DATA, "parallel_epochs", "distributed_epoch"])
@pytest.mark.parametrize("steps", [3, 20, 32, 33])
def test_every_mode_and_batches_and_shuffles_go_on(mode: Any, steps: int) -> None:
    data = dsnb.Dataset.range(ROWS).shuffle(30)
    copies = 2 if mode == "parallel_epochs" else 1
    with Cluster(2) as cluster:
        before, states, _ = read_and_save(cluster.service, steps, data=data, mode=mode)
    with Cluster(2) as cluster:
        after = resume(cluster.service, states, data=data, mode=mode)
    got = Counter(row for rank in (*before, *after) for row in rank)
    assert set(got) == set(range(ROWS))
    assert got.total() == copies * ROWS + -copies * ROWS % RANKS


@pytest.mark.slow
def test_operations_behind_distribute_hold_nothing_back() -> None:
    def behind(service: Any, rank: int) -> dsnb.Dataset:
        return rank_of(service, rank).batch(4).prefetch(2)

    def train(service: Any, steps: int, rank: int) -> tuple[list[int], State, list[int]]:
        with iter(behind(service, rank)) as elements:
            before = rows(itertools.islice(elements, steps))
            return before, elements.state_dict(), rows(elements)

    def go_on(service: Any, states: list[State], rank: int) -> list[int]:
        elements = iter(behind(service, rank))
        elements.load_state_dict(states[rank])
        with elements:
            return rows(elements)

    with Cluster(1) as cluster:
        before, states, after = zip(*together(partial(train, cluster.service, 3)), strict=True)
    with Cluster(1) as cluster:
        assert together(partial(go_on, cluster.service, list(states))) == list(after)
    assert {len(rank) for rank in before} == {12}


@pytest.mark.parametrize("count", [slow(1), 2, slow(5)])
def test_another_number_of_ranks_goes_on(count: int) -> None:
    with Cluster(2) as cluster:
        before, states, _ = read_and_save(cluster.service, 10)

    def train(service: Any, rank: int) -> list[int]:
        elements = iter(rank_of(service, rank, world_size=count))
        elements.load_state_dict(states[0])
        with elements:
            return rows(elements)

    with Cluster(2) as cluster:
        after = together(partial(train, cluster.service), count)
    left = ROWS - 10 * RANKS
    assert {len(rank) for rank in after} == {-(-left // count)}
    assert {row for rank in (*before, *after) for row in rank} == set(range(ROWS))


@pytest.mark.slow
def test_the_position_of_any_rank_is_good_for_all() -> None:
    with Cluster(2) as cluster:
        before, states, _ = read_and_save(cluster.service, 5)
    for state in states:
        with Cluster(2) as cluster:
            after = resume(cluster.service, [state] * RANKS)
        assert {row for rank in (*before, *after) for row in rank} == set(range(ROWS))


@pytest.mark.slow
def test_ranks_go_back_to_a_saved_step_in_the_same_service() -> None:
    with Cluster(2) as cluster:
        _, states, after = read_and_save(cluster.service, 6, mode="parallel_epochs")
        for _ in range(2):
            assert resume(cluster.service, states, mode="parallel_epochs") == after


@pytest.mark.slow
def test_a_rank_that_goes_back_ends_the_reading_of_the_others() -> None:
    data = dsnb.Dataset.range(1_000_000)  # more than is on its way
    with Cluster(1) as cluster:
        iterators = [iter(rank_of(cluster.service, rank, data)) for rank in range(RANKS)]
        together(lambda rank: first(4, iterators[rank]))
        again = iter(rank_of(cluster.service, 0, data))
        again.load_state_dict(iterators[0].state_dict())
        again.start()
        with pytest.raises(FailedPreconditionError, match="gone back to a saved position"):
            list(iterators[1])
        for elements in (*iterators, again):
            elements.close()


@pytest.mark.slow
def test_the_next_epochs_follow_a_resumed_one() -> None:
    with Cluster(2) as cluster:
        _, states, _ = read_and_save(cluster.service, 10)

    def train(service: Any, rank: int) -> list[int]:
        dataset = rank_of(service, rank)
        elements = iter(dataset)
        elements.load_state_dict(states[rank])
        with elements:
            steps = [sum(1 for _ in elements)]
        return [*steps, *(sum(1 for _ in dataset) for _ in range(2))]

    with Cluster(3) as cluster:
        assert together(partial(train, cluster.service)) == [[24, 34, 34]] * RANKS


@pytest.mark.slow
def test_endless_data_go_on_too() -> None:
    data = dsnb.Dataset.range(1 << 40)
    options: dict[str, Any] = {"data": data, "mode": "parallel_epochs", "at_end": None}

    def train(service: Any, rank: int) -> tuple[State, list[int]]:
        with iter(rank_of(service, rank, **options)) as elements:
            first(10, elements)
            return elements.state_dict(), rows(first(5, elements))

    def go_on(service: Any, states: list[State], rank: int) -> list[int]:
        elements = iter(rank_of(service, rank, **options))
        elements.load_state_dict(states[rank])
        with elements:
            return rows(first(5, elements))

    with Cluster(2) as cluster:
        states, after = zip(*together(partial(train, cluster.service)), strict=True)
    with Cluster(2) as cluster:
        assert together(partial(go_on, cluster.service, list(states))) == list(after)


# ---- found by a review


def save_at(iterators: list[Any], steps: int) -> tuple[list[list[int]], list[State]]:
    """Take so many steps in all ranks, and save each of them."""

    def train(rank: int) -> tuple[list[int], State]:
        before = rows(itertools.islice(iterators[rank], steps))
        return before, json.loads(json.dumps(iterators[rank].state_dict()))

    before, states = zip(*together(train), strict=True)
    return list(before), list(states)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
@pytest.mark.parametrize("ask_first", [True, False], ids=["some before it left", "all after it left"])
def test_rounds_of_a_worker_that_left_come_after_the_position(ask_first: bool) -> None:
    data = dsnb.Dataset.range(400)
    with Cluster(2) as cluster:
        iterators = [iter(rank_of(cluster.service, rank, data)) for rank in range(RANKS)]
        before = together(lambda rank: rows(itertools.islice(iterators[rank], 20)))
        early = iterators[0].state_dict() if ask_first else None
        cluster.workers[0].stop()
        cluster.service.wait_until(lambda status: len(status.workers) == 1)
        states = [iterators[rank].state_dict() for rank in range(RANKS)]
        states[0] = early or states[0]
        for elements in iterators:
            elements.close()
    with Cluster(2) as cluster:
        after = resume(cluster.service, states, data=data)
    assert {len(rank) for rank in after} == {-(-(400 - 60) // 3)}
    assert {row for rank in (*before, *after) for row in rank} == set(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 3])
def test_ranks_that_know_of_the_end_go_on_with_those_that_do_not(passes: int) -> None:
    data = dsnb.Dataset.range(102)

    def behind(service: Any, rank: int) -> dsnb.Dataset:
        return rank_of(service, rank, data).repeat(passes).prefetch(4)

    with Cluster(2) as cluster:
        iterators = [iter(behind(cluster.service, rank)) for rank in range(RANKS)]
        before = together(lambda rank: rows(itertools.islice(iterators[rank], 34)))
        states = [iterators[rank].state_dict() for rank in (1, 2)]
        threading.Event().wait(0.5)  # rank 0 prefetches over the end
        states.insert(0, iterators[0].state_dict())
        for elements in iterators:
            elements.close()

    def train(service: Any, rank: int) -> list[int]:
        elements = iter(behind(service, rank))
        elements.load_state_dict(states[rank])
        with elements:
            return rows(elements)

    with Cluster(2) as cluster:
        after = together(partial(train, cluster.service))
    assert {len(rank) for rank in after} == {34 * (passes - 1)}
    got = Counter(row for rank in (*before, *after) for row in rank)
    assert got == dict.fromkeys(range(102), passes)


@pytest.mark.slow
def test_a_rank_that_joins_again_before_any_round_changes_nothing() -> None:
    with Cluster(2) as cluster:
        before, states, _ = read_and_save(cluster.service, 10)
    with Cluster(2) as cluster:
        first_try = iter(rank_of(cluster.service, 1))
        first_try.load_state_dict(states[1])
        first_try.start()
        first_try.close()
        after = resume(cluster.service, states)
    assert {row for rank in (*before, *after) for row in rank} == set(range(ROWS))


@pytest.mark.slow
def test_going_back_to_an_earlier_pass_begins_the_later_ones_anew() -> None:
    with Cluster(2) as cluster:
        _, states, _ = read_and_save(cluster.service, 10)
        datasets = [rank_of(cluster.service, rank) for rank in range(RANKS)]
        together(lambda rank: rows(itertools.islice(datasets[rank], 5)))

        def train(rank: int) -> list[int]:
            elements = iter(datasets[rank])
            elements.load_state_dict(states[rank])
            with elements:
                steps = [sum(1 for _ in elements)]
            return [*steps, *(sum(1 for _ in datasets[rank]) for _ in range(2))]

        assert together(train) == [[24, 34, 34]] * RANKS


def test_positions_of_ranks_and_of_others_are_not_for_each_other() -> None:
    with Cluster(2) as cluster:
        _, states, _ = read_and_save(cluster.service, 5)
        plain = iter(dsnb.Dataset.range(ROWS).apply(dsnb.distribute("distributed_epoch", cluster.service)))
        with pytest.raises(InvalidArgumentError, match="position"):
            plain.load_state_dict(states[0])
        plain.close()


@pytest.mark.slow
def test_an_operation_that_mixes_rounds_has_no_position() -> None:
    with Cluster(1) as cluster:
        iterators = [iter(rank_of(cluster.service, rank).shuffle(8)) for rank in range(RANKS)]
        together(lambda rank: rows(itertools.islice(iterators[rank], 3)))
        with pytest.raises(FailedPreconditionError, match="put the operation that mixes elements before `distribute`"):
            iterators[0].state_dict()
        for elements in iterators:
            elements.close()


@pytest.mark.slow
def test_a_rank_that_joined_late_says_that_it_knows_no_position() -> None:
    with Cluster(1) as cluster:
        iterators = [iter(rank_of(cluster.service, rank)) for rank in range(RANKS)]
        together(lambda rank: first(4, iterators[rank]))
        iterators[2].close()
        iterators[2] = iter(rank_of(cluster.service, 2))
        together(lambda rank: first(4, iterators[rank]))
        with pytest.raises(FailedPreconditionError, match="joined this pass when the others had begun it"):
            iterators[2].state_dict()
        for elements in iterators:
            elements.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
def test_a_rank_that_joined_late_goes_on_with_the_next_pass() -> None:
    with Cluster(1) as cluster:

        def repeated(rank: int) -> Any:
            return iter(rank_of(cluster.service, rank, dsnb.Dataset.range(60)).repeat(2))

        iterators = [repeated(rank) for rank in range(RANKS)]
        together(lambda rank: first(4, iterators[rank]))
        iterators[2].close()
        iterators[2] = repeated(2).start()
        after = together(lambda rank: rows(iterators[rank]))
        assert [len(rank) for rank in after[:2]] == [36, 36]
        assert 20 <= len(after[2]) <= 36, "the second pass, and of the first one what the others had not received"


@pytest.mark.filterwarnings("ignore::dsnb.errors.DataLossWarning")
def test_a_rank_that_joins_when_the_others_have_taken_all_of_a_pass_meets_them_in_the_next_one() -> None:
    with Cluster(1) as cluster:

        def repeated(rank: int) -> Any:
            return iter(rank_of(cluster.service, rank, dsnb.Dataset.range(60)).repeat(2))

        iterators = [repeated(rank) for rank in range(RANKS)]
        together(lambda rank: first(4 if rank == 2 else 20, iterators[rank]))
        iterators[2].close()
        iterators[2] = repeated(2).start()
        after = together(lambda rank: rows(iterators[rank]))
        assert [len(rank) for rank in after] == [20] * RANKS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["distributed_epoch", dsnb.ShardingPolicy.DATA, "parallel_epochs"])
def test_a_worker_that_leaves_before_all_ranks_joined_takes_no_part_with_it(mode: Any) -> None:
    """No rank has taken anything of this pass, so another worker begins that part again."""
    copies = 2 if mode == "parallel_epochs" else 1
    with Cluster(2) as cluster:
        before, states, _ = read_and_save(cluster.service, 10, mode=mode)
    with Cluster(2) as cluster:
        iterators = [iter(rank_of(cluster.service, rank, mode=mode)) for rank in range(RANKS)]
        for elements, state in zip(iterators, states, strict=True):
            elements.load_state_dict(state)
        iterators[0].start()
        cluster.workers[0].stop()
        cluster.service.wait_until(lambda status: len(status.workers) == 1)
        after = together(lambda rank: rows(iterators[rank]))
    got = Counter(row for rank in (*before, *after) for row in rank)
    assert set(got) == set(range(ROWS))
    assert got.total() == copies * ROWS + -copies * ROWS % RANKS


@pytest.mark.slow
def test_splits_of_a_worker_that_leaves_before_all_ranks_joined_are_not_lost() -> None:
    with Cluster(2) as cluster:
        iterators = [iter(rank_of(cluster.service, rank)) for rank in range(RANKS)]
        iterators[0].start()
        cluster.service.wait_until(lambda status: bool(status.jobs) and status.jobs[0].produced > 0)
        cluster.workers[0].stop()
        cluster.service.wait_until(lambda status: len(status.workers) == 1)
        got = Counter(row for rank in together(lambda rank: rows(iterators[rank])) for row in rank)
    assert set(got) == set(range(ROWS))
    assert got.total() == ROWS + 1, "the last round is filled up"


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


@pytest.mark.parametrize("saved", range(2))
def test_an_error_that_another_rank_has_just_got_shifts_no_batch(saved: int) -> None:
    """It is behind the position, and its batch is short of an element. Only the worker knows, and it reports later."""
    data = dsnb.Dataset.range(48).map(fail_at_three).batch(4)

    def step(elements: Any) -> list[int]:
        try:
            return [int(row) for row in next(elements)]
        except ValueError:
            return []

    with Cluster(1) as cluster:
        iterators = [iter(rank_of(cluster.service, rank, data, world_size=2)) for rank in range(2)]
        assert [] in together(lambda rank: step(iterators[rank]), 2)
        state = json.loads(json.dumps(iterators[saved].state_dict()))
        after = together(lambda rank: rows(iterators[rank]), 2)
    with Cluster(1) as cluster:
        assert resume(cluster.service, [state] * 2, data=data, world_size=2) == after

"""`repeat` after `distribute`: which pass of a shared job comes next, and when an endless one ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dsnb
from dsnb.errors import DsnbWarning
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers, run_in_threads

R = dsnb.Dataset.range


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1) as cluster:
        yield cluster


def read(dataset: dsnb.Dataset, cluster: Cluster, mode: Any = "distributed_epoch", **options: Any) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute(mode, cluster.service, **options))


def clients(cluster: Cluster) -> int:
    """How many have ever joined."""
    return int(cluster.dispatcher.debug_state()["next_client"])


def test_an_endless_repeat_goes_on_with_the_first_pass_that_is_not_over(cluster: Cluster) -> None:
    before = read(R(10), cluster, job_name="j")
    for _ in range(7):
        assert numbers(before) == list(range(10))
    joined = clients(cluster)
    data = read(R(10), cluster, job_name="j")
    with iter(data.repeat()) as elements:  # the passes that are over are no news: a warning would be an error here
        assert first(15, elements) == [*range(10), *range(5)]
        assert clients(cluster) == joined + 2, "two passes were joined"
        assert cluster.job("j").iteration == 8
    assert numbers(data)[:5] == list(range(5)), "a loop goes on with the pass after those"
    assert cluster.job("j").iteration == 9


@pytest.mark.slow
def test_readers_that_repeat_one_job_for_ever_never_end_however_little_each_gets(cluster: Cluster) -> None:
    """With an element to a pass all readers but one find each pass empty."""
    readers = [iter(read(R(1), cluster, job_name="j").repeat()) for _ in range(3)]
    got = run_in_threads([lambda reader=reader: first(20, reader) for reader in readers], timeout=60.0)
    assert got == [[0] * 20] * 3
    for reader in readers:
        reader.close()


def test_a_counted_repeat_counts_the_passes_that_others_had(cluster: Cluster) -> None:
    before = read(R(5), cluster, job_name="j")
    assert [numbers(before) for _ in range(2)] == [list(range(5))] * 2
    with pytest.warns(DsnbWarning, match="has already been read to its end"):
        assert numbers(read(R(5), cluster, job_name="j").repeat(3)) == list(range(5))
    assert cluster.job("j").iteration == 2


JOBS: dict[str, dict[str, Any]] = {
    "a job of its own": {},
    "a shared job": {"job_name": "j"},
    "a trainer": {"job_name": "j", "cross_trainer_cache": dsnb.CrossTrainerCache("a")},
}


@pytest.mark.parametrize("options", JOBS.values(), ids=JOBS)
def test_an_endless_repeat_of_nothing_ends(cluster: Cluster, options: dict[str, Any]) -> None:
    data = read(R(10).filter(lambda _: False), cluster, **options).repeat()
    assert run_in_threads([lambda: list(data)]) == [[]]


def test_two_readers_that_repeat_nothing_both_end(cluster: Cluster) -> None:
    data = [read(R(10).filter(lambda _: False), cluster, job_name="j").repeat() for _ in range(2)]
    assert run_in_threads([lambda one=one: list(one) for one in data]) == [[], []]

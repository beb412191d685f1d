"""Section 1F: in DYNAMIC mode the workers of a job produce each element of a pass once, together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.elements.structure import structure_of
from dsnb.errors import UnimplementedError
from dsnb.pipeline.operations.replicate import Replicate
from dsnb.pipeline.operations.zip import Zip
from tests.conformance.conftest import MakeCluster
from tests.support.reading import first, joined, numbers, run_in_threads

NO_SPLITS = "Cannot create split providers for dataset of type DataServiceDataset"


def dynamic(dataset: dsnb.Dataset, service: Any, transfer: str | None = None, **options: Any) -> dsnb.Dataset:
    """A dataset that is read in DYNAMIC mode."""
    policy = dsnb.ShardingPolicy.DYNAMIC
    return dataset.apply(dsnb.distribute(policy, service, data_transfer_protocol=transfer, **options))


def pairs(elements: Any) -> list[tuple[int, int]]:
    return [(int(left), int(right)) for left, right in elements]


def test_line_068_basic(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(2).service
    dataset = dynamic(dsnb.Dataset.range(100), service, transfer, job_name="job")

    assert sorted(numbers(dataset)) == list(range(100))
    (splits,) = service.status().job("job").splits
    assert (splits.total, splits.done, splits.in_hand, splits.lost) == (100, 100, 0, 0)


@pytest.mark.slow
def test_line_068_several_readers_get_each_element_once(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(2).service
    readers = [
        iter(dynamic(dsnb.Dataset.range(1000), service, transfer, job_name="job", max_outstanding_requests=4))
        for _ in range(3)
    ]
    got = run_in_threads([lambda reader=reader: numbers(reader) for reader in readers])

    assert sorted(joined(got)) == list(range(1000))


def test_line_069_no_job_name(cluster: MakeCluster, transfer: str) -> None:
    assert sorted(numbers(dynamic(dsnb.Dataset.range(100), cluster(2).service, transfer))) == list(range(100))


def test_line_070_tensor_slices(cluster: MakeCluster, transfer: str) -> None:
    values = [5, 1, 2, 4]
    dataset = dsnb.Dataset.from_tensor_slices(values)

    assert sorted(numbers(dynamic(dataset, cluster(2).service, transfer))) == sorted(values)


def repeated(count: Any) -> dsnb.Dataset:
    return dsnb.Dataset.from_tensors(int(count)).repeat(int(count))


def test_line_071_interleave(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.from_tensor_slices([1, 5, 0]).interleave(repeated)

    assert sorted(numbers(dynamic(dataset, cluster(2).service, transfer))) == [1, 5, 5, 5, 5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, False], ids=["in order", "in any order"])
def test_line_072_parallel_interleave(cluster: MakeCluster, transfer: str, deterministic: bool) -> None:
    dataset = dsnb.Dataset.from_tensor_slices([1, 5, 0]).interleave(
        repeated, num_parallel_calls=dsnb.AUTOTUNE, deterministic=deterministic
    )

    assert sorted(numbers(dynamic(dataset, cluster(2).service, transfer))) == [1, 5, 5, 5, 5, 5]


def test_line_073_flat_map(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.from_tensor_slices([1, 5, 0]).flat_map(repeated)

    assert sorted(numbers(dynamic(dataset, cluster(2).service, transfer))) == [1, 5, 5, 5, 5, 5]


@pytest.mark.slow
def test_line_075_repeat_before_distribution(cluster: MakeCluster, transfer: str) -> None:
    dataset = dynamic(dsnb.Dataset.range(20).repeat(5), cluster(2).service, transfer)

    assert Counter(numbers(dataset)) == dict.fromkeys(range(20), 5)


@pytest.mark.slow
def test_line_076_repeat_after_distribution(cluster: MakeCluster, transfer: str) -> None:
    elements = numbers(dynamic(dsnb.Dataset.range(20), cluster(2).service, transfer).repeat(5))

    assert len(elements) == 100
    assert all(sorted(elements[at : at + 20]) == list(range(20)) for at in range(0, 100, 20))


@pytest.mark.slow
def test_line_077_forever_repeat(cluster: MakeCluster, transfer: str) -> None:
    with iter(dynamic(dsnb.Dataset.range(20).repeat(), cluster(2).service, transfer)) as elements:
        counts = Counter(first(1000, elements))

    assert set(counts) == set(range(20))
    assert min(counts.values()) > 25


@pytest.mark.slow
def test_line_078_zip(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.zip(dsnb.Dataset.range(10), dsnb.Dataset.range(10, 20))

    assert pairs(dynamic(dataset, cluster(1).service, transfer)) == [(x, x + 10) for x in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_line_079_nested_zip(cluster: MakeCluster, transfer: str, workers: int) -> None:
    ten = [dsnb.Dataset.range(10 * at, 10 * at + 10) for at in range(4)]
    nested = dsnb.Dataset.zip(dsnb.Dataset.zip(ten[0], ten[1]), dsnb.Dataset.zip(ten[2], ten[3]))
    elements = list(dynamic(nested, cluster(workers).service, transfer))
    rows = [[int(x) for pair in element for x in pair] for element in elements]

    if workers == 1:
        assert rows == [[x, x + 10, x + 20, x + 30] for x in range(10)]
    # With more workers it is not said who meets whom; each source still gives each of its elements once at the most.
    for at, column in enumerate(zip(*rows, strict=True)):
        assert len(set(column)) == len(rows)
        assert set(column) <= set(range(10 * at, 10 * at + 10))


def test_line_080_imbalanced_zip(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.zip(dsnb.Dataset.range(200), dsnb.Dataset.range(1000))

    assert pairs(dynamic(dataset, cluster(1).service, transfer)) == [(x, x) for x in range(200)]


@pytest.mark.slow
def test_line_081_imbalanced_zip_multi_worker(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.zip(dsnb.Dataset.range(200), dsnb.Dataset.range(1000))
    got = pairs(dynamic(dataset, cluster(3).service, transfer))

    assert sorted(left for left, _ in got) == list(range(200))
    assert len({right for _, right in got}) == 200


@pytest.mark.slow
def test_line_082_zip_different_rates(cluster: MakeCluster, transfer: str) -> None:
    hundred = dsnb.Dataset.range(100)
    dataset = dsnb.Dataset.zip(hundred, hundred.filter(lambda x: x % 10 == 0))
    got = pairs(dynamic(dataset, cluster(3).service, transfer))

    assert sorted(right for _, right in got) == list(range(0, 100, 10))
    assert len({left for left, _ in got}) == 10


@pytest.mark.slow
def test_line_083_zip_different_repeats(cluster: MakeCluster, transfer: str) -> None:
    dataset = dsnb.Dataset.zip(dsnb.Dataset.range(50), dsnb.Dataset.range(10).repeat(10))
    got = pairs(dynamic(dataset, cluster(2).service, transfer))

    assert sorted(left for left, _ in got) == list(range(50))
    assert {right for _, right in got} <= set(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_line_087_concatenate(cluster: MakeCluster, transfer: str, workers: int) -> None:
    dataset = dsnb.Dataset.range(100).concatenate(dsnb.Dataset.range(100, 200))
    elements = numbers(dynamic(dataset, cluster(workers).service, transfer))

    assert (elements if workers == 1 else sorted(elements)) == list(range(200))


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded already", "not yet"])
def test_line_088_recordings_as_sources(cluster: MakeCluster, tmp_path: Path, recorded: bool) -> None:
    service = cluster(3).service
    kept = dsnb.Dataset.range(10).skip(0).cache(str(tmp_path / "recording"))
    if recorded:
        assert numbers(kept) == list(range(10))

    told = "Splitting is not implemented for recordings"
    with pytest.raises(UnimplementedError, match=told):
        dynamic(kept.map(lambda x: x), service)
    dataset_id = dsnb.register_dataset(service, kept)
    with pytest.raises(UnimplementedError, match=told):
        dsnb.from_dataset_id(dsnb.ShardingPolicy.DYNAMIC, service, dataset_id)
    # The other modes that divide a pass do so with recordings as well.
    shards = kept.apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, service))
    assert [sorted(numbers(shards)) for _ in range(2)] == [list(range(10))] * 2
    # Beyond the original: what does not mix splits is recorded split by split.
    unmixed = dsnb.Dataset.range(10).map(lambda x: x).cache(str(tmp_path / "unmixed"))
    assert [sorted(numbers(dynamic(unmixed, service))) for _ in range(2)] == [list(range(10))] * 2


def test_line_089_distributed_dataset(cluster: MakeCluster) -> None:
    service = cluster(2).service
    inner = dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", service))

    with pytest.raises(UnimplementedError, match=NO_SPLITS):
        list(dynamic(inner.map(lambda x: x), service))
    dataset_id = dsnb.register_dataset(service, inner)
    with pytest.raises(UnimplementedError, match=NO_SPLITS):
        list(dsnb.from_dataset_id(dsnb.ShardingPolicy.DYNAMIC, service, dataset_id))
    assert len(list(dsnb.from_dataset_id(dsnb.ShardingPolicy.OFF, service, dataset_id))) == 2 * 2 * 10


@pytest.mark.slow
def test_line_090_aliases(cluster: MakeCluster, transfer: str) -> None:
    two = cluster(2)
    modes: list[Any] = ["distributed_epoch", dsnb.ShardingPolicy.DYNAMIC, "parallel_epochs", dsnb.ShardingPolicy.OFF]
    counts = []
    for mode in modes:
        dataset = dsnb.Dataset.range(10)
        counts.append(len(list(dataset.apply(dsnb.distribute(mode, two.service, data_transfer_protocol=transfer)))))
    assert counts == [10, 10, 20, 20]

    for number, mode in enumerate(modes):
        with iter(dsnb.Dataset.range(10).apply(dsnb.distribute(mode, two.service, job_name=f"job {number}"))).start():
            assert two.job(f"job {number}").mode == ("DYNAMIC" if number < 2 else "OFF")


@pytest.mark.slow
@pytest.mark.parametrize("together", ["flat_map", "interleave"])
def test_line_091_shuffled_files(cluster: MakeCluster, transfer: str, tmp_path: Path, together: str) -> None:
    for file in range(5):
        (tmp_path / f"{file}.txt").write_text("".join(f"record {file}-{line}\n" for line in range(5)))
    files = dsnb.Dataset.list_files(str(tmp_path / "*.txt"), shuffle=True)
    dataset = dynamic(getattr(files, together)(dsnb.TextLineDataset), cluster(3).service, transfer)

    for _ in range(2):
        assert sorted(dataset) == [f"record {file}-{line}" for file in range(5) for line in range(5)]


# ---- several sources, selectors and counters


def test_line_074_group_by_window(cluster: MakeCluster, transfer: str) -> None:
    def reduced(key: Any, window: dsnb.Dataset) -> dsnb.Dataset:
        """Makes datasets of its own, which every task must read whole: splits are not for them."""
        counter = dsnb.Dataset.range(1 << 40)
        return dsnb.Dataset.zip(window, counter).map(lambda x, _: x).batch(4)

    dataset = dsnb.Dataset.range(100).group_by_window(lambda x: x % 4, reduced, window_size=4)
    batches = [numbers(batch) for batch in dynamic(dataset, cluster(2).service, transfer)]

    assert sorted(joined(batches)) == list(range(100))
    assert all(len({x % 4 for x in batch}) == 1 for batch in batches)


WEIGHTS = (0.6, 0.3, 0.1)


@pytest.mark.slow
def test_line_084_sample_from_datasets(cluster: MakeCluster, transfer: str) -> None:
    classes = [dsnb.Dataset.from_tensors(number).repeat() for number in range(3)]
    dataset = dsnb.Dataset.sample_from_datasets(classes, WEIGHTS, seed=1).take(200)
    counts = Counter(numbers(dynamic(dataset, cluster(1).service, transfer)))

    assert counts.total() == 200
    assert counts[0] > counts[1] > counts[2]


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(0.85, 0.05, 0.1), (0.2, 0.1, 0.4, 0.25, 0.05), (1.0,)], ids=str)
def test_line_085_samples_are_of_the_weights(cluster: MakeCluster, weights: tuple[float, ...]) -> None:
    endless = dsnb.Dataset.range(1 << 40)
    classes = [endless.map(lambda _, number=number: number) for number in range(len(weights))]
    dataset = dsnb.Dataset.sample_from_datasets(classes, weights).take(5000)
    counts = Counter(numbers(dynamic(dataset, cluster(1).service)))

    shares = [counts[number] / 5000 for number in range(len(weights))]
    assert sum((share - weight) ** 2 / weight for share, weight in zip(shares, weights, strict=True)) < 1e-2


def test_line_086_zip_with_a_source_that_is_replicated(cluster: MakeCluster, transfer: str) -> None:
    counter = Replicate(inputs=(dsnb.Dataset.range(5).operation,))
    pair = Zip(inputs=(dsnb.Dataset.range(1 << 40).operation, counter), structure=structure_of((0, 0)))
    got = pairs(dynamic(dsnb.Dataset(pair), cluster(3).service, transfer))

    assert Counter(right for _, right in got) == dict.fromkeys(range(5), 3)
    assert len({left for left, _ in got}) == 15


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_line_086_a_selector_is_replicated(cluster: MakeCluster, transfer: str, workers: int) -> None:
    sources = [dsnb.Dataset.range(20 * at, 20 * at + 20) for at in range(3)]
    choice = dsnb.Dataset.range(3).repeat()
    dataset = dsnb.Dataset.choose_from_datasets(sources, choice, stop_on_empty_dataset=False)
    elements = numbers(dynamic(dataset, cluster(workers).service, transfer, job_name="job"))

    assert sorted(elements) == list(range(60))
    if workers == 1:
        assert elements == [
            x for row in zip(*(range(20 * at, 20 * at + 20) for at in range(3)), strict=True) for x in row
        ]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_line_087_nested_repeats(cluster: MakeCluster, transfer: str, workers: int) -> None:
    inner = dsnb.Dataset.range(5).repeat(2).concatenate(dsnb.Dataset.range(5, 8))
    dataset = inner.repeat(3).concatenate(dsnb.Dataset.range(8, 10).repeat(4))
    counts = Counter(numbers(dynamic(dataset, cluster(workers).service, transfer)))

    assert counts == dict.fromkeys(range(5), 6) | dict.fromkeys(range(5, 8), 3) | dict.fromkeys(range(8, 10), 4)

"""What is replicated is read whole by each task, and has no split provider."""

from __future__ import annotations

from dsnb.elements.structure import structure_of
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import count_sources
from dsnb.pipeline.operations.replicate import Replicate
from dsnb.pipeline.operations.zip import Zip
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, plain, values


def beside_a_counter(dataset: Dataset, counter: Dataset) -> Dataset:
    inputs = (Replicate(inputs=(counter.operation,)), dataset.operation)
    return Dataset(Zip(inputs=inputs, structure=structure_of((0, 0))))


def test_read_alone_it_is_its_input() -> None:
    ds = beside_a_counter(Dataset.range(10, 14), Dataset.range(3))
    assert values(ds) == [(0, 10), (1, 11), (2, 12)]
    assert ds.cardinality() == 3
    assert ds.element_spec == Dataset.zip(Dataset.range(1), Dataset.range(1)).element_spec


def test_its_sources_have_no_provider_and_take_no_number() -> None:
    ds = beside_a_counter(Dataset.range(4), Dataset.zip(Dataset.range(9), Dataset.range(8)))
    assert [provider.count for provider in split_providers(ds.operation)] == [4]
    assert count_sources(ds.operation) == 1


def test_each_task_reads_all_of_it_beside_its_share_of_the_rest() -> None:
    ds = beside_a_counter(Dataset.range(6), Dataset.range(3).concatenate(Dataset.range(3, 9)))
    feed = Feed([6], piece=3)
    stages = [ds.operation.build(context(splits=feed.task())) for _ in range(2)]
    found = [[(plain(number), plain(x)) for number, x in drain(stage, (3, 1))] for stage in stages]
    for rows in found:
        assert [number for number, _ in rows] == list(range(len(rows)))
    assert sorted(x for rows in found for _, x in rows) == list(range(6))

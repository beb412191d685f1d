"""What a recording holds comes back as the classes of the pipeline that reads it."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

from dsnb.code.pipeline_classes import PipelineClasses
from dsnb.pipeline.graph import restore, serialise
from tests.support.graphs import blob_loader, pipeline_with

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024 - what users have


@dataclass
class Sample:
    pair: Any

    def total(self) -> int:
        return int(self.pair.x + self.pair.y)


def restored(value: Any) -> Any:
    graph = serialise(pipeline_with(value))
    operation: Any = restore(graph.definition, blob_loader(graph))
    return operation.function


def test_in_the_process_of_the_pipeline_elements_stay_what_they_are() -> None:
    run = [Sample(Pair(1, 2)), Sample(Pair(3, 4))]
    assert PipelineClasses().convert_run(run) is run


def test_elements_of_another_copy_become_those_of_this_one() -> None:
    earlier = restored([Sample, Pair])
    sample, pair, classes, same = restored([Sample, Pair, PipelineClasses(), PipelineClasses()])
    assert classes is same
    assert len({Sample, sample, earlier[0]}) == 3
    for other_sample, other_pair in (earlier, (Sample, Pair)):
        (element,) = classes.convert_run([other_sample(other_pair(1, 2))])
        assert (type(element), type(element.pair), element.total()) == (sample, pair, 3)
    run = [sample(pair(1, 2))]
    assert classes.convert_run(run) is run


def test_elements_of_different_structures_are_adopted_one_by_one() -> None:
    sample, classes = restored([Sample, PipelineClasses()])
    run = classes.convert_run([Sample(Pair(1, 2)), (Sample(1), None), 7])
    assert [type(run[0]), type(run[1][0]), run[1][1], run[2]] == [sample, sample, None, 7]


def test_elements_without_classes_are_not_touched() -> None:
    classes = restored([Sample, PipelineClasses()])[1]
    run = [{"a": [1, 2]}, {"a": [3, 4]}]
    assert classes.convert_run(run) is run

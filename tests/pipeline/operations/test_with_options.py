"""`with_options` holds for the whole pipeline, before it and behind."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.graph import restore, serialise
from dsnb.pipeline.operations.with_options import Options
from tests.pipeline.driving import values


@dataclass
class Sample:
    """In an element."""

    image: Any
    label: int


def slow_first(opened: threading.Event) -> Any:
    def slow(x: int) -> int:
        if x == 0:
            assert opened.wait(30)
        return x

    return slow


@pytest.mark.parametrize("behind", [True, False])
def test_order_may_be_given_up_for_the_whole_pipeline(behind: bool) -> None:
    opened = threading.Event()
    loose = Options(deterministic=False)
    ds = Dataset.range(8)
    ds = (
        ds.map(slow_first(opened), 2).with_options(loose)
        if behind
        else ds.with_options(loose).map(slow_first(opened), 2)
    )
    elements = iter(ds)
    early = [int(next(elements)) for _ in range(7)]
    opened.set()
    assert early == list(range(1, 8))
    assert [int(x) for x in elements] == [0]


def test_an_operation_s_own_word_holds_against_the_options() -> None:
    opened = threading.Event()
    threading.Timer(0.05, opened.set).start()
    ds = Dataset.range(8).map(slow_first(opened), 2, deterministic=True).with_options(Options(deterministic=False))
    assert values(ds) == list(range(8))


def test_places_of_an_interleave_are_passed_over_too() -> None:
    opened = threading.Event()
    loose = Options(deterministic=False)
    inner = [Dataset.range(1).map(slow_first(opened)), Dataset.range(10, 14)]
    elements = iter(Dataset.range(2).interleave(lambda i: inner[i], 2, num_parallel_calls=2).with_options(loose))
    early = [int(next(elements)) for _ in range(4)]
    opened.set()
    assert early == [10, 11, 12, 13]
    assert [int(x) for x in elements] == [0]


ARRAYS: dict[str, Any] = {
    "rows of an array": Dataset.from_tensor_slices(np.zeros((3, 2))),
    "batches": Dataset.range(6).batch(2),
    "one array for all": Dataset.from_tensors(np.zeros(2)).repeat(3),
    "a large one": Dataset.from_tensors(np.zeros(1 << 18)).repeat(2),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_elements_that_are_writable_are_nobody_else_s(kind: str) -> None:
    ds = ARRAYS[kind]
    assert not any(array.flags.writeable for array in ds)
    writable = ds.with_options(Options(writable=True))
    before = values(ds)
    for array in writable:
        array[...] += 7
    assert values(ds) == before == values(writable)


def test_every_part_of_an_element_is_writable() -> None:
    def make(x: int) -> Any:
        return {"sample": Sample(np.full(2, x), x), "list": [np.zeros(1)], "text": "a", "none": None}

    (element,) = Dataset.range(1).map(make).with_options(Options(writable=True))
    element["sample"].image += 1
    element["list"][0] += 1
    assert element["sample"].image.tolist() == [1, 1]
    assert (element["text"], element["none"], element["sample"].label) == ("a", None, 0)


def test_records_are_writable_too() -> None:
    record = np.dtype([("x", "<i4")])
    (element,) = Dataset.from_tensor_slices(np.zeros(1, record)).with_options(Options(writable=True))
    element["x"] = 5
    assert element["x"] == 5


def test_later_options_hold_against_earlier_ones_and_leave_the_others() -> None:
    ds = Dataset.range(3).with_options(Options(deterministic=False, writable=True)).map(lambda x: x)
    assert ds.options() == Options(deterministic=False, writable=True)
    assert ds.with_options(Options(deterministic=True)).options() == Options(deterministic=True, writable=True)
    assert Dataset.range(3).options() == Options()


def test_options_are_copied_and_shown() -> None:
    options = Options()
    options.deterministic = False
    ds = Dataset.range(3).with_options(options)
    options.deterministic = True
    assert ds.options().deterministic is False
    assert repr(ds).startswith(
        "Dataset(range(3) | with_options(deterministic=False), element_spec=TensorSpec((), int64)"
    )
    assert ds.cardinality() == 3


def test_options_travel() -> None:
    graph = serialise(Dataset.range(3).with_options(Options(writable=True)).operation)
    assert Dataset(restore(graph.definition, lambda _: b"")).options() == Options(writable=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["parallel_epochs", "distributed_epoch"])
@pytest.mark.parametrize("before", [True, False])
def test_what_comes_from_a_service_is_writable_as_well(mode: str, before: bool) -> None:
    rows = Dataset.from_tensor_slices(np.zeros((4, 2)))
    writable = Options(writable=True)
    with dsnb.start(workers=1, name="writable") as service:
        distribute = dsnb.distribute(mode, service)
        ds = rows.with_options(writable).apply(distribute) if before else rows.apply(distribute).with_options(writable)
        for row in ds:
            row[...] += 1
        assert values(rows.apply(distribute)) == [[0, 0]] * 4


@pytest.mark.parametrize("wrong", [{"deterministic": 1}, {"writable": "yes"}], ids=str)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        Options(**wrong)


def test_an_option_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no option `determinstic`(.|\n)*did you mean 'deterministic'"):
        Options().determinstic = False
    with pytest.raises(InvalidArgumentError, match=r"`options` is \{'writable': True\}"):
        Dataset.range(3).with_options({"writable": True})

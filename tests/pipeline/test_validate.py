"""Wrong arguments are refused at the call, with the argument's name and advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import AUTOTUNE, Dataset
from dsnb.pipeline.validate import parallel_calls

DS = Dataset.range(3)

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "range of nothing": (Dataset.range, "`args` of range()"),
    "range of a float": (lambda: Dataset.range(1.5), "`stop` is 1.5 (float)"),  # type: ignore[arg-type]
    "range of a bool": (lambda: Dataset.range(True), "`stop` is"),
    "range of text": (lambda: Dataset.range("3"), "`stop` is"),  # type: ignore[arg-type]
    "range of four": (lambda: Dataset.range(1, 2, 3, 4), "`args` of range()"),
    "a step of 0": (lambda: Dataset.range(1, 2, 0), "`step` is 0"),
    "batch of 0": (lambda: DS.batch(0), "`batch_size` is 0"),
    "batch of a float": (lambda: DS.batch(2.0), "`batch_size`"),  # type: ignore[arg-type]
    "batch with a wrong flag": (lambda: DS.batch(2, 1), "`drop_remainder` is 1"),  # type: ignore[arg-type]
    "a negative take": (lambda: DS.take(-2), "`count` is -2"),
    "a negative skip": (lambda: DS.skip(-2), "`count` is -2"),
    "a negative repeat": (lambda: DS.repeat(-2), "`count` is -2"),
    "shuffle of 0": (lambda: DS.shuffle(0), "`buffer_size` is 0"),
    "a seed of text": (lambda: DS.shuffle(1, "a"), "`seed`"),  # type: ignore[arg-type]
    "prefetch of -2": (lambda: DS.prefetch(-2), "`buffer_size` is -2"),
    "map of a dataset": (lambda: DS.map(DS), "`map_func` is Dataset(range(3)"),  # type: ignore[arg-type]
    "map of a result": (lambda: DS.map(5), "`map_func` is 5 (int), not a function"),  # type: ignore[arg-type]
    "map on 0 threads": (lambda: DS.map(abs, 0), "`num_parallel_calls` is 0"),
    "map with a wrong flag": (lambda: DS.map(abs, 1, "no"), "`deterministic`"),  # type: ignore[arg-type]
    "filter of nothing": (lambda: DS.filter(None), "`predicate`"),  # type: ignore[arg-type]
    "flat_map of a dataset": (lambda: DS.flat_map(DS), "`map_func`"),  # type: ignore[arg-type]
    "a cycle of 0": (lambda: DS.interleave(Dataset.range, 0), "`cycle_length` is 0"),
    "a block of 0": (lambda: DS.interleave(Dataset.range, 1, 0), "`block_length` is 0"),
    "map of two arguments": (lambda: DS.map(lambda a, b: a), "`map_func` takes (a, b), and elements have 1 component"),
    "map of one argument of pairs": (lambda: DS.enumerate().map(lambda a: a), "`map_func` takes (a)"),
    "filter of two arguments": (lambda: DS.filter(lambda a, b: True), "`predicate` takes (a, b)"),
    "scan of one argument": (
        lambda: DS.scan(0, lambda a: (a, a)),
        "`scan_func` takes (a), and is called with the state",
    ),
    "a generator of one argument": (lambda: Dataset.from_generator(lambda n: [n]), "`generator` takes (n)"),
    "too many threads": (lambda: DS.map(abs, 2**31), "`num_parallel_calls` is 2147483648"),
    "an unknown argument": (lambda: DS.map(abs, num_paralel_calls=2), "map() has no argument `num_paralel_calls`"),  # type: ignore[call-arg]
    "a missing argument": (DS.batch, "batch() needs `batch_size`"),  # type: ignore[dict-item]
    "an argument too many": (lambda: DS.take(1, 2), "take() was given 2 arguments"),  # type: ignore[call-arg]
    "more than 64 bits": (lambda: DS.take(10**30), "`count` has more than 64 bits"),
    "concatenate of a list": (lambda: DS.concatenate([1]), "`dataset` is list"),  # type: ignore[arg-type]
    "enumerate from a float": (lambda: DS.enumerate(0.5), "`start`"),  # type: ignore[arg-type]
    "apply of a dataset": (lambda: DS.apply(DS), "`transformation_func`"),  # type: ignore[arg-type]
    "apply that returns nothing": (lambda: DS.apply(lambda ds: None), "returned NoneType"),  # type: ignore[arg-type, return-value]
    "a generator of a dataset": (lambda: Dataset.from_generator(DS), "`generator`"),  # type: ignore[arg-type]
    "a wrong spec": (lambda: Dataset.from_generator(list, element_spec=int), "TensorSpec"),
    "a dataset of something": (lambda: Dataset(5), "`operation` is 5"),  # type: ignore[arg-type]
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_at_the_call_by_name_and_with_advice(name: str) -> None:
    call, said = WRONG[name]
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    assert said in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize("value", [None, AUTOTUNE, 1, 64])
def test_what_num_parallel_calls_may_be(value: int | None) -> None:
    assert parallel_calls("num_parallel_calls", value) == value

"""`from_generator`: what a function yields, copied where it must be, its error at its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError, UserCodeError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, outcomes, plain, run, values


def counting(count: int) -> Iterator[int]:
    yield from range(count)


@pytest.mark.parametrize("wants", [[1], [3], [1024]], ids=str)
def test_what_is_yielded_comes_in_order(wants: list[int]) -> None:
    assert run(Dataset.from_generator(counting, args=(7,)), wants) == list(range(7))


def test_each_pass_calls_the_function_anew() -> None:
    ds = Dataset.from_generator(counting, args=(2,))
    assert values(ds) == values(ds) == [0, 1]
    assert values(ds.repeat(2)) == [0, 1, 0, 1]


def test_a_function_that_returns_a_list_will_do() -> None:
    assert values(Dataset.from_generator(lambda: [1, 2])) == [1, 2]


def test_one_buffer_yielded_again_and_again_gives_distinct_elements() -> None:
    def reuse() -> Iterator[Any]:
        buffer = np.zeros(2)
        for x in range(40):
            buffer[:] = x
            yield buffer

    assert values(Dataset.from_generator(reuse)) == [[x, x] for x in range(40)]


def test_a_buffer_that_comes_after_numbers_gives_distinct_elements_and_stays_writable() -> None:
    def numbers_then_buffer() -> Iterator[Any]:
        yield from range(20)  # more than one run
        buffer = np.zeros(2)
        for x in range(20, 40):
            buffer[:] = x
            yield buffer

    found = values(Dataset.from_generator(numbers_then_buffer))
    assert found == [*range(20), *([x, x] for x in range(20, 40))]


def test_no_more_is_asked_for_than_is_taken() -> None:
    asked: list[int] = []

    def noting() -> Iterator[int]:
        for x in range(100):
            asked.append(x)
            yield x

    assert values(Dataset.from_generator(noting).take(3)) == [0, 1, 2]
    assert asked == [0, 1, 2]


def test_an_error_comes_behind_the_elements_before_it_and_then_the_end() -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise OSError("disk")

    found = outcomes(Dataset.from_generator(broken))
    assert [plain(x) for x in found] == [0, 1, 2, 3, 4, "OSError"]
    assert f"in from_generator(broken), {__file__}:" in found[-1].__notes__[0]


def test_control_flow_raised_in_a_generator_is_an_error_of_the_user_s() -> None:
    def leaving() -> Iterator[int]:
        yield 0
        raise SystemExit

    assert [plain(x) for x in outcomes(Dataset.from_generator(leaving))] == [0, "UserCodeError"]


def test_something_that_cannot_be_iterated_is_named() -> None:
    (error,) = outcomes(Dataset.from_generator(lambda: 5))
    assert isinstance(error, InvalidArgumentError)
    assert "returned int" in error.what


def test_the_generator_s_result_instead_of_the_generator_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`generator` is .*, not a function") as caught:
        Dataset.from_generator(counting(3))  # type: ignore[arg-type]
    assert "from_generator(rows)" in caught.value.hint


def test_closing_closes_the_generator() -> None:
    closed: list[bool] = []

    def careful() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(True)

    elements = iter(Dataset.from_generator(careful))
    next(elements)
    elements.close()
    assert closed == [True]


def test_with_a_spec_elements_are_converted() -> None:
    ds = Dataset.from_generator(lambda: [(1, [1, 2])], element_spec=(TensorSpec((), "f4"), TensorSpec((2,), "i2")))
    assert ds.element_spec == (TensorSpec((), "f4"), TensorSpec((2,), "i2"))


@pytest.mark.parametrize(
    "spec, good, bad",
    [
        (TensorSpec((None,), "i4"), np.arange(3), np.zeros((2, 2))),
        (TensorSpec((2,), "f4"), np.zeros(2), np.zeros(3)),
        (TensorSpec((), "i8"), 1, "text"),
        (TensorSpec((), str), "text", 1),
        ((TensorSpec((), "i8"),), (1,), (1, 2)),
    ],
    ids=["rank", "size", "number", "text", "structure"],
)
def test_with_a_spec_what_does_not_fit_is_refused_in_its_place(spec: Any, good: Any, bad: Any) -> None:
    found = outcomes(Dataset.from_generator(lambda: [good, bad, good], element_spec=spec))
    assert [isinstance(x, InvalidArgumentError) for x in found] == [False, True, False]
    assert found[1].hint


def test_a_spec_s_dtype_is_what_comes_out() -> None:
    (element,) = list(
        Dataset.from_generator(lambda: [[1, 2]], element_spec=[TensorSpec((), "f4"), TensorSpec((), "i2")])
    )
    assert [x.dtype for x in element] == [np.float32, np.int16]


def test_of_several_tasks_one_reads_it() -> None:
    ds = Dataset.from_generator(counting, args=(3,))
    assert [provider.count for provider in split_providers(ds.operation)] == [1]
    feed = Feed([1])
    stages = [ds.operation.build(context(splits=feed.task())) for _ in range(2)]
    assert [drain(stage) for stage in stages] == [[0, 1, 2], []]


def test_user_code_error_keeps_its_cause() -> None:
    def leaving() -> list[int]:
        raise SystemExit

    (error,) = outcomes(Dataset.from_generator(leaving))
    assert isinstance(error, UserCodeError)
    assert isinstance(error.__cause__, SystemExit)

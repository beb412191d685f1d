"""`choose_from_datasets`: each element from the dataset whose number another one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.elements.spec import TensorSpec
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, context, drain, failing_at, outcomes, plain, run, values

WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def chosen(lengths: list[int], choices: list[int], *, stop: bool) -> list[int]:
    left = [iter(range(100 * place, 100 * place + length)) for place, length in enumerate(lengths)]
    found = []
    for choice in choices:
        element = next(left[choice], None)
        if element is None and stop:
            break
        if element is not None:
            found.append(element)
    return found


def numbered(lengths: list[int]) -> list[Dataset]:
    return [Dataset.range(100 * place, 100 * place + length) for place, length in enumerate(lengths)]


def numbers(values: list[Any]) -> Dataset:
    return Dataset.range(len(values)).map(lambda i: values[i])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.data(), st.booleans(), WANTS)
def test_it_follows_the_choices(lengths: list[int], data: st.DataObject, stop: bool, wants: list[int]) -> None:
    choices = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=25))
    ds = Dataset.choose_from_datasets(numbered(lengths), numbers(choices), stop)
    assert run(ds, wants) == chosen(lengths, choices, stop=stop)


def test_the_examples_of_the_original() -> None:
    letters = [Dataset.from_tensors(word).repeat() for word in ("foo", "bar", "baz")]
    assert values(Dataset.choose_from_datasets(letters, Dataset.range(3).repeat(3))) == ["foo", "bar", "baz"] * 3
    short = [Dataset.from_tensors(word).repeat(count) for word, count in (("foo", 2), ("bar", 1), ("baz", 3))]
    endless = Dataset.range(3).repeat()
    assert values(Dataset.choose_from_datasets(short, endless)) == ["foo", "bar", "baz", "foo"]
    found = values(Dataset.choose_from_datasets(short, endless, stop_on_empty_dataset=False))
    assert found == ["foo", "bar", "baz", "foo", "baz", "baz"]


def test_an_error_is_the_element_that_was_chosen() -> None:
    ds = Dataset.choose_from_datasets(
        [Dataset.range(9).map(failing_at(1)), Dataset.range(50, 59)], Dataset.range(2).repeat(3)
    )
    assert [plain(x) for x in outcomes(ds)] == [0, 50, "RuntimeError", 51, 2, 52]


@pytest.mark.parametrize("wrong", [2, -1, 0.0, "a"], ids=repr)
def test_a_choice_that_is_no_number_of_a_dataset_is_left_out(wrong: Any) -> None:
    ds = Dataset.choose_from_datasets(numbered([9, 9]), numbers([0, wrong, 1]))
    found = outcomes(ds)
    assert [plain(x) for x in found] == [0, "InvalidArgumentError", 100]
    assert repr(wrong) in str(found[1])


@given(WANTS)
def test_wrong_choices_do_not_disturb_the_others(wants: list[int]) -> None:
    ds = Dataset.choose_from_datasets(numbered([20, 20]), numbers([0, 7, 1, 1, 7, 0, 0]))
    assert [plain(x) for x in run(ds, wants)] == [0, "InvalidArgumentError", 100, 101, "InvalidArgumentError", 1, 2]


def test_nothing_is_asked_for_that_was_not_chosen() -> None:
    calls: list[int] = []
    first = Dataset.range(100).map(lambda x: calls.append(int(x)) or x)
    ds = Dataset.choose_from_datasets([first, Dataset.range(100)], Dataset.range(2).repeat()).take(5)
    assert values(ds) == [0, 0, 1, 1, 2]
    assert calls == [0, 1, 2]


def test_each_task_follows_all_choices_and_shares_the_datasets() -> None:
    ds = Dataset.choose_from_datasets(numbered([20, 20]), Dataset.range(2).repeat(), False)
    providers = split_providers(ds.operation)
    assert [provider.count for provider in providers] == [20, 20]
    feed = Feed([20, 20], piece=2)
    stages = [ds.operation.build(context(splits=feed.task())) for _ in range(2)]
    shares = [drain(stage, [4]) for stage in stages]
    assert sorted(x for share in shares for x in share) == [*range(20), *range(100, 120)]
    assert [x >= 100 for x in shares[0][:6]] == [False, True] * 3


def test_spec_and_length() -> None:
    first = Dataset.from_tensor_slices(np.zeros((4, 2)))
    second = Dataset.from_tensor_slices(np.zeros((4, 3)))
    ds = Dataset.choose_from_datasets([first, second], Dataset.range(2))
    assert ds.element_spec == TensorSpec((None,), float)
    assert ds.cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.choose_from_datasets([first.repeat()], Dataset.range(2)).cardinality() == 2
    endless = Dataset.choose_from_datasets([first.repeat()], Dataset.range(1).repeat())
    assert endless.cardinality() == INFINITE_CARDINALITY


@pytest.mark.parametrize(
    "datasets, choice",
    [([], Dataset.range(1)), ([Dataset.range(1), 5], Dataset.range(1)), ([Dataset.range(1)], [0]),
     ([Dataset.range(1), Dataset.from_tensors("a")], Dataset.range(1))],
    ids=["none", "a number", "a list of choices", "other specs"],
)  # fmt: skip
def test_wrong_arguments_are_refused_at_the_call(datasets: Any, choice: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Dataset.choose_from_datasets(datasets, choice)


@pytest.mark.parametrize("choice, shown", [(np.int64(7), "7"), (-1, "-1"), (0.5, "0.5"), ("b", "'b'")])
def test_a_choice_that_is_no_number_of_a_dataset_is_shown_as_the_user_wrote_it(choice: Any, shown: str) -> None:
    chosen = Dataset.choose_from_datasets([Dataset.range(3)] * 2, Dataset.from_tensors(choice))
    with pytest.raises(InvalidArgumentError) as caught:
        list(chosen)
    assert caught.value.what == f"the choice {shown} is not the number of a dataset: they are numbered from 0 to 1"

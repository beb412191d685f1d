"""An error that stands for no element, as of a service that cannot be reached, leaves the elements as they are."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnb.errors import UnavailableError, mark_out_of_band
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import AlignedStage, Run, Stage
from dsnb.pipeline.operation import BuildContext, SameSpec
from tests.pipeline.driving import MOST, context, plain, run
from tests.pipeline.test_dataset import CHAIN_STEPS


class Outage(SameSpec, frozen=True, kw_only=True):
    """Raises one error behind the first `at` elements, and then goes on."""

    at: int

    @property
    def cardinality(self) -> int:
        return self.inputs[0].cardinality

    def build(self, context: BuildContext) -> Stage:
        return OutageStage(self, *self.build_inputs(context))


class OutageStage(AlignedStage):
    def __init__(self, operation: Outage, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._left = operation.at
        self._raised = False

    def produce(self, want: int) -> Run:
        if not self._left and not self._raised:
            self._raised = True
            raise mark_out_of_band(UnavailableError("the service cannot be reached"))
        returned = self.inputs[0].pull(want if self._raised else min(want, self._left))
        self._left -= len(returned)
        return returned


def interrupted_by_an_outage(at: int) -> Dataset:
    source = Dataset.range(20)
    return Dataset(Outage(at=at, inputs=(source.operation,)))


def read_past_errors(dataset: Dataset, wants: list[int]) -> tuple[list[Any], int]:
    """Return what comes and how many errors came in between."""
    errors, out = 0, []
    with closing(dataset.operation.build(context())) as stage:
        for pull in range(MOST):
            try:
                pulled = stage.pull(wants[pull % len(wants)])
            except UnavailableError:
                errors += 1
                continue
            if not len(pulled):
                return [plain(x) for x in out], errors
            out += list(pulled)
    raise AssertionError(f"no end after {MOST} pulls")


@pytest.mark.parametrize("name", CHAIN_STEPS)
@given(st.integers(0, 20), st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=15)
def test_an_error_that_stands_for_no_element_drops_none(name: str, at: int, wants: list[int]) -> None:
    whole = [plain(x) for x in run(CHAIN_STEPS[name](Dataset.range(20)))]
    found, errors = read_past_errors(CHAIN_STEPS[name](interrupted_by_an_outage(at)), wants)
    assert found == whole
    assert errors <= 2  # each reading of the source raises one


class FailingStart(SameSpec, frozen=True, kw_only=True):
    """Fails to start as often as there are failures."""

    failures: list[Exception]

    def build(self, context: BuildContext) -> Stage:
        return FailingStartStage(self, *self.build_inputs(context))


class FailingStartStage(AlignedStage):
    def __init__(self, operation: FailingStart, source: Stage) -> None:
        super().__init__(operation.name, source)
        self._failures = operation.failures

    def start(self) -> None:
        super().start()
        if self._failures:
            raise self._failures.pop()

    def produce(self, want: int) -> Run:
        return self.inputs[0].pull(want)


def test_a_repetition_that_could_not_start_begins_at_the_next_pull() -> None:
    failures = [mark_out_of_band(UnavailableError("the service cannot be reached"))]
    source = Dataset.range(3)
    repeated = Dataset(FailingStart(failures=failures, inputs=(source.operation,))).repeat(2)
    found, errors = read_past_errors(repeated, [2])
    assert (found, errors) == ([0, 1, 2, 0, 1, 2], 1)

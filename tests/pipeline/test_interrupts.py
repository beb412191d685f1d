"""A user who interrupts a cell and reads on has lost nothing, whatever operations stand behind the one that ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.stage import as_list
from tests.pipeline.driving import MOST, context, plain, run
from tests.pipeline.test_dataset import CHAIN_STEPS


class Stop:
    """Interrupts the call number `at`, once: as a key that a user presses while it runs."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt


def interrupted(dataset: Dataset, wants: list[int]) -> list[Any]:
    """What comes for one who reads on behind interrupts."""
    stage = dataset.operation.build(context())
    out: list[Any] = []
    try:
        for pull in range(MOST):
            try:
                pulled = as_list(stage.pull(wants[min(pull, len(wants) - 1)]))
            except KeyboardInterrupt:
                continue
            if not pulled:
                return [plain(x) for x in out]
            out += pulled
    finally:
        stage.close()
    raise AssertionError(f"no end after {MOST} pulls")


WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
# What has threads is told of interrupts there as of any other error.
SERIAL = sorted(name for name in CHAIN_STEPS if name not in {"parallel map", "prefetch"})


@pytest.mark.slow
@pytest.mark.parametrize("name", SERIAL)
@given(st.integers(0, 25), WANTS)
@settings(max_examples=30)
def test_an_interrupted_input_gives_the_rest_later(name: str, at: int, wants: list[int]) -> None:
    stop = Stop(at)
    whole = [plain(x) for x in run(CHAIN_STEPS[name](Dataset.range(20).map(lambda x: x)))]
    assert interrupted(CHAIN_STEPS[name](Dataset.range(20).map(lambda x: stop() or x)), wants) == whole


CALLING: dict[str, Callable[[Callable[[], None]], Dataset]] = {
    "scan": lambda stop: Dataset.range(12).scan(0, lambda state, x: stop() or (state + x, state)),
    "take_while": lambda stop: Dataset.range(12).take_while(lambda x: stop() or x < 9),
    "group_by_window": lambda stop: Dataset.range(12).group_by_window(lambda x: stop() or x % 2, lambda _, w: w, 3),
    "window_size_func": lambda stop: Dataset.range(12).group_by_window(
        lambda x: x % 2, lambda _, w: w, window_size_func=lambda _: stop() or 2
    ),
    "bucket_by_sequence_length": lambda stop: Dataset.range(12).bucket_by_sequence_length(
        lambda x: stop() or int(x), [5], [2, 3]
    ),
    "choose_from_datasets": lambda stop: Dataset.choose_from_datasets(
        [Dataset.range(6)] * 2, Dataset.range(12).map(lambda x: stop() or x % 2)
    ),
}


@pytest.mark.parametrize("name", CALLING)
@given(st.integers(0, 14), WANTS)
@settings(max_examples=30)
def test_an_interrupted_function_is_called_again(name: str, at: int, wants: list[int]) -> None:
    whole = [plain(x) for x in run(CALLING[name](lambda: None))]
    assert interrupted(CALLING[name](Stop(at)), wants) == whole

"""Reading positions of pipelines on this machine: exact at every position, plain data, and refused where wrong."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dsnb.errors import CacheWarning, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.operations.with_options import Options
from dsnb.testing import assert_resumable
from tests.pipeline.driving import failing_at, plain, values
from tests.pipeline.engine.test_skip import PIPELINES


def double(x: Any) -> Any:
    return x * 2


def at(dataset: Dataset, count: int) -> Any:
    """The position behind the first elements."""
    with iter(dataset) as elements:
        for _ in range(count):
            next(elements)
        return elements.state_dict()


def rest(dataset: Dataset, state: Any) -> list[Any]:
    with iter(dataset) as elements:
        elements.load_state_dict(state)
        return [plain(element) for element in elements]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", PIPELINES.values(), ids=PIPELINES)
def test_each_operation_goes_on_at_every_position(dataset: Dataset) -> None:
    assert_resumable(dataset, most=30)


# ---- generated pipelines

STEPS: dict[str, Callable[[Dataset, int], Dataset]] = {
    "map": lambda ds, n: ds.map(lambda x: x),
    "parallel map": lambda ds, n: ds.map(lambda x: x, num_parallel_calls=2),
    "failing": lambda ds, n: ds.map(failing_at(n, n + 3)),
    "filter": lambda ds, n: ds.filter(lambda x: int(x) % (n + 1) != 0),
    "shuffle": lambda ds, n: ds.shuffle(n + 1),
    "seeded shuffle": lambda ds, n: ds.shuffle(n + 1, seed=n),
    "take": lambda ds, n: ds.take(3 * n),
    "skip": lambda ds, n: ds.skip(n),
    "repeat": lambda ds, n: ds.repeat(1 + n % 3),
    "batches and back": lambda ds, n: ds.batch(n + 1).unbatch(),
    "prefetch": lambda ds, n: ds.prefetch(n),
    "concatenate": lambda ds, n: ds.concatenate(Dataset.range(n)),
    "interleave": lambda ds, n: ds.interleave(lambda x: Dataset.from_tensors(x).repeat(n % 3), cycle_length=2),
    "sample": lambda ds, n: Dataset.sample_from_datasets([ds, Dataset.range(n)]),
    "zip": lambda ds, n: Dataset.zip(ds, Dataset.range(20).shuffle(4)).map(lambda x, _: x),
    "enumerate": lambda ds, n: ds.enumerate().map(lambda _, x: x),
    "scan": lambda ds, n: ds.scan(0, lambda total, x: (total + 1, x)),
}


@st.composite
def pipelines(draw: st.DrawFn) -> Dataset:
    dataset = Dataset.range(draw(st.integers(0, 14)))
    for name, number in draw(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), max_size=4)):
        dataset = STEPS[name](dataset, number)
    return dataset.batch(draw(st.integers(2, 4))) if draw(st.booleans()) else dataset


@settings(max_examples=25, deadline=None)
@given(pipelines())
def test_any_pipeline_goes_on_at_any_position(dataset: Dataset) -> None:
    assert_resumable(dataset, most=40)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=1500, deadline=None)
@given(pipelines())
def test_any_pipeline_goes_on_at_any_position_long(dataset: Dataset) -> None:
    assert_resumable(dataset, most=80)


# ---- passes

SHUFFLED = Dataset.range(20).shuffle(20, seed=5)


def test_the_next_loop_is_the_pass_behind_the_one_that_was_resumed() -> None:
    going = Dataset(SHUFFLED.operation)
    passes = [values(going) for _ in range(2)]
    with iter(going) as elements:
        third = [int(next(elements)) for _ in range(4)]
        state = elements.state_dict()
        third += [int(element) for element in elements]
    passes += [third, values(going)]
    resumed = Dataset(SHUFFLED.operation)
    assert rest(resumed, state) == third[4:]
    assert values(resumed) == passes[3]


def test_the_end_of_a_pass_is_a_position_too() -> None:
    elements = iter(dataset := Dataset.range(3))
    list(elements)
    state = elements.state_dict()
    again = iter(dataset)
    again.load_state_dict(state)
    assert list(again) == []
    assert again.state_dict() == state


def test_an_iterator_that_came_to_its_end_can_go_back() -> None:
    elements = iter(Dataset.range(5))
    next(elements)
    state = elements.state_dict()
    assert len(list(elements)) == 4
    elements.load_state_dict(state)
    assert [int(element) for element in elements] == [1, 2, 3, 4]


def test_a_closed_iterator_has_no_position() -> None:
    elements = iter(Dataset.range(5))
    elements.close()
    with pytest.raises(FailedPreconditionError, match="the iterator was closed"):
        elements.state_dict()


# ---- the state

POSITION = at(Dataset.range(9).map(double).shuffle(3).batch(2), 2)


def test_a_position_is_small_plain_data() -> None:
    assert json.loads(json.dumps(POSITION)) == POSITION
    assert pickle.loads(pickle.dumps(POSITION)) == POSITION
    assert len(json.dumps(POSITION)) < 500


def test_ranges_slices_and_recordings_jump() -> None:
    calls: list[int] = []

    def noted(x: int) -> int:
        calls.append(int(x))
        return x

    dataset = Dataset.range(1000).map(noted).batch(10)
    state = at(dataset, 50)
    calls.clear()
    with iter(dataset) as elements:
        elements.load_state_dict(state)
        next(elements)
    assert min(calls) == 500


def test_a_recording_jumps_to_what_it_has(tmp_path: Path) -> None:
    log = str(tmp_path / "calls")

    def noted(x: int) -> int:
        Path(log).write_text(f"{x}")
        return x

    dataset = Dataset.range(50).map(noted).shuffle(9, seed=4).cache(str(tmp_path / "recording"))
    wanted = values(dataset)
    state = at(dataset, 30)
    Path(log).unlink()
    assert rest(Dataset(dataset.operation), state) == wanted[30:]
    assert not Path(log).exists()


@pytest.mark.parametrize("before,after", [("a", "b"), (None, "a"), ("a", None)])
def test_a_position_holds_wherever_the_recording_lies(tmp_path: Path, before: str | None, after: str | None) -> None:
    def recorded(where: str | None) -> Dataset:
        return Dataset.range(9).map(double).cache(where and str(tmp_path / where)).batch(2)

    wanted = values(recorded(before))
    assert rest(recorded(after), at(recorded(before), 3)) == wanted[3:]


OTHERS = {
    "another source": (Dataset.range(8).map(double).shuffle(3).batch(2), r"operation 1 is range\(9\), and here .*8"),
    "another function": (
        Dataset.range(9).map(lambda x: x + 1).shuffle(3).batch(2),
        r"operation 2 is map\(double\), and here it is map\(<lambda>\)",
    ),
    "another value": (Dataset.range(9).map(double).shuffle(3, seed=1).batch(2), r"operation 3, shuffle\(3\), has"),
    "one more": (Dataset.range(9).map(double).shuffle(3).batch(2).take(4), r"only this one has .* 5, take\(4\)"),
    "one less": (Dataset.range(9).map(double).shuffle(3), r"only it has the operation 4, batch\(2\)"),
}


@pytest.mark.parametrize("dataset,told", OTHERS.values(), ids=OTHERS)
def test_a_position_of_another_pipeline_names_the_first_operation_that_differs(dataset: Dataset, told: str) -> None:
    with iter(dataset) as elements:
        before = plain(next(elements))
        with pytest.raises(InvalidArgumentError, match=f"another pipeline: .*{told}"):
            elements.load_state_dict(POSITION)
        assert plain(next(elements)) is not None, f"the iterator stays where it is, behind {before}"


@pytest.mark.parametrize(
    "change,error,told",
    [
        ({"kind": "something"}, InvalidArgumentError, "no reading position of dsnb: a dict with 'kind'"),
        ({"version": 2}, FailedPreconditionError, "has version 2, and this dsnb reads version 1"),
        ({"yielded": -1}, InvalidArgumentError, "its 'yielded' is -1"),
        ({"entropy": "x"}, InvalidArgumentError, "its 'entropy' is 'x'"),
        ({"failed": 0}, InvalidArgumentError, "its 'failed' is 0"),
        ({"sources": None}, InvalidArgumentError, "its 'sources' is None"),
    ],
)
def test_a_damaged_position_is_refused(change: dict[str, Any], error: type[Exception], told: str) -> None:
    dataset = Dataset.range(9).map(double).shuffle(3).batch(2)
    with iter(dataset) as elements:
        with pytest.raises(error, match=told):
            elements.load_state_dict({**POSITION, **change})
        assert len(list(elements)) == 5


@pytest.mark.parametrize("garbage", [None, 3, "state", [], {}, b"bytes"])
def test_what_is_no_position_is_refused(garbage: Any) -> None:
    with iter(Dataset.range(3)) as elements, pytest.raises(InvalidArgumentError, match="no reading position of dsnb"):
        elements.load_state_dict(garbage)


INEXACT = {
    "map": (Dataset.range(3).map(double, num_parallel_calls=2, deterministic=False), r"map\(double\) hands out"),
    "options": (
        Dataset.range(3).map(double, num_parallel_calls=2).with_options(Options(deterministic=False)),
        r"map\(double\) hands out",
    ),
}


@pytest.mark.parametrize("dataset,told", INEXACT.values(), ids=INEXACT)
def test_an_operation_that_is_not_exact_is_named(dataset: Dataset, told: str) -> None:
    with iter(dataset) as elements, pytest.raises(FailedPreconditionError, match=told):
        elements.state_dict()


def test_an_unseeded_shuffle_in_front_of_a_recording_in_memory_is_not_exact_elsewhere() -> None:
    with pytest.warns(CacheWarning, match=r"shuffle\(2\)"):
        dataset = Dataset.range(3).shuffle(2).cache()
    with (
        iter(dataset) as elements,
        pytest.raises(FailedPreconditionError, match=r"shuffle\(2\) has no seed, and cache"),
    ):
        elements.state_dict()


def test_a_seeded_shuffle_in_front_of_a_recording_in_memory_is_exact_elsewhere() -> None:
    def made() -> Dataset:
        return Dataset.range(9).shuffle(9, seed=3).cache()

    wanted = values(made())
    assert rest(made(), at(made(), 4)) == wanted[4:]

"""`reduce`, `get_single_element` and `peek` return one value; `element_spec` after an element was seen; `random`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.elements.spec import TensorSpec
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from tests.pipeline.driving import failing_at, values
from tests.support.requires import require_module


def test_reduce_passes_a_state_from_element_to_element() -> None:
    pairs = Dataset.range(5).map(lambda x: (x, 2 * x))
    count, total = pairs.reduce((0, np.zeros(2)), lambda state, pair: (state[0] + 1, state[1] + np.array(pair)))
    assert (count, total.tolist()) == (5, [10, 20])
    assert type(count) is np.int64


def test_reduce_of_nothing_is_the_initial_state() -> None:
    assert Dataset.range(0).reduce({"a": [1, 2]}, lambda state, x: state)["a"].tolist() == [1, 2]


def test_reduce_raises_an_element_s_error_and_refuses_another_structure() -> None:
    with pytest.raises(RuntimeError, match="2 is bad"):
        Dataset.range(5).map(failing_at(2)).reduce(0, lambda state, x: state)
    with pytest.raises(InvalidArgumentError, match="the first one as"):
        Dataset.range(5).reduce(0, lambda state, x: (state, x))
    with pytest.raises(FailedPreconditionError, match="never ends"):
        Dataset.range(5).repeat().reduce(0, lambda state, x: state)


def test_the_single_element_is_returned_and_any_other_number_refused() -> None:
    assert Dataset.from_tensors([1, 2]).get_single_element().tolist() == [1, 2]
    with pytest.raises(InvalidArgumentError, match="the dataset has no element"):
        Dataset.range(0).get_single_element()
    with pytest.raises(InvalidArgumentError, match="more than one"):
        Dataset.range(2).get_single_element()


# ---- peek


def test_an_element_is_shown_as_a_table() -> None:
    require_module("PIL")
    image = np.zeros((1, 12, 10), np.float32)
    shown = Dataset.from_tensors({"image": image, "label": (3, "cat")}).peek()
    assert repr(shown).splitlines() == [
        "leaf     shape        dtype    values",
        "image    (1, 12, 10)  float32  0.0 to 0.0",
        "label.0  ()           int64    3",
        "label.1  ()           str      'cat'",
    ]
    html = shown._repr_html_()
    assert html.count("<tr>") == 4
    assert html.count("<img") == 1
    assert "data:image/png;base64," in html


@pytest.mark.parametrize(
    "array, picture",
    [
        (np.zeros((12, 10), np.uint8), True),
        (np.full((12, 10, 3), np.nan), True),
        (np.zeros((12, 10, 4), np.bool_), True),
        (np.zeros((3, 12, 10), np.float16), True),
        (np.zeros((12, 10), np.int64), False),
        (np.zeros((2, 10), np.uint8), False),
        (np.zeros((12, 10, 5), np.uint8), False),
    ],
)
def test_arrays_that_look_like_images_have_a_thumbnail(array: Any, picture: bool) -> None:
    require_module("PIL")
    html = Dataset.from_tensors(array).peek()._repr_html_()
    assert ("<img" in html) is picture


def test_text_of_users_is_escaped() -> None:
    assert "<script>" not in Dataset.from_tensors("<script>").peek()._repr_html_()


def test_a_peek_begins_no_epoch_and_leaves_no_thread() -> None:
    ds, other = (Dataset.range(20).shuffle(20, seed=1).prefetch(2) for _ in range(2))
    before = threading.active_count()
    assert int(ds.peek().element) == values(other)[0]
    assert threading.active_count() == before
    assert values(ds) == values(Dataset.range(20).shuffle(20, seed=1))


def test_a_peek_at_nothing_and_at_a_service_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match="empty"):
        Dataset.range(0).peek()
    with dsnb.start(workers=1) as svc:
        read = Dataset.range(3).apply(dsnb.distribute("parallel_epochs", svc))
        with pytest.raises(FailedPreconditionError, match="peek before `distribute`"):
            read.peek()


# ---- element specs that were seen


@pytest.mark.parametrize("see", [lambda ds: ds.peek(), lambda ds: next(iter(ds)), list], ids=["peek", "next", "loop"])
def test_the_spec_behind_a_function_is_known_once_an_element_was_seen(see: Any) -> None:
    ds = Dataset.range(3).map(lambda x: {"x": np.zeros(4, np.float32), "y": x})
    assert ds.element_spec is None
    see(ds)
    assert ds.element_spec == {"x": TensorSpec((4,), np.float32), "y": TensorSpec((), np.int64)}
    assert "float32" in repr(ds)


def test_a_known_spec_stays_and_windows_have_none() -> None:
    known = Dataset.range(6).batch(4)
    list(known)
    assert known.element_spec == TensorSpec((None,), np.int64)


def test_a_pipeline_registers_alike_before_and_after_an_element_was_seen() -> None:
    ds = Dataset.range(3).map(lambda x: x)
    with dsnb.start(workers=1) as svc:
        first = dsnb.register_dataset(svc, ds, dataset_id="one")
        ds.peek()
        assert dsnb.register_dataset(svc, ds, dataset_id="one") == first


# ---- random


def test_random_numbers_repeat_with_a_seed_and_resume() -> None:
    assert values(Dataset.random(seed=4).take(50)) == values(Dataset.random(seed=4).take(50))
    assert values(Dataset.random().take(50)) != values(Dataset.random().take(50))
    numbers = values(Dataset.random(seed=-1).take(3000))
    assert 0 <= min(numbers) < 1 << 24
    assert 255 << 24 < max(numbers) < 1 << 32
    dsnb.testing.assert_resumable(Dataset.random(seed=1).take(20).batch(3))
    dsnb.testing.assert_resumable(Dataset.random(), most=20)


def test_epochs_of_random_numbers_differ_as_asked_for() -> None:
    fixed, drawn = (Dataset.random(seed=1, rerandomize_each_iteration=anew).take(5) for anew in (None, True))
    assert values(fixed) == values(fixed)
    assert values(drawn) != values(drawn)
    assert values(Dataset.random().take(5).repeat(2))[:5] != values(Dataset.random().take(5).repeat(2))[5:]

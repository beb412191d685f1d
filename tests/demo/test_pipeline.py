"""The functions of the demo's pipeline do what their names say, and the pipeline puts them together."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dsnb.demo import digits
from tests.support.requires import require_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits.unpack(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def pipeline() -> ModuleType:
    require_module("PIL")
    from dsnb.demo import pipeline

    return pipeline


@pytest.fixture
def zero(folder: Path) -> str:
    """The first image of the source."""
    return str(folder / "train" / "0" / "0000.png")


def test_decode_reads_pixels_of_what_was_fetched_with_the_label_of_its_folder(pipeline: ModuleType, zero: str) -> None:
    pixels, label = pipeline.decode(*pipeline.fetch(zero))

    assert label == 0
    # The first line of the source.
    assert (pixels[0] // digits.GREY_STEP).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_augment_draws_anew_each_time_and_keeps_label_and_shape(pipeline: ModuleType, zero: str) -> None:
    pixels, label = pipeline.decode(*pipeline.fetch(zero))
    drawn = [pipeline.augment(pixels, label) for _ in range(20)]

    assert {drawn_label for _, drawn_label in drawn} == {label}
    assert {image.shape for image, _ in drawn} == {(8, 8)}
    assert len({image.tobytes() for image, _ in drawn}) > 10


def test_the_training_part_comes_out_near_zero_mean_and_unit_spread(pipeline: ModuleType, folder: Path) -> None:
    files = folder.glob("train/*/*.png")
    plain: list[Any] = [pipeline.normalise(*pipeline.decode(path.read_bytes(), 0)) for path in files]
    samples = np.stack([sample for sample, _ in plain])

    assert samples.dtype == np.float32
    assert samples.shape == (digits.TRAIN_IMAGES, 64)
    assert abs(samples.mean()) < 0.05
    assert abs(samples.std() - 1) < 0.05


def test_held_out_digits_are_plain_and_complete(pipeline: ModuleType, folder: Path) -> None:
    samples, labels = pipeline.held_out(folder)
    again, _ = pipeline.held_out(folder)

    assert samples.shape == (360, 64)
    assert set(labels) == set(range(10))
    assert np.array_equal(np.sort(samples, axis=None), np.sort(again, axis=None))


def test_batches_never_end_and_hold_samples_and_labels(
    pipeline: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "FETCH_S", 0.0)
    epoch = -(-digits.TRAIN_IMAGES // pipeline.BATCH_SIZE)
    batches = list(islice(pipeline.training_batches(folder), epoch + 2))

    assert len(batches) == epoch + 2
    samples, labels = batches[0]
    assert samples.shape == (pipeline.BATCH_SIZE, 64)
    assert samples.dtype == np.float32
    assert labels.shape == (pipeline.BATCH_SIZE,)
    assert sum(len(labels) for _, labels in batches[:epoch]) == digits.TRAIN_IMAGES

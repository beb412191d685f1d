"""The archive of digits is whole, readable, and unpacked only for as long as it is needed."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from dsnb.demo import digits
from tests.support.requires import require_module

# How many of each digit the source says it holds.
IMAGES_OF_LABEL = {0: 178, 1: 182, 2: 177, 3: 183, 4: 181, 5: 182, 6: 181, 7: 179, 8: 174, 9: 180}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits.unpack(tmp_path_factory.mktemp("digits"))


@pytest.mark.slow
def test_all_images_are_there_with_the_labels_of_the_source(folder: Path) -> None:
    labels = Counter(int(path.parent.name) for path in folder.glob("*/*/*.png"))

    assert labels == IMAGES_OF_LABEL
    assert labels.total() == digits.IMAGES


@pytest.mark.slow
def test_every_image_can_be_read_and_holds_the_grey_values_of_the_source(folder: Path) -> None:
    require_module("PIL")
    from PIL import Image

    pixels = np.stack([np.asarray(Image.open(path)) for path in folder.glob("*/*/*.png")])

    assert pixels.shape == (digits.IMAGES, 8, 8)
    assert pixels.dtype == np.uint8
    assert set(np.unique(pixels)) == {digits.GREY_STEP * grey for grey in range(17)}


def test_the_parts_follow_the_documented_rule(folder: Path) -> None:
    train = sorted(int(path.stem) for path in folder.glob("train/*/*.png"))
    test = sorted(int(path.stem) for path in folder.glob("test/*/*.png"))

    assert train == list(range(digits.TRAIN_IMAGES))
    assert test == list(range(digits.TRAIN_IMAGES, digits.IMAGES))
    assert {digits.part_of(index) for index in train} == {"train"}
    assert {digits.part_of(index) for index in test} == {"test"}


def test_each_part_has_every_digit(folder: Path) -> None:
    for part in ("train", "test"):
        assert {int(path.name) for path in (folder / part).iterdir()} == set(range(10))


def test_the_pattern_finds_one_part(folder: Path) -> None:
    found = list(Path("/").glob(digits.pattern(folder, "test").removeprefix("/")))

    assert len(found) == digits.IMAGES - digits.TRAIN_IMAGES


def test_the_licence_comes_along_and_is_the_one_beside_the_archive(folder: Path) -> None:
    note = (files("dsnb.demo") / "DIGITS.md").read_text(encoding="utf-8")

    assert (folder / "DIGITS.md").read_text(encoding="utf-8") == note
    for word in ("CC BY 4.0", "Alpaydin", "10.24432/C50P49", "What was changed"):
        assert word in note


def test_the_archive_is_small_and_names_no_path_outside_itself() -> None:
    content = (files("dsnb.demo") / "digits.zip").read_bytes()
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()

    assert len(content) < 1_500_000
    assert not [name for name in names if name.startswith("/") or ".." in name]


@pytest.mark.slow
def test_the_temporary_folder_is_removed() -> None:
    with digits.unpacked() as folder:
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.slow
def test_the_temporary_folder_is_removed_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), digits.unpacked() as folder:
        raise KeyboardInterrupt
    assert not folder.exists()

"""A dataset in a cell shows its operations, the spec, the length, and what of it is recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dsnb


def shown(dataset: dsnb.Dataset) -> str:
    """What a person reads."""
    return re.sub(r"<[^>]*>", " ", dataset._repr_html_())


def test_operations_spec_and_length_are_shown() -> None:
    text = shown(dsnb.Dataset.range(10).batch(2).repeat())
    for part in ("range(10)", "batch(2)", "repeat()", "int64", "endless"):
        assert part in text


def test_each_input_of_a_zip_is_shown() -> None:
    text = shown(dsnb.Dataset.zip(dsnb.Dataset.range(3), dsnb.Dataset.range(5).batch(2)))
    assert "range(3)" in text
    assert "range(5) | batch(2)" in text
    assert "3 elements" in text


def test_a_recording_is_shown_with_its_state_and_size(tmp_path: Path) -> None:
    cached = dsnb.Dataset.range(100).cache(str(tmp_path / "kept"))
    assert "nothing yet" in shown(cached)

    assert len(list(cached)) == 100

    assert re.search(r"complete, 100 elements, \d+\.\d MB", shown(cached))


def test_a_recording_in_memory_and_one_on_a_server_are_named_without_asking() -> None:
    assert "in memory" in shown(dsnb.Dataset.range(3).cache())


def test_names_from_users_are_escaped() -> None:
    name = "<script>alert(1)</script>"
    html = dsnb.Dataset.range(3).cache(f"/nowhere/{name}")._repr_html_()
    assert "<script>" not in html


def test_the_error_about_an_unknown_length_reads_as_a_sentence() -> None:
    with pytest.raises(
        TypeError, match=r"the length of this dataset is not known before it is read: range\(3\) \| filter"
    ):
        len(dsnb.Dataset.range(3).filter(lambda n: n > 1))

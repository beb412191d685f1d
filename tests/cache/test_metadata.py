from __future__ import annotations

from typing import Any

import pytest

from dsnb.cache.recordings.metadata import RecordingMetadata, describe_difference, parse_metadata
from dsnb.code.fingerprint.fingerprint import fingerprint

SCALE = 3


def about(
    value: Any, pipeline: str = "range(3) | map(f)", files: tuple[tuple[str, str], ...] = ()
) -> RecordingMetadata:
    return RecordingMetadata.from_fingerprint(pipeline, fingerprint(value), files)


def scaled(scale: float, size: int = 2) -> dict[str, Any]:
    return {"function": lambda x: x * scale, "size": size, "names": ["a", "b"], "more": (1, 2)}


def test_it_is_read_as_it_was_written() -> None:
    mine = about(scaled(2), files=(("/a", "3 bytes"),))
    assert parse_metadata(mine.to_json()) == mine


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"pipeline": 1, "components": [3], "files": []}', b"\xff"])
def test_anything_else_is_no_explanation(data: bytes) -> None:
    assert parse_metadata(data) is None


def test_the_first_part_that_differs_is_named() -> None:
    assert describe_difference(about(scaled(2)), [about(scaled(3))]).endswith("closure scale: 2 against 3 before")


def test_the_nearest_of_several_counts() -> None:
    far, near = about({**scaled(3, 9), "names": ["x"]}), about(scaled(2, 7))
    assert "size" in describe_difference(about(scaled(2, 8)), [far, near])


def test_a_pipeline_of_another_shape_is_no_version_of_this_one() -> None:
    assert describe_difference(about(scaled(2)), [about(scaled(3), "range(4)")]) == ""


def test_a_pipeline_that_has_little_in_common_is_no_version_either() -> None:
    assert describe_difference(about(scaled(2)), [about([1, "x", 2.5])]) == ""


def test_without_others_there_is_nothing_to_say() -> None:
    assert describe_difference(about(scaled(2)), []) == ""


def test_changed_new_and_vanished_files_are_named() -> None:
    before = about(scaled(2), files=(("/a", "1"), ("/b", "1")))
    changed = about(scaled(2), files=(("/a", "1"), ("/b", "2")))
    new = about(scaled(2), files=(("/a", "1"), ("/b", "1"), ("/c", "1")))
    gone = about(scaled(2), files=(("/a", "1"),))
    assert describe_difference(changed, [before]) == "the file /b changed"
    assert describe_difference(new, [before]) == "the file /c is new"
    assert describe_difference(gone, [before]) == "the file /b is gone"

from __future__ import annotations

import pytest

import dsnb
from dsnb.cache.results.versions import MINIMUM_COMPATIBLE_VERSION, is_compatible


@pytest.mark.parametrize(
    "version, minimum, compatible",
    [
        ("0.1.0", "0.1.0", True), ("0.1", "0.1.0", True), ("0.0.9", "0.1.0", False), ("0.10.0", "0.9.0", True),
        ("1.0.0rc1", "1.0.0", False), ("1.0.0.dev2", "1.0.0", False), ("1.0.0.post1", "1.0.0", True),
        ("1.0.1.dev1", "1.0.0", True), ("2.0", "1.9.9", True), ("", "0.1.0", False), ("newest", "0.1.0", False),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version: str, minimum: str, compatible: bool) -> None:
    assert is_compatible(version, minimum) is compatible


def test_this_version_can_read_what_it_wrote() -> None:
    assert is_compatible(dsnb.__version__, MINIMUM_COMPATIBLE_VERSION)

"""Join files: written for their owner only, read whole, never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.errors import FailedPreconditionError, NotFoundError
from dsnb.wire.join_file import JoinFile, is_join_file, parse_join_file, read_join_file, write_join_file

GIVEN = JoinFile(name="digits", address="10.0.0.1:5050", token="a secret of the tests")


def test_a_join_file_is_private_and_returns_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "digits.join"
    write_join_file(path, GIVEN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_join_file(path) == GIVEN


def test_a_join_file_shows_no_secret() -> None:
    assert GIVEN.token not in repr(GIVEN)
    assert "\n" not in GIVEN.to_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "nonsense",
        GIVEN.to_text()[:-5],
        GIVEN.to_text().replace('"dsnb_join_file": 1', '"dsnb_join_file": 2'),
        GIVEN.to_text().replace("10.0.0.1:5050", "nowhere"),
        GIVEN.to_text().replace("a secret of the tests", ""),
        GIVEN.to_text().replace('"certificate": ""', '"certificate": "a secret of the tests"'),
    ],
)
def test_other_text_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(FailedPreconditionError, match="no join file") as caught:
        parse_join_file(text)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"digits\.join"):
        read_join_file(tmp_path / "digits.join")


@pytest.mark.parametrize(
    "service, meant",
    [
        ("digits.join", True),
        ("./digits", True),
        ("/home/me/digits", True),
        ("digits", False),
        ("localhost:5050", False),
        ("grpc://localhost:5050", False),
    ],
)
def test_a_path_is_told_from_a_name_and_an_address(service: str, meant: bool) -> None:
    assert is_join_file(service) is meant

from __future__ import annotations

import pytest

from dsnb.cli import main
from dsnb.cli.worker import parse_size, resolve_target
from dsnb.errors import InvalidArgumentError, NotFoundError


@pytest.mark.parametrize(
    "text,count",
    [("1000", 1000), ("500MB", 500_000_000), ("2GiB", 2 << 30), ("1.5 GB", 1_500_000_000), ("64kib", 64 << 10)],
)
def test_sizes_are_read_with_their_units(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "5 apples", "1e400", "2TB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a size"):
        parse_size(text)


def test_an_address_is_taken_as_it_is() -> None:
    assert resolve_target("far.example:5050") == "far.example:5050"


def test_a_name_is_looked_up() -> None:
    with pytest.raises(NotFoundError, match="no service 'digits' runs here"):
        resolve_target("digits")


def test_a_worker_address_that_nobody_can_call_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--dispatcher", "127.0.0.1:1", "--worker-address", "x:y:z"]) == 2
    assert "`worker_address`: 'x:y:z' is not an address" in capsys.readouterr().err

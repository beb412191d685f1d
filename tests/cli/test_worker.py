from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.cli import main, make_parser
from dsnb.cli.worker import config_of, parse_size, resolve_target
from dsnb.errors import InvalidArgumentError, NotFoundError
from dsnb.wire.join_file import JoinFile, write_join_file


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


@pytest.mark.parametrize(
    "options,seconds",
    [
        (["--join", "FILE"], 50),
        (["--dispatcher", "127.0.0.1:5050"], 600),
        (["--join", "FILE", "--dispatcher-gone", "1.5"], 1.5),
    ],
)
def test_a_worker_that_joined_by_a_file_ends_sooner_after_its_service(
    options: list[str], seconds: float, tmp_path: Path
) -> None:
    write_join_file(
        str(tmp_path / "FILE"), JoinFile(name="digits", address="127.0.0.1:5050", token="a" * 32, certificate="")
    )
    arguments = make_parser().parse_args(
        ["worker", *(str(tmp_path / one) if one == "FILE" else one for one in options)]
    )
    assert config_of(arguments).dispatcher_gone_ms == seconds * 1000


def test_each_tag_is_given_to_the_worker() -> None:
    arguments = make_parser().parse_args(
        ["worker", "--dispatcher", "127.0.0.1:5050", "--tag", "COLOCATED", "--tag", "gpu"]
    )
    assert config_of(arguments).worker_tags == ("COLOCATED", "gpu")


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "soon"])
def test_a_time_that_no_clock_can_wait_for_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["worker", "--dispatcher", "127.0.0.1:1", f"--dispatcher-gone={seconds}"])
    assert left.value.code == 2
    assert f"--dispatcher-gone: '{seconds}' is not a number of seconds above 0" in capsys.readouterr().err


def test_a_worker_address_that_nobody_can_call_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--dispatcher", "127.0.0.1:1", "--worker-address", "x:y:z"]) == 2
    assert "`worker_address`: 'x:y:z' is not an address" in capsys.readouterr().err

"""The command line as a newcomer meets it: help, mistakes, and what never needs a service."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dsnb
from dsnb.cli import main
from tests.support.processes import ROOT, PythonProcess

COMMANDS = ["demo", "dispatcher", "worker", "dashboard", "status"]


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_names_every_command_and_how_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    assert [command for command in COMMANDS if f"\n    {command}" not in text] == []
    assert "to begin:\n  dsnb demo" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_says_what_it_does_and_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(capsys, command)
    assert text.startswith(f"usage: dsnb {command} ")
    assert f"examples:\n  dsnb {command}" in text
    assert "--json" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_a_token_as_an_argument(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--token " not in help_of(capsys, command)


def test_help_loads_neither_numpy_nor_grpc() -> None:
    code = (
        "import sys; from dsnb.cli import make_parser; make_parser().format_help(); "
        "print({'numpy', 'grpc', 'panel', 'bokeh', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"dsnb {dsnb.__version__}\n"


@pytest.mark.parametrize(
    "arguments,told",
    [
        ([], "the following arguments are required: COMMAND"),
        (["stats"], "invalid choice: 'stats'"),
        (["dispatcher", "--port", "many"], "argument --port: 'many' is no number and no range of ports"),
        (["worker", "--token", "secret"], "unrecognized arguments: --token secret"),
    ],
)
def test_a_wrong_use_is_told_with_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("usage: dsnb")


def test_a_setting_that_can_never_be_right_is_told_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatcher", "--consumer-timeout-ms", "0"]) == 2
    assert (
        "`consumer_timeout_ms` is 0\n  try:  pass a number of milliseconds above 0, at most 10**12"
        in capsys.readouterr().err
    )


def test_the_module_is_the_command() -> None:
    with PythonProcess(["-m", "dsnb", "--version"]) as process:
        assert process.wait_for_exit() == 0
        assert process.stdout == f"dsnb {dsnb.__version__}\n"

"""How other machines join a service that a cell started."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError
from dsnb.wire import discovery
from dsnb.wire.join_file import parse_join_file, read_join_file
from tests.support.processes import PythonProcess
from tests.support.requires import require_module


@pytest.fixture
def encrypted() -> Iterator[dsnb.DataService]:
    require_module("cryptography")
    with dsnb.start(workers=1, host="0.0.0.0") as service:
        yield service


def path_in(command: str) -> str:
    start, _, path = command.rpartition(" ")
    assert start == "dsnb worker --join"
    return path


def test_the_command_names_a_private_file_that_goes_with_the_service(
    encrypted: dsnb.DataService, capsys: pytest.CaptureFixture[str]
) -> None:
    path = path_in(encrypted.join_command())
    assert f"copy {path} to the other machine first" in capsys.readouterr().out
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    written = read_join_file(path)
    assert (written.token, written.address) == (encrypted.token, encrypted.target.removeprefix("grpc://"))
    assert written.certificate == discovery.certificate_for(encrypted.token)
    encrypted.stop()
    assert not os.path.exists(path)


def test_an_inline_command_feeds_the_file_through_standard_input(encrypted: dsnb.DataService) -> None:
    begin, content, end = encrypted.join_command(inline=True).splitlines()
    assert (begin, end) == ("dsnb worker --join - <<'END'", "END")
    assert parse_join_file(content).token == encrypted.token


@pytest.mark.slow
def test_a_shell_runs_the_inline_command(encrypted: dsnb.DataService) -> None:
    """As `ssh host COMMAND` does on another machine."""
    run = "import subprocess, sys; sys.exit(subprocess.run(['sh', '-c', sys.argv[1]]).returncode)"
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    with PythonProcess(["-c", run, encrypted.join_command(inline=True)], env={"PATH": path}) as shell:
        shell.wait_for_line("worker ready", timeout=60)
        assert len(encrypted.status().workers) == 2


def test_a_join_file_is_all_that_a_reader_needs(encrypted: dsnb.DataService) -> None:
    connected = dsnb.connect(path_in(encrypted.join_command()))
    try:
        assert connected.target == encrypted.target
        assert connected.status().network == "tls"
        data = dsnb.Dataset.range(5).apply(dsnb.distribute("parallel_epochs", connected))
        assert sorted(int(x) for x in data) == [0, 1, 2, 3, 4]
    finally:
        discovery.forget_token(connected.target, connected.token)


def test_a_service_on_loopback_has_no_command_and_says_what_to_do() -> None:
    with dsnb.start(workers=0) as service, pytest.raises(FailedPreconditionError, match="no other machine") as caught:
        service.join_command()
    assert 'host="auto"' in caught.value.hint


def test_a_service_without_encryption_warns_wherever_it_is_shown() -> None:
    with dsnb.start(workers=1, host="0.0.0.0", tls=False) as service:
        assert service.status().network == "plain"
        assert "warning: connections are not encrypted" in repr(service.status())
        assert "connections are not encrypted" in service._repr_html_()
        assert parse_join_file(service.join_command(inline=True).splitlines()[1]).certificate == ""


def test_a_range_of_ports_is_for_the_dispatcher_and_its_workers() -> None:
    with dsnb.start(workers=2, port=range(42_000, 42_400)) as service:
        addresses = [service.target, *(worker.address for worker in service.status().workers)]
        assert all(42_000 <= int(address.rpartition(":")[2]) < 42_400 for address in addresses)


def test_tls_on_loopback_if_asked_for() -> None:
    require_module("cryptography")
    with dsnb.start(workers=1, tls=True) as service:
        assert service.status().network == "tls"
        data = dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol="grpc"))
        assert sorted(int(x) for x in data) == [0, 1, 2]

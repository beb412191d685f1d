"""`dsnb certificate`, and the join file of `dsnb dispatcher`."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsnb
from dsnb.cli import main
from dsnb.wire.certificates import fingerprint, load_or_create_certificate
from dsnb.wire.discovery import certificate_for
from dsnb.wire.join_file import read_join_file
from tests.support.requires import require_module


def test_the_fingerprint_is_shown_and_the_join_file_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("cryptography")
    path = tmp_path / "digits.join"
    with dsnb.start(workers=0, name="digits", host="0.0.0.0") as service:
        assert main(["certificate", "digits", "--join-file", str(path)]) == 0
        assert fingerprint(certificate_for(service.token)) in capsys.readouterr().out
        assert read_join_file(path).certificate == certificate_for(service.token)


def test_a_service_without_tls_has_no_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    with dsnb.start(workers=0, name="plain"):
        assert main(["certificate", "plain"]) == 0
        assert "none: its connections are not encrypted" in capsys.readouterr().out


def test_a_new_certificate_replaces_that_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("cryptography")
    before = load_or_create_certificate(tmp_path)
    assert main(["certificate", "--new", "--work-dir", str(tmp_path)]) == 0
    after = load_or_create_certificate(tmp_path)
    assert after != before
    assert fingerprint(after) in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--new"], ["--work-dir", "x"], ["--new", "--work-dir", "x", "digits"]], ids=["new", "folder", "both"]
)
def test_new_goes_with_a_folder_and_nothing_else(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certificate", *arguments]) == 2
    assert "--new goes with --work-dir" in capsys.readouterr().err


def test_the_doctor_warns_of_a_service_that_does_not_encrypt(capsys: pytest.CaptureFixture[str]) -> None:
    with dsnb.start(workers=0, name="open", host="0.0.0.0", tls=False):
        main(["doctor"])
    assert "warn network of open" in capsys.readouterr().out

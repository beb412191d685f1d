"""Certificates: made, kept, and agreed on by both ends of a connection."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dsnb.errors import DsnbError, FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from dsnb.wire import discovery
from dsnb.wire.certificates import (
    CERTIFICATE_FILE,
    check_certificate,
    fingerprint,
    load_or_create_certificate,
    new_certificate,
    renew_certificate,
    speaks_tls,
)
from dsnb.wire.messages import Empty, ForgetRequest
from dsnb.wire.methods import FORGET
from dsnb.wire.security import Guard
from dsnb.wire.server import GrpcServer
from tests.support.processes import PythonProcess
from tests.support.requires import require_module
from tests.wire.serving import TOKEN, address, channel_to


@pytest.fixture(scope="module")
def certificate() -> str:
    require_module("cryptography")
    return new_certificate()


@contextmanager
def serving_with(certificate: str) -> Iterator[GrpcServer]:
    server = GrpcServer("test", {FORGET: lambda _request, _context: Empty()}, Guard(TOKEN))
    server.start("127.0.0.1", 0, certificate)
    try:
        yield server
    finally:
        server.stop(0)


@contextmanager
def known(target: str, certificate: str, token: str = TOKEN) -> Iterator[None]:
    """That this process knows the certificate of the service with the token."""
    discovery.remember_token(target, token, certificate)
    try:
        yield
    finally:
        discovery.forget_token(target, token)


def refusal(target: str, token: str = TOKEN) -> tuple[DsnbError, float]:
    """The error of a call, and after how many seconds it came."""
    began = time.monotonic()
    with channel_to(target, token) as channel, pytest.raises(DsnbError) as caught:
        channel.call(FORGET, ForgetRequest(), timeout=10)
    return caught.value, time.monotonic() - began


def test_both_ends_with_the_same_certificate_agree(certificate: str) -> None:
    with (
        serving_with(certificate) as server,
        known(address(server), certificate),
        channel_to(address(server)) as channel,
    ):
        assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()


def test_another_certificate_is_refused_at_once_with_a_sentence(certificate: str) -> None:
    with serving_with(certificate) as server, known(address(server), new_certificate()):
        error, seconds = refusal(address(server))
    assert isinstance(error, PermissionDeniedError)
    assert "has another certificate" in error.what
    assert "join" in error.hint
    assert seconds < 5.0  # not the ten seconds of a call that is retried


def test_a_caller_without_a_certificate_is_refused_at_once_with_a_sentence(certificate: str) -> None:
    with serving_with(certificate) as server:
        error, seconds = refusal(address(server))
    assert isinstance(error, PermissionDeniedError)
    assert "uses TLS, and no certificate for it is known here" in error.what
    assert seconds < 5.0


def test_a_server_without_tls_is_refused_at_once_with_a_sentence(certificate: str) -> None:
    with serving_with("") as server, known(address(server), certificate):
        error, seconds = refusal(address(server))
    assert isinstance(error, PermissionDeniedError)
    assert "does not use TLS" in error.what
    assert seconds < 5.0


def test_a_wrong_token_is_refused_over_tls_too(certificate: str) -> None:
    with serving_with(certificate) as server, known(address(server), certificate, "another token"):
        error, seconds = refusal(address(server), "another token")
    assert isinstance(error, PermissionDeniedError)
    assert "the token is wrong" in error.what
    assert seconds < 5.0


def test_an_open_connection_notices_that_the_server_has_a_new_certificate(certificate: str) -> None:
    with (
        serving_with(certificate) as server,
        known(address(server), certificate),
        channel_to(address(server)) as channel,
    ):
        channel.call(FORGET, ForgetRequest(), timeout=10)
        port = server.port
        server.stop(0)
        after = GrpcServer("test", {FORGET: lambda _request, _context: Empty()}, Guard(TOKEN))
        after.start("127.0.0.1", port, new_certificate())
        try:
            with pytest.raises(PermissionDeniedError, match="another certificate"):
                channel.call(FORGET, ForgetRequest(), timeout=10)
        finally:
            after.stop(0)


def test_a_certificate_is_valid_from_yesterday_for_ten_years(certificate: str) -> None:
    from cryptography import x509

    made = x509.load_pem_x509_certificate(certificate.encode())
    now = datetime.now(UTC)
    assert timedelta(hours=23) < now - made.not_valid_before_utc < timedelta(hours=25)
    assert made.not_valid_after_utc - now > timedelta(days=3650)


def test_a_fingerprint_is_that_of_the_certificate_alone(certificate: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    made = x509.load_pem_x509_certificate(certificate.encode())
    assert fingerprint(certificate).replace(":", "") == made.fingerprint(SHA256()).hex().upper()


def test_a_folder_keeps_its_certificate_privately_until_it_is_renewed(certificate: str, tmp_path: Path) -> None:
    made = load_or_create_certificate(tmp_path)
    assert load_or_create_certificate(tmp_path) == made
    assert (tmp_path / CERTIFICATE_FILE).stat().st_mode & 0o777 == 0o600
    assert renew_certificate(tmp_path) != made
    assert load_or_create_certificate(tmp_path) != made
    assert os.listdir(tmp_path) == [CERTIFICATE_FILE]


def test_a_damaged_file_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / CERTIFICATE_FILE).write_text("nonsense")
    with pytest.raises(FailedPreconditionError, match=CERTIFICATE_FILE):
        load_or_create_certificate(tmp_path)
    assert (tmp_path / CERTIFICATE_FILE).read_text() == "nonsense"


@pytest.mark.parametrize("wrong", ["", "nonsense", 5, None, b"bytes", "-----END CERTIFICATE-----"])
def test_something_else_is_no_certificate_and_is_not_quoted(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`certificate` is not a certificate") as caught:
        check_certificate("certificate", wrong)
    assert "nonsense" not in str(caught.value)


@pytest.mark.slow
def test_without_the_package_the_error_names_the_line_that_installs_it() -> None:
    code = """
import sys
sys.modules["cryptography"] = None
import dsnb
try:
    dsnb.start(workers=1, host="auto")
except dsnb.errors.FailedPreconditionError as error:
    print(error.hint)
"""
    with PythonProcess(["-c", code]) as process:
        assert process.wait_for_exit() == 0, process.describe()
        assert "pip install 'dsnb[cluster]'" in process.stdout


def test_a_server_with_a_certificate_speaks_tls(certificate: str) -> None:
    with serving_with(certificate) as server:
        assert speaks_tls(address(server))


def test_a_server_that_is_silent_does_not_speak_tls() -> None:
    with serving_with("") as server:
        assert not speaks_tls(address(server))
    assert not speaks_tls("127.0.0.1:1")


def test_a_server_that_resets_the_connection_does_not_speak_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dispatcher does that is killed just then; nothing stays open, which would be a ResourceWarning."""
    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connect_and_be_reset(*args: Any) -> socket.socket:
            connection = connect(*args)
            accepted, _peer = server.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            poll = select.poll()
            poll.register(connection, select.POLLERR | select.POLLHUP)
            assert poll.poll(10_000), "the reset did not arrive"
            return connection

        monkeypatch.setattr(socket, "create_connection", connect_and_be_reset)
        assert not speaks_tls(f"127.0.0.1:{server.getsockname()[1]}")

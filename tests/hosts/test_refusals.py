"""Peers that a service on another host refuses: at once, and with a sentence that says what to do."""

from __future__ import annotations

import json

import pytest

from dsnb.wire.certificates import new_certificate
from dsnb.wire.join_file import JoinFile, read_join_file, write_join_file
from tests.hosts.conftest import ServiceOnHosts

pytestmark = pytest.mark.slow

AT_ONCE_S = 5.0
"""On a quiet machine it takes 0.05 s; a refusal that is mistaken for a lost connection is retried for 10 s."""

_ATTEMPT = """
import dsnb, json, time
from dsnb.wire import discovery
dsnb.distribute, dsnb.errors, discovery  # imports are not what is timed
try:
    dsnb.connect("10.77.0.1:1", token="nobody")
except dsnb.errors.UnavailableError:
    pass
began = time.monotonic()
try:
    dsnb.connect(PATH)
except dsnb.errors.DsnbError as error:
    print("REFUSED", json.dumps([type(error).__name__, error.what, error.hint, time.monotonic() - began]))
"""


def refusal(service: ServiceOnHosts, join_file: JoinFile) -> tuple[str, str, str, float]:
    """The class, text and hint of the error that a reader with this join file gets, and after how many seconds."""
    path = service.shared / "wrong.join"
    write_join_file(path, join_file)
    with service.hosts["c"].python(["-c", _ATTEMPT.replace("PATH", repr(str(path)))]) as reader:
        assert reader.wait_for_exit(timeout=60) == 0, reader.describe()
        kind, what, hint, seconds = json.loads(reader.wait_for_line("REFUSED").partition(" ")[2])
        return kind, what, hint, seconds


def test_a_wrong_certificate_is_refused_at_once(service: ServiceOnHosts) -> None:
    given = read_join_file(service.join_file)
    wrong = JoinFile(name="digits", address=given.address, token=given.token, certificate=new_certificate())
    kind, what, hint, seconds = refusal(service, wrong)
    assert kind == "PermissionDeniedError"
    assert "has another certificate than the one known here" in what
    assert "copy a new join file" in hint
    assert seconds < AT_ONCE_S


def test_a_missing_certificate_is_refused_at_once(service: ServiceOnHosts) -> None:
    given = read_join_file(service.join_file)
    kind, what, hint, seconds = refusal(service, JoinFile(name="digits", address=given.address, token=given.token))
    assert kind == "PermissionDeniedError"
    assert "uses TLS, and no certificate for it is known here" in what
    assert "copy a new join file" in hint
    assert seconds < AT_ONCE_S


def test_a_wrong_token_is_refused_at_once(service: ServiceOnHosts) -> None:
    given = read_join_file(service.join_file)
    wrong = JoinFile(name="digits", address=given.address, token="wrong", certificate=given.certificate)
    kind, what, _, seconds = refusal(service, wrong)
    assert kind == "PermissionDeniedError"
    assert "the token is wrong" in what
    assert seconds < AT_ONCE_S

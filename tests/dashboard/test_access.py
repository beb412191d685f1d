"""Which pages are shown, and which of them may control the service."""

from __future__ import annotations

import pytest

from dsnb.dashboard.access import READ_ONLY_REQUESTED, Access, AccessPolicy, on_loopback


@pytest.mark.parametrize(
    "given, access",
    [("secret", Access.CONTROL), ("", Access.REFUSED), ("guessed", Access.REFUSED), ("secre", Access.REFUSED)],
)
def test_the_key_decides(given: str, access: Access) -> None:
    assert AccessPolicy(key="secret").access_for(given) is access


def test_read_only_is_for_those_with_the_key_too() -> None:
    policy = AccessPolicy(key="secret", read_only_reason=READ_ONLY_REQUESTED)
    assert policy.access_for("secret") is Access.READ_ONLY
    assert policy.access_for("") is Access.REFUSED


def test_a_server_that_only_its_owner_reaches_needs_no_key() -> None:
    assert AccessPolicy().access_for("") is Access.CONTROL


@pytest.mark.parametrize(
    "arguments, local",
    [
        (["serve", "dashboard"], False),
        (["serve", "dashboard", "--address", "127.0.0.1"], True),
        (["serve", "--address=localhost", "dashboard"], True),
        (["serve", "dashboard", "--address", "0.0.0.0"], False),
    ],
)
def test_panel_serve_controls_only_where_it_listens_on_loopback(arguments: list[str], local: bool) -> None:
    assert on_loopback(arguments) is local

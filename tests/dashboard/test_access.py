"""Who may see a page, and who may press its buttons."""

from __future__ import annotations

import pytest

from dsnb.dashboard.access import ASKED_FOR, NO_KEY, Access, Policy, on_loopback


@pytest.mark.parametrize(
    "host, given, access",
    [
        ("127.0.0.1:5006", "secret", Access.CONTROL),
        ("hub.example", "secret", Access.CONTROL),
        ("127.0.0.1:5006", "", Access.LOOK),
        ("localhost:5006", "guessed", Access.LOOK),
        ("[::1]:5006", "", Access.LOOK),
        ("hub.example", "guessed", Access.REFUSED),
        ("127.0.0.1.evil.example:5006", "", Access.REFUSED),
        ("", "", Access.REFUSED),
    ],
)
def test_the_key_decides(host: str, given: str, access: Access) -> None:
    assert Policy(key="secret").of(host, given) is access


def test_read_only_is_for_those_with_the_key_too() -> None:
    policy = Policy(key="secret", read_only=ASKED_FOR)
    access = policy.of("hub.example", "secret")
    assert access is Access.LOOK
    assert policy.why_not(access) == ASKED_FOR
    assert Policy(key="secret").why_not(Access.LOOK) == NO_KEY
    assert Policy(key="secret").why_not(Access.CONTROL) == ""


@pytest.mark.parametrize(
    "arguments, local",
    [
        (["serve", "dashboard"], False),
        (["serve", "dashboard", "--address", "127.0.0.1"], True),
        (["serve", "--address=localhost", "dashboard"], True),
        (["serve", "dashboard", "--address", "0.0.0.0"], False),
        (["serve", "dashboard", "--unix-socket", "socket"], True),
    ],
)
def test_panel_serve_controls_only_where_it_listens_on_loopback(arguments: list[str], local: bool) -> None:
    assert on_loopback(arguments) is local

"""Hosts to listen on, ports to choose from, and addresses that others use."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.wire.addresses import is_loopback, listen_host, port_numbers, ports, reachable_host, routing_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "localhost", "::1", "[::1]"])
def test_loopback_has_many_names(host: str) -> None:
    assert listen_host("host", host) == host
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "[::]", "192.168.0.1", "8.8.8.8", "fe80::1", "::ffff:8.8.8.8", "auto"]
)
def test_other_machines_can_connect_to_other_hosts(host: str) -> None:
    assert listen_host("host", host) == host
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["", "example.com", "localhost.example.com", "127.0.0.1:80", "127.1"])
def test_a_host_that_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="`host`"):
        listen_host("host", host)


@pytest.mark.parametrize(
    "given, kept, numbers",
    [
        (0, 0, [0]),
        (5100, 5100, [5100]),
        (range(5100, 5103), "5100-5102", [5100, 5101, 5102]),
        ("5100-5102", "5100-5102", [5100, 5101, 5102]),
        ("5100-5100", "5100-5100", [5100]),
    ],
)
def test_a_port_is_a_number_or_a_range(given: Any, kept: Any, numbers: list[int]) -> None:
    assert ports("port", given) == kept
    assert list(port_numbers(kept)) == numbers


@pytest.mark.parametrize(
    "wrong",
    [-1, 65536, "5100", "5100-", "-5100", "9-5", "0-5", "5100-70000", range(0), range(5100, 5110, 2), 5.5, None],
)
def test_other_ports_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`port`"):
        ports("port", wrong)


def test_a_server_for_a_peer_on_this_machine_is_reached_by_loopback() -> None:
    assert routing_host("127.0.0.1:5050") == "127.0.0.1"
    assert reachable_host("auto", "127.0.0.1:5050") == "127.0.0.1"
    assert reachable_host("0.0.0.0", "127.0.0.1:5050") == "127.0.0.1"
    assert reachable_host("127.0.0.1", "10.0.0.1:5050") == "127.0.0.1"


def test_a_name_that_nobody_has_leaves_loopback() -> None:
    assert routing_host("no-such-host.invalid:5050") == "127.0.0.1"

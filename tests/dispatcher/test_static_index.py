"""A worker has the place in the list that its address finds, whatever the order in which workers come."""

from __future__ import annotations

from itertools import permutations

import pytest

from dsnb.dispatcher.handlers.static_index import static_index
from dsnb.errors import FailedPreconditionError


def places(entries: list[str], *addresses: str) -> list[int]:
    """The places of workers that come one after the other."""
    taken: dict[int, str] = {}
    for address in addresses:
        place = static_index(entries, address, taken)
        taken[place] = address
    return [next(place for place, other in taken.items() if other == address) for address in addresses]


@pytest.mark.parametrize("entries,address", [
    ("a:20000 b:20000", "b:20000"),
    ("a b", "b:20000"),
    ("a:%port% b:%port%", "b:20000"),
    ("a:%port_a% b:%port_b%", "b:20000"),
    ("grpc://a:%port% grpc://b:%port%", "b:20000"),
    ("a:20000 grpc://b", "grpc://b:20000"),
    ("[::1]:20000 [::2]:%port%", "[::2]:30000"),
    ("/worker/task:0 /worker/task:1:%port%", "/worker/task:1:20000"),
    ("a:%port% B", "b:20000"),
])  # fmt: skip
def test_an_address_finds_its_entry(entries: str, address: str) -> None:
    assert static_index(entries.split(), address, {}) == 1


def test_the_order_of_arrival_does_not_matter_where_hosts_differ() -> None:
    for order in permutations([0, 1, 2]):
        addresses = [f"host{number}:{5000 + number}" for number in order]
        assert places(["host0", "host1:%port%", "host2:5002"], *addresses) == list(order)


def test_workers_of_one_host_have_its_places_in_the_order_of_their_arrival() -> None:
    entries = ["a:%port%", "b:%port%", "a:%port_x%", "a"]
    assert places(entries, "a:3", "a:2", "b:9", "a:1") == [0, 2, 1, 3]


def test_a_worker_that_registers_again_keeps_its_place() -> None:
    assert static_index(["a:%port%", "a:%port%"], "a:7", {1: "a:7"}) == 1


def test_an_entry_with_the_worker_s_own_port_goes_before_one_for_any() -> None:
    assert places(["a:%port%", "a:7000"], "a:7000", "a:8000") == [1, 0]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
def test_all_names_of_the_loopback_are_one_host(name: str) -> None:
    for other in ("localhost:%port%", "127.0.0.1", "[::1]:7000"):
        assert static_index(["elsewhere", other], f"{name}:7000", {}) == 1


@pytest.mark.parametrize("entry", ["localhost:worker", "otherhost", "localhost:7001", "localhost:%part%"])
def test_an_address_that_no_entry_means_is_refused(entry: str) -> None:
    with pytest.raises(
        FailedPreconditionError, match="The worker's address is not configured: localhost:7000"
    ) as error:
        static_index([entry], "localhost:7000", {})
    assert "worker_addresses" in error.value.hint


def test_more_workers_than_places_and_a_changed_port_are_refused() -> None:
    taken = {0: "localhost:1", 1: "localhost:2"}
    with pytest.raises(FailedPreconditionError, match="other workers are already running at the configured host"):
        static_index(["localhost", "localhost:%port%"], "localhost:3", taken)


def test_a_worker_that_is_gone_frees_its_place_for_its_successor_on_another_port() -> None:
    assert static_index(["localhost"], "localhost:2", {}) == 0

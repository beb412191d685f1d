"""Arguments are checked at the call where they were given; the refused ones are told with what to use instead."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dsnb.client.options import CrossTrainerCache, ServiceAddress, ShardingPolicy, read_options, service_address
from dsnb.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dsnb.wire import discovery

DEFAULTS: dict[str, Any] = {
    "job_name": None,
    "consumer_index": None,
    "num_consumers": None,
    "max_outstanding_requests": None,
    "data_transfer_protocol": None,
    "compression": "AUTO",
    "cross_trainer_cache": None,
    "target_workers": "AUTO",
}


@pytest.mark.parametrize(
    "mode, policy",
    [
        ("parallel_epochs", ShardingPolicy.OFF),
        ("distributed_epoch", ShardingPolicy.DYNAMIC),
        (ShardingPolicy.OFF, ShardingPolicy.OFF),
        (ShardingPolicy.DYNAMIC, ShardingPolicy.DYNAMIC),
    ],
)
def test_modes_go_by_policy_or_alias(mode: Any, policy: ShardingPolicy) -> None:
    assert read_options(mode, **DEFAULTS).mode is policy


@pytest.mark.parametrize("policy", [ShardingPolicy.FILE, ShardingPolicy.DATA, ShardingPolicy.HINT])
def test_static_policies_are_said_to_be_missing(policy: ShardingPolicy) -> None:
    with pytest.raises(UnimplementedError, match=f"ShardingPolicy.{policy.name} is not there yet"):
        read_options(policy, **DEFAULTS)


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("max_outstanding_requests", 0, "max_outstanding_requests is 0"),
        ("max_outstanding_requests", True, "max_outstanding_requests is True"),
        ("max_outstanding_requests", 1.5, "max_outstanding_requests is 1.5"),
        ("compression", "ZIP", "Invalid `compression` argument"),
        ("target_workers", "SOME", "target_workers is 'SOME'"),
        ("cross_trainer_cache", CrossTrainerCache("t"), "requires named jobs"),
        ("consumer_index", 1, "must be given together"),
    ],
)
def test_what_can_never_be_right_is_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        read_options("parallel_epochs", **{**DEFAULTS, name: value})


@pytest.mark.parametrize("service", ["127.0.0.1:5050", "grpc://127.0.0.1:5050", ("grpc", "127.0.0.1:5050")])
def test_a_service_goes_by_address_target_or_pair(service: Any) -> None:
    assert service_address(service).address == "127.0.0.1:5050"


@pytest.mark.parametrize("service", ["here", "127.0.0.1:", ":5050", "127.0.0.1:99999", "127.0.0.1:port"])
def test_what_is_no_address_is_refused(service: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an address"):
        service_address(service)


def test_another_protocol_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="the protocol 'http'"):
        service_address("http://127.0.0.1:5050")


def test_a_token_is_in_no_pickle_and_no_repr() -> None:
    address = ServiceAddress(address="127.0.0.1:5050", token="secret-word")
    assert "secret-word" not in repr(address)
    data = pickle.dumps(address)
    assert b"secret-word" not in data
    assert pickle.loads(data).token is None


def test_a_token_that_was_not_given_is_found_by_the_address() -> None:
    discovery.remember("127.0.0.1:5050", "known here")
    try:
        assert ServiceAddress(address="127.0.0.1:5050").find_token() == "known here"
        assert ServiceAddress(address="127.0.0.1:5050", token="given").find_token() == "given"
    finally:
        discovery.forget("127.0.0.1:5050", "known here")

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from dsnb.arguments import checked
from dsnb.client.options import (
    READ_RULES,
    CrossTrainerCache,
    ServiceAddress,
    ShardingPolicy,
    compression_rule,
    read_options,
    service_address,
    sharding_policy,
)
from dsnb.errors import InvalidArgumentError, NotFoundError


def options(mode: Any = ShardingPolicy.OFF, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "job_name": None,
        "consumer_index": None,
        "num_consumers": None,
        "max_outstanding_requests": None,
        "data_transfer_protocol": None,
        "compression": "AUTO",
        "cross_trainer_cache": None,
        "target_workers": "AUTO",
    }
    return checked(**READ_RULES, compression=compression_rule)(read_options)(mode, **{**arguments, **changes})


def test_policies_have_the_numbers_of_the_original() -> None:
    assert [policy.name for policy in sorted(ShardingPolicy)] == [
        "OFF", "DYNAMIC", "FILE", "DATA", "FILE_OR_DATA", "HINT",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "mode,policy",
    [
        ("parallel_epochs", ShardingPolicy.OFF),
        ("distributed_epoch", ShardingPolicy.DYNAMIC),
        (ShardingPolicy.DYNAMIC, ShardingPolicy.DYNAMIC),
    ],
)
def test_a_mode_may_be_a_policy_or_its_old_name(mode: Any, policy: ShardingPolicy) -> None:
    assert sharding_policy("processing_mode", mode) is policy


@pytest.mark.parametrize("mode", ["invalid", "OFF", 0, 1, None])
def test_an_unknown_mode_is_refused_and_the_accepted_ones_are_listed(mode: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`processing_mode` is .*, which is no processing mode") as caught:
        sharding_policy("processing_mode", mode)
    for known in ("ShardingPolicy.OFF", "ShardingPolicy.HINT", "'parallel_epochs'", "'distributed_epoch'"):
        assert known in caught.value.hint


@pytest.mark.parametrize("trainer_id", ["", None, 7])
def test_a_trainer_has_a_name(trainer_id: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="requires a non-empty trainer ID"):
        CrossTrainerCache(trainer_id)


@pytest.mark.parametrize(
    "wrong,told",
    [
        ({"job_name": ""}, "`job_name` must not be empty"),
        ({"job_name": 7}, "`job_name` must be a string, got int"),
        ({"consumer_index": 0}, "must be given together"),
        ({"num_consumers": 2}, "must be given together"),
        ({"consumer_index": 0, "num_consumers": 2}, "num_consumers needs a job_name"),
        ({"job_name": "j", "consumer_index": 2, "num_consumers": 2}, "consumer_index is 2, and num_consumers 2"),
        ({"job_name": "j", "consumer_index": -1, "num_consumers": 2}, "`consumer_index` is -1"),
        ({"job_name": "j", "consumer_index": 0, "num_consumers": 0}, "`num_consumers` is 0"),
        ({"job_name": "j", "consumer_index": True, "num_consumers": 2}, "`consumer_index` is True"),
        ({"job_name": "j", "consumer_index": 0, "num_consumers": 2.0}, "`num_consumers` is 2.0"),
        ({"max_outstanding_requests": 0}, "`max_outstanding_requests` is 0"),
        ({"max_outstanding_requests": True}, "`max_outstanding_requests` is True"),
        ({"max_outstanding_requests": 1.5}, "`max_outstanding_requests` is 1.5"),
        (
            {"checksum": True, "data_transfer_protocol": "local"},
            "the transfer 'local' has no checksums, only tcp and grpc have",
        ),
        (
            {"checksum": True, "data_transfer_protocol": "shared_memory"},
            "the transfer 'shared_memory' has no checksums",
        ),
        ({"compression": "foo"}, "Invalid `compression` argument: 'foo'"),
        ({"cross_trainer_cache": CrossTrainerCache("a")}, "requires named jobs"),
        ({"target_workers": "SOME"}, "`target_workers` is 'SOME'"),
        ({"target_workers": 3}, "`target_workers` is 3"),
        (
            {"cross_trainer_cache": CrossTrainerCache("a"), "job_name": "j", "consumer_index": 0, "num_consumers": 2},
            "does not support coordinated reads",
        ),
        ({"on_worker_loss": "ignore"}, "`on_worker_loss` is 'ignore'"),
        ({"on_worker_loss": "replay"}, '`on_worker_loss` is "replay": with OFF each worker produces the whole dataset'),
        ({"on_worker_loss": "repeat"}, '`on_worker_loss` is "repeat": with OFF each worker produces the whole dataset'),
        (
            {
                "mode": ShardingPolicy.DYNAMIC,
                "on_worker_loss": "repeat",
                "job_name": "j",
                "consumer_index": 0,
                "num_consumers": 2,
            },
            '`on_worker_loss` is "repeat": a round of a coordinated read comes from one worker',
        ),
        (
            {
                "mode": ShardingPolicy.DYNAMIC,
                "on_worker_loss": "repeat",
                "job_name": "j",
                "cross_trainer_cache": CrossTrainerCache("a"),
            },
            "the trainers of a cross-trainer cache see one sequence",
        ),
    ],
)
def test_an_argument_that_can_never_be_right_is_refused_and_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        options(**wrong)


def test_consumers_of_coordinated_reads_have_names_and_are_never_local() -> None:
    made = options(job_name="j", consumer_index=1, num_consumers=2)
    assert (made.consumer_index, made.num_consumers, made.trainer_id, made.cached) == (1, 2, "consumer 1", False)
    with pytest.raises(InvalidArgumentError, match="Coordinated reads require non-local workers"):
        options(job_name="j", consumer_index=0, num_consumers=2, target_workers="local")


@pytest.mark.parametrize("target", ["LOCAL", "local", "Local"])
def test_the_target_workers_are_known_in_any_case(target: str) -> None:
    assert options(target_workers=target).local
    assert not options(target_workers="any").local


def test_right_arguments_are_kept() -> None:
    made = options("distributed_epoch", job_name="j", cross_trainer_cache=CrossTrainerCache("a"), target_workers="any")
    assert (made.mode, made.job_name, made.trainer_id, made.target_workers) == (ShardingPolicy.DYNAMIC, "j", "a", "ANY")
    assert made.cached
    assert not options().cached


def test_no_compression_has_a_name_of_its_own() -> None:
    assert (compression_rule("compression", None), compression_rule("compression", "AUTO")) == ("NONE", "AUTO")


# ---- where a service is


@pytest.mark.parametrize("service", ["127.0.0.1:5050", "grpc://127.0.0.1:5050", ("grpc", "127.0.0.1:5050")])
def test_a_service_may_be_an_address_in_three_notations(service: Any) -> None:
    assert service_address("service", service) == ServiceAddress(address="127.0.0.1:5050")


def test_a_service_object_brings_its_token() -> None:
    found = service_address("service", SimpleNamespace(target="grpc://127.0.0.1:5050", token="t"))
    assert (found.address, found.token) == ("127.0.0.1:5050", "t")


@pytest.mark.parametrize("service", [7, None, b"127.0.0.1:5050", ("grpc",), ("grpc", 7)])
def test_anything_else_is_no_service(service: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`service` must be a string, a"):
        service_address("service", service)


def test_an_empty_address_and_another_protocol_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`service` must not be empty"):
        service_address("service", "")
    with pytest.raises(NotFoundError, match="the protocol 'grp'"):
        service_address("service", "grp://127.0.0.1:5050")


def test_a_token_is_in_no_pickle_no_repr_and_no_comparison() -> None:
    address = ServiceAddress(address="127.0.0.1:5050", token="a-secret")
    assert b"a-secret" not in pickle.dumps(address)
    assert "a-secret" not in repr(address)
    assert address == ServiceAddress(address="127.0.0.1:5050", token="another")
    assert pickle.loads(pickle.dumps(address)).token is None

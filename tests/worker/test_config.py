from __future__ import annotations

from typing import Any

import pytest

from dsnb.errors import DsnbError, InvalidArgumentError, NotFoundError
from dsnb.worker.config import WorkerConfig

ADDRESS = "127.0.0.1:5050"


@pytest.mark.parametrize(
    "wrong,told",
    [
        ({"dispatcher_address": ""}, "a worker needs the address of its dispatcher"),
        ({"dispatcher_address": "nowhere"}, "'nowhere' is not an address"),
        ({"dispatcher_address": "host:0"}, "'host:0' is not an address"),
        ({"protocol": "http"}, "`protocol` is 'http'"),
        ({"heartbeat_interval_ms": 0}, "`heartbeat_interval_ms` is 0"),
        ({"dispatcher_timeout_ms": -1}, "`dispatcher_timeout_ms` is -1"),
        ({"cross_trainer_cache_size_bytes": 0}, "`cross_trainer_cache_size_bytes` is 0"),
        ({"read_ahead_bytes": 0}, "`read_ahead_bytes` is 0"),
        ({"max_readers": 0}, "`max_readers` is 0"),
    ],
)
def test_a_value_that_can_never_be_right_is_refused_when_it_is_given(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        WorkerConfig(**{"dispatcher_address": ADDRESS, **wrong})
    assert caught.value.hint


def test_another_protocol_than_grpc_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="the protocol 'http'"):
        WorkerConfig(dispatcher_address="http://127.0.0.1:5050")


@pytest.mark.parametrize("address", [ADDRESS, f"grpc://{ADDRESS}"])
def test_an_address_may_name_its_protocol(address: str) -> None:
    assert WorkerConfig(dispatcher_address=address).dispatcher_address == address


def test_the_original_s_fields_may_be_given_by_position_and_none_is_their_default() -> None:
    given = WorkerConfig("127.0.0.1:5050", "localhost:%port%", 5051, None, None, 1000)  # type: ignore[arg-type]
    assert given == WorkerConfig(
        dispatcher_address="127.0.0.1:5050", worker_address="localhost:%port%", port=5051, dispatcher_timeout_ms=1000
    )


@pytest.mark.parametrize("wrong", ["x:y:z", "host", "host:port", "host:99999", "http://host:80", "", "a\nb:80"])
def test_an_address_that_nobody_can_call_is_refused(wrong: str) -> None:
    with pytest.raises(DsnbError, match="`worker_address`"):
        WorkerConfig("127.0.0.1:5050", worker_address=wrong)

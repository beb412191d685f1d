from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsnb.dispatcher.config import DispatcherConfig
from dsnb.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "wrong,told",
    [
        ({"port": -1}, "`port` is -1"),
        ({"port": 65536}, "`port` is 65536"),
        ({"protocol": "http"}, "`protocol` is 'http'"),
        ({"worker_timeout_ms": 0}, "`worker_timeout_ms` is 0"),
        ({"client_timeout_ms": -5}, "`client_timeout_ms` is -5"),
        ({"reconnect_ms": 0}, "`reconnect_ms` is 0"),
        ({"job_gc_check_interval_ms": 0}, "`job_gc_check_interval_ms` is 0"),
        ({"task_gc_timeout_ms": 0}, "`task_gc_timeout_ms` is 0"),
        ({"job_gc_timeout_ms": 0}, "`job_gc_timeout_ms` is 0"),
        ({"job_gc_timeout_ms": -2}, "`job_gc_timeout_ms` is -2"),
    ],
)
def test_a_value_that_can_never_be_right_is_refused_when_it_is_given(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        DispatcherConfig(**wrong)
    assert caught.value.hint


@pytest.mark.parametrize("right", [{"port": 0}, {"port": 65535}, {"job_gc_timeout_ms": -1}, {"worker_timeout_ms": 1}])
def test_the_edges_are_taken(right: dict[str, Any]) -> None:
    name, value = next(iter(right.items()))
    assert getattr(DispatcherConfig(**right), name) == value


def test_fault_tolerant_mode_needs_a_work_dir() -> None:
    with pytest.raises(InvalidArgumentError, match="Cannot enable fault tolerant mode without configuring a work dir"):
        DispatcherConfig(fault_tolerant_mode=True)
    assert DispatcherConfig(fault_tolerant_mode=True, work_dir="somewhere").work_dir == "somewhere"


@pytest.mark.parametrize("wrong", ["localhost:%port%", [""], [5050], ["a", None]])
def test_a_list_of_workers_is_a_list_of_addresses(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`worker_addresses` (is|must)"):
        DispatcherConfig(worker_addresses=wrong)


@pytest.mark.parametrize("given,kept", [(None, ()), ([], ()), (["a", "b:%port%"], ("a", "b:%port%"))])
def test_a_list_of_workers_is_kept_as_it_was_given(given: Any, kept: tuple[str, ...]) -> None:
    assert DispatcherConfig(worker_addresses=given).worker_addresses == kept


def test_the_original_s_fields_may_be_given_by_position_and_none_is_their_default() -> None:
    given = DispatcherConfig(5050, None, "work", True, ["localhost:%port%"], None, -1, None)  # type: ignore[arg-type]
    assert given == DispatcherConfig(
        port=5050,
        work_dir="work",
        fault_tolerant_mode=True,
        worker_addresses=["localhost:%port%"],
        job_gc_timeout_ms=-1,
    )
    with pytest.raises(InvalidArgumentError, match="at most 8 without a name"):
        DispatcherConfig(*[None] * 9)  # type: ignore[arg-type]


def test_numpy_s_numbers_become_python_s_own() -> None:
    config = DispatcherConfig(port=np.int64(5050), worker_timeout_ms=np.int32(9), gc_dynamic_sharding_jobs=np.True_)
    given = (config.port, config.worker_timeout_ms, config.gc_dynamic_sharding_jobs)
    assert [type(value) for value in given] == [int, int, bool]


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(DispatcherConfig(token="secret"))

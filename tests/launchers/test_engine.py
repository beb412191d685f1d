"""What the launchers of engines share."""

from __future__ import annotations

import pytest

from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.launchers import Ray
from dsnb.launchers.engine import check_reachable, connect_engine, engine_text


def test_an_engine_that_is_not_installed_is_named_with_the_line_that_installs_it() -> None:
    with pytest.raises(FailedPreconditionError, match="no_such_engine cannot be imported") as refused:
        connect_engine("no_such_engine", "ray")
    assert "pip install 'dsnb[ray]'" in refused.value.hint


def test_nodes_of_other_hosts_need_a_service_that_they_can_reach() -> None:
    check_reachable("Ray", ["127.0.0.1", "localhost"], "127.0.0.1")
    check_reachable("Ray", ["203.0.113.7"], "auto")
    with pytest.raises(FailedPreconditionError, match=r"nodes on other hosts \(203\.0\.113\.7\)") as refused:
        check_reachable("Ray", ["127.0.0.1", "203.0.113.7"], "127.0.0.1")
    assert 'host="auto"' in refused.value.hint


def test_an_engine_s_error_becomes_one_line() -> None:
    assert engine_text(RuntimeError("The actor died.\n\tpid: 3\n")) == "The actor died. pid: 3"
    assert engine_text(RuntimeError()) == "RuntimeError"
    assert len(engine_text(RuntimeError("x" * 5_000))) == 600


@pytest.mark.parametrize("given, nbytes", [(5, 5), ("4GiB", 1 << 32), ("1.5 kB", 1500), ("2mb", 2_000_000)])
def test_memory_is_given_in_bytes_or_as_text(given: object, nbytes: int) -> None:
    assert Ray(memory=given).memory == nbytes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_cpus": 0},
        {"memory": "lots"},
        {"memory": 0},
        {"label_selector": "cpu"},
        {"num_cpus": "two"},
        {"resources": {"CPU": 2}},
        {"resources": {"memory": 1}},
    ],
)
def test_wrong_resources_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        Ray(**arguments)  # type: ignore[arg-type]

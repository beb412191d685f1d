"""What is checked when a worker joins."""

from __future__ import annotations

import sys

import pytest

from dsnb.dispatcher.joining import check_worker
from dsnb.errors import FailedPreconditionError
from dsnb.wire.messages import WorkerReport
from tests.support.cluster import Cluster
from tests.wire.serving import port_of_nobody

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HERE = "ipv4:127.0.0.1:40000"
ELSEWHERE = "ipv4:10.0.0.7:40000"


def test_another_minor_version_of_python_is_refused_with_the_one_to_use() -> None:
    with pytest.raises(FailedPreconditionError, match=r"Python 3\.9") as caught:
        check_worker(WorkerReport(uid="u", address="127.0.0.1:5050", python="3.9"), HERE, "token")
    assert f"start it with Python {PYTHON}" in caught.value.hint
    assert caught.value.did == "the worker was not added"


@pytest.mark.slow  # the attempts take five seconds
def test_a_worker_elsewhere_that_cannot_be_reached_is_refused_with_its_address() -> None:
    """As one in a container, which knows only the address inside."""
    with port_of_nobody() as port, pytest.raises(FailedPreconditionError, match=f"127.0.0.1:{port}") as caught:
        check_worker(WorkerReport(uid="u", address=f"127.0.0.1:{port}", python=PYTHON), ELSEWHERE, "token")
    assert "--worker-address" in caught.value.hint


def test_a_worker_that_answers_at_its_address_is_accepted() -> None:
    with Cluster(workers=1) as cluster:
        worker = cluster.workers[0]
        report = WorkerReport(uid=worker.uid, address=worker.address, python=PYTHON)
        check_worker(report, ELSEWHERE, cluster.dispatcher.token)


@pytest.mark.slow
def test_another_worker_at_the_address_is_not_taken_for_the_one_that_joins() -> None:
    with Cluster(workers=1) as cluster:
        report = WorkerReport(uid="another", address=cluster.workers[0].address, python=PYTHON)
        with pytest.raises(FailedPreconditionError, match="cannot be reached"):
            check_worker(report, ELSEWHERE, cluster.dispatcher.token)


def test_a_worker_on_the_loopback_of_this_host_is_not_called() -> None:
    check_worker(WorkerReport(uid="u", address="127.0.0.1:1", python=PYTHON), HERE, "token")

"""Clusters for the conformance lines, and all ways of handing elements over."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from tests.conformance import outcomes
from tests.support.cluster import Cluster
from tests.support.marks import slow
from tests.support.transfers import FORCED_TRANSFER, TRANSFERS


class MakeCluster(Protocol):
    """Starts a cluster that ends with the test; see `tests.support.cluster.Cluster`."""

    def __call__(self, workers: int = 1, **settings: Any) -> Cluster: ...


@pytest.fixture
def cluster() -> Iterator[MakeCluster]:
    with ExitStack() as stack:

        def make(workers: int = 1, **settings: Any) -> Cluster:
            return stack.enter_context(Cluster(workers, **settings))

        yield make


@pytest.fixture(params=[name if name in ("grpc", "local", FORCED_TRANSFER) else slow(name) for name in TRANSFERS])
def transfer(request: pytest.FixtureRequest) -> str:
    """What goes into `data_transfer_protocol`."""
    return str(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    outcomes.note(item, report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == outcomes.LAST)

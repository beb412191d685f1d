"""A service that this process stopped is not waited for: whoever asks it for something is refused at once.

The errors tell: a call that waits says for how long it tried, and no test has to measure it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import DsnbError, UnavailableError
from dsnb.notebook.service import DataService
from tests.support.cluster import Cluster
from tests.support.reading import numbers

R = dsnb.Dataset.range


@pytest.fixture(scope="module")
def stopped() -> tuple[DataService, DataService, dsnb.Dataset, Path]:
    """A service that was stopped, another handle of it, and a dataset that was read from it."""
    with dsnb.start(workers=1, name="short-lived") as service:
        connected = dsnb.connect(service.target)
        data = R(5).apply(dsnb.distribute("parallel_epochs", service, job_name="job"))
        assert numbers(data) == list(range(5))
    return service, connected, data, Path("run.html")


Ask = Callable[[DataService, DataService, dsnb.Dataset, Path], Any]
READING: dict[str, Ask] = {
    "the next loop": lambda _s, _c, data, _p: list(data),
    "start": lambda _s, _c, data, _p: iter(data).start(),
    "distribute": lambda service, _c, _d, _p: R(3).apply(dsnb.distribute("parallel_epochs", service)),
    "distribute by address": lambda service, _c, _d, _p: R(3).apply(dsnb.distribute("parallel_epochs", service.target)),
    "register_dataset": lambda service, _c, _d, _p: dsnb.register_dataset(service, R(3)),
    "from_dataset_id": lambda service, _c, _d, _p: dsnb.from_dataset_id("parallel_epochs", service, "1000"),
    "connect": lambda service, _c, _d, _p: dsnb.connect(service.target),
    "status of another handle": lambda _s, connected, _d, _p: connected.status(),
    "forget of another handle": lambda _s, connected, _d, _p: connected.forget("job"),
    "pause of another handle": lambda _s, connected, _d, _p: connected.pause("job"),
    "dashboard of another handle": lambda _s, connected, _d, _p: connected.dashboard_url(),
    "recording of another handle": lambda _s, connected, _d, path: connected.record(path),
}
METHODS: dict[str, Ask] = {
    "status": lambda service, _c, _d, _p: service.status(),
    "explain": lambda service, _c, _d, _p: service.explain(1.0),
    "report": lambda service, _c, _d, path: service.report(path),
    "record": lambda service, _c, _d, path: service.record(path),
    "wait_until": lambda service, _c, _d, _p: service.wait_until(lambda _: True),
    "scale": lambda service, _c, _d, _p: service.scale(2),
    "forget": lambda service, _c, _d, _p: service.forget("job"),
    "forget a dataset": lambda service, _c, _d, _p: service.forget(dataset_id="1000"),
    "evict": lambda service, _c, _d, _p: service.evict("job", "a"),
    "pause": lambda service, _c, _d, _p: service.pause("job"),
    "cancel": lambda service, _c, _d, _p: service.cancel("job"),
    "drain": lambda service, _c, _d, _p: service.drain("w0"),
    "dashboard": lambda service, _c, _d, _p: service.dashboard(),
}


@pytest.mark.parametrize("ask", READING.values(), ids=READING)
def test_reading_and_asking_are_refused_at_once(stopped: tuple[Any, ...], ask: Ask) -> None:
    with pytest.raises(UnavailableError, match=r"the service 'short-lived' at .* was stopped in this process") as error:
        ask(*stopped)
    assert "dsnb.start()" in error.value.hint


@pytest.mark.parametrize("ask", METHODS.values(), ids=METHODS)
def test_methods_of_the_service_itself_say_that_it_was_stopped(stopped: tuple[Any, ...], ask: Ask) -> None:
    with pytest.raises(DsnbError, match="the service 'short-lived' was stopped"):
        ask(*stopped)


def test_a_stopped_service_can_still_be_looked_at(stopped: tuple[Any, ...]) -> None:
    service, connected, *_ = stopped
    assert "stopped" in repr(service)
    assert "stopped" in service._repr_html_()
    assert "was stopped in this process" in connected._repr_html_()
    assert service.workers == 0


def test_a_dispatcher_without_a_folder_is_not_waited_for_either() -> None:
    with Cluster(1) as cluster:
        data = R(5).apply(dsnb.distribute("parallel_epochs", cluster.service))
        assert numbers(data) == list(range(5))
    with pytest.raises(UnavailableError, match="was stopped in this process"):
        list(data)


def test_a_service_with_a_folder_is_refused_until_it_is_started_again_in_it(tmp_path: Path) -> None:
    with dsnb.start(workers=1, work_dir=tmp_path) as service:
        data = R(5).apply(dsnb.distribute("parallel_epochs", service))
        assert numbers(data) == list(range(5))
    with pytest.raises(UnavailableError, match="was stopped in this process"):
        list(data)
    with dsnb.start(workers=1, work_dir=tmp_path):
        assert numbers(data) == list(range(5))


def test_one_that_comes_back_at_its_address_is_read_again(tmp_path: Path) -> None:
    with Cluster(1, dispatcher={"work_dir": tmp_path}) as cluster:
        data = R(5).apply(dsnb.distribute("parallel_epochs", cluster.service))
        for _ in range(2):
            assert numbers(data) == list(range(5))
            cluster.restart_dispatcher()


@pytest.mark.slow
def test_an_address_that_another_process_has_now_is_asked() -> None:
    """Here a socket that says nothing stands for the other process: a call waits for it as for any that hangs."""
    with Cluster(0) as cluster:
        pass
    port = int(cluster.address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(UnavailableError, match="no server answers"):
        dsnb.connect(cluster.dispatcher.target)

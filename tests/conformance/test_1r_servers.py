"""Section 1R: dispatchers and workers as objects that are started and stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from tests.support.ports import unused_port
from tests.support.reading import numbers

Server = dsnb.DispatchServer | dsnb.WorkerServer
Make = Callable[..., Any]


@pytest.fixture
def dispatcher() -> Iterator[dsnb.DispatchServer]:
    with dsnb.DispatchServer() as server:
        yield server


@pytest.fixture(params=["dispatcher", "worker"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a server of either kind, not started, which ends with the test."""
    made: list[Server] = []

    def of_its_kind(**settings: Any) -> Server:
        if request.param == "dispatcher":
            server: Server = dsnb.DispatchServer(dsnb.DispatcherConfig(**settings), start=False)
        else:
            target = request.getfixturevalue("dispatcher").target
            server = dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=target, **settings), start=False)
        made.append(server)
        return server

    if request.param == "worker":
        request.getfixturevalue("dispatcher")
    yield of_its_kind
    for server in made:
        server.stop()


def free_port() -> int:
    return unused_port()


def address(server: Server) -> str:
    return server.target if isinstance(server, dsnb.DispatchServer) else server.address


def test_line_304_start_can_be_deferred(make: Make) -> None:
    server = make()
    with pytest.raises(FailedPreconditionError, match="was not started"):
        address(server)
    server.start()
    assert address(server)


def test_line_305_an_explicit_port_is_honoured(make: Make) -> None:
    port = free_port()
    server = make(port=port)
    server.start()
    assert address(server).removeprefix("grpc://") == f"127.0.0.1:{port}"


@pytest.mark.parametrize("fault_tolerant", [False, True])
def test_line_306_with_a_work_folder(tmp_path: Path, fault_tolerant: bool) -> None:
    config = dsnb.DispatcherConfig(work_dir=str(tmp_path), fault_tolerant_mode=fault_tolerant)
    with dsnb.DispatchServer(config) as server:
        assert server.target.startswith("grpc://")


def test_line_307_fault_tolerance_needs_a_work_folder() -> None:
    with pytest.raises(ValueError, match="Cannot enable fault tolerant mode without configuring a work dir") as error:
        dsnb.DispatcherConfig(fault_tolerant_mode=True)
    assert isinstance(error.value, InvalidArgumentError)


def test_line_308_a_second_start_does_nothing(make: Make) -> None:
    server = make()
    server.start()
    before = address(server)
    server.start()
    assert address(server) == before


def test_line_309_a_second_stop_does_nothing(make: Make) -> None:
    server = make()
    server.start()
    server.stop()
    server.stop()


def test_line_310_no_start_after_a_stop(make: Make) -> None:
    server = make()
    server.start()
    server.stop()
    with pytest.raises(RuntimeError, match="Server cannot be started after it has been stopped"):
        server.start()


def test_line_311_joining_what_was_stopped_returns_at_once(make: Make) -> None:
    server = make()
    server.start()
    waiting = threading.Thread(target=server.join, name="joins-a-server")
    waiting.start()
    server.stop()
    waiting.join(10.0)
    assert not waiting.is_alive()
    server.join()


def test_line_311_joining_what_was_never_started_is_an_error(make: Make) -> None:
    with pytest.raises(FailedPreconditionError, match="was not started"):
        make().join()


@pytest.mark.slow
def test_line_312_workers_are_counted_the_moment_they_are_there(dispatcher: dsnb.DispatchServer) -> None:
    workers = []
    for count in range(3):
        assert len(dispatcher.status().workers) == count
        workers.append(dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=dispatcher.target)))
    service = dsnb.connect(dispatcher.target, token=dispatcher.token)
    assert len(numbers(dsnb.Dataset.range(5).apply(dsnb.distribute("parallel_epochs", service)))) == 15
    for worker in workers:
        worker.stop()


def test_line_314_a_worker_needs_a_dispatcher() -> None:
    with pytest.raises(ValueError, match="a worker needs the address of its dispatcher"):
        dsnb.WorkerConfig(dispatcher_address="")
    with pytest.raises(TypeError, match="dispatcher_address"):
        dsnb.WorkerConfig()  # type: ignore[call-arg]  # that is the mistake

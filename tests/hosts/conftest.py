"""A service on three hosts: the dispatcher on "a", two workers on "b", readers on "c"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.hosts import Network, network
from tests.support.processes import PythonProcess

JOIN_FILE = "service.join"


class ServiceOnHosts:
    """A running service whose parts are on different hosts.

    Attributes:
        hosts: The hosts.
        shared: A folder with the same files on all hosts.
        join_file: The path of the join file, there.
        dispatcher: The process of the dispatcher.
        workers: The processes of the workers.
    """

    def __init__(self, hosts: Network, shared: Path, dispatcher: PythonProcess) -> None:
        self.hosts = hosts
        self.shared = shared
        self.join_file = shared / JOIN_FILE
        self.dispatcher = dispatcher
        self.workers: list[PythonProcess] = []

    def reader(self, code: str, *, on: str = "c") -> PythonProcess:
        """A Python process that has connected to the service as `svc`."""
        connected = f"import dsnb, json, sys\nsvc = dsnb.connect({str(self.join_file)!r})\n{code}"
        return self.hosts[on].python(["-c", connected])

    def output_of(self, code: str, *, on: str = "c", timeout: float = 60.0) -> str:
        """What such a process prints until its end."""
        with self.reader(code, on=on) as reader:
            assert reader.wait_for_exit(timeout=timeout) == 0, reader.describe()
            return reader.stdout


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("host"), "a", "b", "c") as made:
        yield made


@pytest.fixture(scope="module")
def service(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceOnHosts]:
    shared = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        command = ["-m", "dsnb", "dispatcher", "--host", "auto", "--name", "digits", "--join-file"]
        dispatcher = stack.enter_context(hosts["a"].python([*command, str(shared / JOIN_FILE)]))
        dispatcher.wait_for_line("dispatcher ready")
        running = ServiceOnHosts(hosts, shared, dispatcher)
        for _ in range(2):
            worker = hosts["b"].python(["-m", "dsnb", "worker", "--join", str(running.join_file)])
            running.workers.append(stack.enter_context(worker))
        for worker in running.workers:
            worker.wait_for_line("worker ready")
        yield running

"""A token is found by the address whenever a connection is made: whoever starts first waits for the other."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.processes import PythonProcess

READER = """
import sys, dsnb
dataset = dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", sys.argv[1]))
print("GOT", [int(x) for x in dataset], flush=True)
"""

DISPATCHER = """
import dsnb.dispatcher.server, dsnb.cli
print("IMPORTED", flush=True)
dsnb.cli.main(["dispatcher", "--json", "--port", input()])
"""


@contextmanager
def begun_before(*arguments: str) -> Iterator[tuple[PythonProcess, str]]:
    """A process that has tried an address where no dispatcher is yet, and the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        process = PythonProcess([*arguments, address])
        listener.settimeout(60)
        with listener.accept()[0]:
            pass
    with process:
        yield process, address


@contextmanager
def dispatcher_at(address: str) -> Iterator[PythonProcess]:
    """A dispatcher that makes its token by itself."""
    port = address.rpartition(":")[2]
    with PythonProcess(["-m", "dsnb", "dispatcher", "--port", port, "--json"]) as dispatcher:
        assert json.loads(dispatcher.wait_for_line("{", timeout=60))["target"] == f"grpc://{address}"
        yield dispatcher


@pytest.mark.slow
def test_a_reader_that_starts_before_its_dispatcher_finds_the_token_when_it_comes() -> None:
    # A reader tries for ten seconds, in which a busy machine may not even import a dispatcher.
    with PythonProcess(["-c", DISPATCHER], stdin=True) as dispatcher:
        dispatcher.wait_for_line("IMPORTED", timeout=60)
        with begun_before("-c", READER) as (reader, address):
            assert dispatcher.popen.stdin is not None
            dispatcher.popen.stdin.write(f"{address.rpartition(':')[2]}\n".encode())
            dispatcher.popen.stdin.flush()
            with PythonProcess(["-m", "dsnb", "worker", "--dispatcher", address]):
                assert reader.wait_for_line("GOT", timeout=60) == "GOT [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
                assert reader.wait_for_exit() == 0


@pytest.mark.slow
def test_a_worker_that_starts_before_its_dispatcher_finds_the_token_when_it_comes() -> None:
    with begun_before("-m", "dsnb", "worker", "--dispatcher") as (worker, address), dispatcher_at(address):
        worker.wait_for_line("worker ready", timeout=60)


@pytest.mark.slow
def test_a_worker_without_a_token_of_its_own_follows_a_service_that_is_started_again_with_another() -> None:
    """The connection file tells the new one; nothing else does."""
    with begun_before("-m", "dsnb", "worker", "--dispatcher") as (worker, address):
        with dispatcher_at(address):
            worker.wait_for_line("worker ready", timeout=60)
        with dispatcher_at(address), PythonProcess(["-c", READER, address]) as reader:
            assert reader.wait_for_line("GOT", timeout=60) == "GOT [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
            assert reader.wait_for_exit() == 0

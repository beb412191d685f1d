"""A client says in which cell, process and host it runs."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from msgspec.structs import replace

import dsnb
from dsnb.client.origin import count_client, current_origin
from dsnb.wire.messages import ClientOrigin
from tests.support.cluster import Cluster

CELL = 1_000_000
"""A number that no other test counts under."""


def in_cell(number: int, code: str, names: dict[str, object]) -> None:
    """Run code as terminal IPython compiles the cell of that number."""
    exec(compile(code, f"<ipython-input-{number}-0123456789ab>", "exec"), names)


def test_a_process_without_cells_says_its_process_and_host() -> None:
    assert current_origin() == ClientOrigin(pid=os.getpid(), host=socket.gethostname())


def test_a_function_of_an_earlier_cell_reads_for_the_cell_that_calls_it() -> None:
    names: dict[str, object] = {"current_origin": current_origin}
    in_cell(3, "def read():\n    return current_origin()", names)
    in_cell(5, "origin = read()", names)
    assert names["origin"] == replace(current_origin(), cell=5)


def test_a_thread_reads_for_the_cell_whose_function_it_runs() -> None:
    found: list[ClientOrigin] = []
    names: dict[str, object] = {"current_origin": current_origin, "found": found, "threading": threading}
    in_cell(3, "def read():\n    found.append(current_origin())", names)
    in_cell(5, "thread = threading.Thread(target=read); thread.start(); thread.join()", names)
    assert [origin.cell for origin in found] == [3]


def test_the_clients_of_a_cell_are_counted() -> None:
    here = ClientOrigin(cell=CELL, pid=os.getpid(), host="laptop")
    assert [count_client(here).ordinal for _ in range(3)] == [1, 2, 3]
    assert count_client(replace(here, cell=CELL + 1)).ordinal == 1


@pytest.mark.parametrize("prefetch", [False, True], ids=["read by the cell", "read ahead by a thread"])
@pytest.mark.usefixtures("patient_status")
def test_a_status_says_which_cell_reads(prefetch: bool) -> None:
    """The job is joined on another thread than the user's, which runs no cell."""
    with Cluster(workers=1) as cluster:
        data = dsnb.Dataset.range(1 << 40).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="job"))
        names: dict[str, object] = {"data": data.prefetch(2) if prefetch else data}
        in_cell(7, "elements = iter(data); next(elements)", names)
        [trainer] = cluster.job("job").trainers
        origin = trainer.origin
        assert origin is not None
        assert (origin.cell, origin.pid, origin.host) == (7, os.getpid(), ""), "the host tells nothing on one host"
        in_cell(8, "elements.close()", names)

"""What happens when a kernel ends, however it ends, and when several kernels share a service."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import dsnb
from dsnb.wire import discovery
from tests.support.kernel import Kernel, workers_of
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

WORK = """
import dsnb, os, time
service, heavy = dsnb.start(workers=2), dsnb.start(workers=2, name="heavy", isolation="process")
numbers = dsnb.Dataset.range(10**9).map(lambda x: x + 1, num_parallel_calls=2)
parallel = "parallel_epochs"
elements, others = (iter(numbers.apply(dsnb.distribute(parallel, place))) for place in (service, heavy))
local = iter(numbers)
print(next(elements), next(others), next(local), service.target, heavy.target, service.dashboard_url(), flush=True)
"""
"""A morning's work: services with thread and process workers, iterators that are read, a dashboard."""

CHILD = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on Python warns of forks beside threads
child = os.fork()
if not child:
    time.sleep(300)
    os._exit(0)
print(child)
"""


def is_free(target: str) -> bool:
    address = urlsplit(target)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port)) != 0


def work(kernel: Kernel) -> list[str]:
    """Have a kernel do a morning's work; returns where it listens."""
    *elements, target, heavy, url = kernel.run(WORK).split()
    assert elements == ["1", "1", "1"]
    assert len(list(workers_of(kernel))) == 2
    return [target, heavy, url]


def nothing_is_left_of(kernel: Kernel, places: list[str], *, but: tuple[int, ...] = ()) -> None:
    """But for a connection file, which the next look removes."""
    wait_for(lambda: set(kernel.processes()) <= set(but), what="all processes to end", timeout=30)
    for place in places:
        assert is_free(place)
    assert discovery.running() == []
    assert list(discovery.runtime_dir().iterdir()) == []
    assert list(Path("/dev/shm").glob("*dsnb*")) == []


@pytest.mark.slow
def test_the_kernel_is_restarted(own_kernel: Kernel) -> None:
    places = work(own_kernel)
    old = own_kernel.processes()
    own_kernel.restart()
    nothing_is_left_of(own_kernel, places, but=(own_kernel.pid,))
    assert own_kernel.pid not in old
    work(own_kernel)  # all cells from top to bottom, as people do
    assert own_kernel.run("print(service.name)") == "default\n"


@pytest.mark.slow
def test_the_kernel_is_shut_down(own_kernel: Kernel) -> None:
    places = work(own_kernel)
    began = time.monotonic()
    own_kernel.shutdown()
    nothing_is_left_of(own_kernel, places)
    assert time.monotonic() - began < 20
    assert own_kernel.log_text() == ""


@pytest.mark.slow
def test_the_kernel_is_killed(own_kernel: Kernel) -> None:
    places = work(own_kernel)
    own_kernel.kill()
    nothing_is_left_of(own_kernel, places)


@pytest.mark.slow
def test_the_kernel_is_killed_while_a_forked_child_lives(own_kernel: Kernel) -> None:
    places = work(own_kernel)
    child = int(own_kernel.run(CHILD))
    own_kernel.kill()
    nothing_is_left_of(own_kernel, places, but=(child,))
    assert own_kernel.processes() == [child]


@pytest.mark.slow
def test_the_interpreter_ends_with_live_iterators_services_and_dashboards(tmp_path: Path) -> None:
    """A script that comes to its end, or is left by an exception, in the middle of everything."""
    ends = {"": 0, "import sys; sys.exit(3)": 3, "heavy.status(); 1 / 0": 1}
    with ExitStack() as stack:
        for number, (end, code) in enumerate(ends.items()):
            apart = {"DSNB_RUNTIME_DIR": str(tmp_path / str(number))}
            script = stack.enter_context(PythonProcess(["-c", WORK + end], env=apart))
            script.wait_for_line("1 1 1", timeout=60.0)
            began = time.monotonic()
            assert script.wait_for_exit() == code
            assert time.monotonic() - began < 15
            assert re.sub(r"Traceback.*\nZeroDivisionError.*\n", "", script.stderr, flags=re.DOTALL) == ""
            assert list((tmp_path / str(number)).iterdir()) == []


# ---- several kernels


@pytest.mark.slow
def test_two_kernels_read_from_one_service_and_its_owner_is_killed(
    own_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pid = own_kernel.pid
    places = work(own_kernel)
    with Kernel(tmp_path_factory.mktemp("other")) as other:
        other.run(
            "import dsnb, time\nservice = dsnb.connect('heavy')\n"
            "with service as same:\n    numbers = dsnb.Dataset.range(10**9).map(lambda x: x)\n"
            "elements = iter(numbers.apply(dsnb.distribute('parallel_epochs', service)))\n"
            "assert next(elements) == 0 and len(service.status().workers) == 2"
        )
        assert own_kernel.run("print(next(others) > 0)") == "True\n", "nobody disturbs the other"
        reading = other.begin("print('READING', flush=True)\nfor element in elements: pass").wait_for("READING")
        own_kernel.kill()
        killed = time.monotonic()
        assert reading.wait(40).error.startswith(
            f"UnavailableError: the service 'heavy' has ended: its process {pid} is gone"
        )
        assert time.monotonic() - killed < 35
        nothing_is_left_of(own_kernel, places)
        assert "NotFoundError: no dsnb service" in other.fail("dsnb.connect()")
        assert "no server answers at" in other.fail("service.status()")
        other.run("del elements\nwith dsnb.start(workers=1) as own: print(own.name)")


@pytest.mark.slow
def test_another_kernel_is_restarted_while_it_reads(
    own_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The owner's service and its other readers do not notice but for a client that is gone."""
    work(own_kernel)
    with Kernel(tmp_path_factory.mktemp("other")) as other:
        other.run(
            "import dsnb\nnumbers = dsnb.Dataset.range(10**9)\n"
            "job = dsnb.distribute('parallel_epochs', dsnb.connect('default'), job_name='other')\n"
            "elements = iter(numbers.apply(job)); next(elements)"
        )
        other.restart()
    own_kernel.run(
        "service.wait_until(lambda s: s.job('other').clients == 0)\n"
        "assert next(elements) > 0 and len(service.status().workers) == 2"
    )


@pytest.mark.slow
def test_the_notebook_is_moved_to_another_folder(tmp_path: Path) -> None:
    """With its helper module, while its kernel runs; another kernel, elsewhere, finds the service as before."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "helper_of_the_moved.py").write_text("def double(x):\n    return 2 * x\n")
    with Kernel(tmp_path / "old") as kernel:
        kernel.run("import dsnb, helper_of_the_moved as helper\nservice = dsnb.start(workers=1, isolation='process')")
        (tmp_path / "old").rename(tmp_path / "new")
        kernel.run(
            "service.scale(2)\n"
            "numbers = dsnb.Dataset.range(100).map(helper.double)\n"
            "read = numbers.apply(dsnb.distribute('distributed_epoch', service))\n"
            "assert sum(int(x) for x in read) == 9900"
        )
        with Kernel(tmp_path / "new") as other:
            other.run(
                "import dsnb, helper_of_the_moved as helper\n"
                "read = dsnb.Dataset.range(100).map(helper.double)\n"
                "read = read.apply(dsnb.distribute('distributed_epoch', dsnb.connect('default')))\n"
                "assert sum(int(x) for x in read) == 9900"
            )


@pytest.mark.slow
def test_two_kernels_start_a_service_each(own_kernel: Kernel) -> None:
    with dsnb.start(workers=1) as mine:
        theirs = own_kernel.run("import dsnb; service = dsnb.start(workers=1); print(service.name)").strip()
        assert (mine.name, theirs) == ("default", "default-2")
        assert "AlreadyExistsError" in own_kernel.fail("dsnb.start(workers=1, name='default')")
        assert f"runs in process {os.getpid()}" in own_kernel.fail("dsnb.start(workers=1, name='default')")
        own_kernel.run("service.stop()")

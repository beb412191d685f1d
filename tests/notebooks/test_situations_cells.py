"""What happens to cells of a kernel that goes on: run again, interrupted, left by an exception, forgotten."""

from __future__ import annotations

import re
import threading
import time

import pytest

from tests.support.kernel import Kernel, workers_of
from tests.support.waiting import wait_for

READ = """
numbers = dsnb.Dataset.range(10**9)
elements = iter(numbers.apply(dsnb.distribute("parallel_epochs", service)))
print(next(elements))
"""
"""Reads from `service`, and prints 0."""

GATE = """
import pathlib, tempfile
from tests.support.reading import Gate
folder = tempfile.TemporaryDirectory()
gate, entered, done = (Gate(pathlib.Path(folder.name), name) for name in ("gate", "entered", "done"))
"""
"""Doors for user code, which is pickled even for thread workers: a lock could not go along."""

HEALTHY = """
assert len(service.status().workers) == 2
again = dsnb.Dataset.range(100).apply(dsnb.distribute("distributed_epoch", service))
assert sorted(int(x) for x in again) == list(range(100))
"""
"""A service with two workers that does what services do."""


@pytest.mark.slow
def test_the_start_cell_is_run_twice(kernel: Kernel) -> None:
    start = "service = dsnb.start(workers=2); print(service.target, len(service.status().workers))"
    first = kernel.run(start)
    again = kernel.run(start)
    assert again == f"dsnb: the service 'default' is already running\n{first}"
    kernel.run(HEALTHY)


@pytest.mark.slow
def test_the_start_cell_is_run_again_with_other_arguments(kernel: Kernel) -> None:
    first = kernel.run("service = dsnb.start(workers=1); print(service.target)")
    scaled = kernel.run("service = dsnb.start(workers=2); print(service.target)")
    assert scaled == f"dsnb: the service 'default' is already running; now 2 worker(s) instead of 1\n{first}"
    kernel.run(HEALTHY + READ)
    changed = "service = dsnb.start(workers=2, cross_trainer_cache_size_bytes=1 << 20{})"
    refused = kernel.fail(changed.format(""))
    assert "1 reader(s) read from it" in refused
    assert "replace=True" in refused
    assert "restarted with another `cross_trainer_cache_size_bytes`" in kernel.run(changed.format(", replace=True"))
    kernel.run(HEALTHY + "del elements")


@pytest.mark.slow
def test_a_cell_is_interrupted_in_next(kernel: Kernel) -> None:
    """With an element that never comes, and then in a loop over elements that do."""
    kernel.run("service = dsnb.start(workers=2)" + GATE)
    cell = kernel.begin(
        "waiting = dsnb.Dataset.range(5).map(lambda x: gate.wait(120), num_parallel_calls=1)\n"
        "with iter(waiting.apply(dsnb.distribute('parallel_epochs', service))) as elements:\n"
        "    print('READING', flush=True)\n    next(elements)"
    )
    cell.wait_for("READING")
    interrupted = time.monotonic()
    kernel.interrupt()
    assert cell.wait(15).error.startswith("KeyboardInterrupt")
    assert time.monotonic() - interrupted < 10
    kernel.run("gate.open()")
    cell = kernel.begin(
        "numbers = dsnb.Dataset.range(10**9).apply(dsnb.distribute('distributed_epoch', service))\n"
        "elements, seen = iter(numbers), set()\nseen.add(int(next(elements)))\n"
        "print('READING', flush=True)\nfor element in elements: seen.add(int(element))"
    )
    cell.wait_for("READING")
    kernel.interrupt()
    assert cell.wait(15).error.startswith("KeyboardInterrupt")
    assert kernel.run("print(int(next(elements)) in seen)") == "False\n", "an interrupted read goes on where it was"
    kernel.run("elements.close()" + HEALTHY)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_cell_is_interrupted_in_start(kernel: Kernel, isolation: str) -> None:
    """At several moments: whatever was begun is undone, and the name is free again."""
    for delay in (0.0, 0.02, 0.3):
        cell = kernel.begin(
            f"print('STARTING', flush=True)\nservice = dsnb.start(workers=2, isolation={isolation!r})\ntime.sleep(60)"
        )
        cell.wait_for("STARTING")
        threading.Event().wait(delay)
        kernel.interrupt()
        assert cell.wait(30).error.startswith("KeyboardInterrupt")
        kernel.run("if 'service' in globals(): globals().pop('service').stop()")  # the stop button came too late
        wait_for(lambda: not list(workers_of(kernel)), what="the worker processes to end", timeout=20)
    assert kernel.run(f"service = dsnb.start(workers=2, isolation={isolation!r}); print(service.name)") == "default\n"
    kernel.run(HEALTHY)


@pytest.mark.slow
def test_a_cell_is_interrupted_in_stop(kernel: Kernel) -> None:
    """While it waits for user code, which Python cannot stop."""
    kernel.run("service = dsnb.start(workers=2)" + GATE + "read = dsnb.Dataset.range(4).map(lambda x: gate.wait(60))")
    kernel.run("elements = iter(read.apply(dsnb.distribute('parallel_epochs', service))).start()")
    wait_for(lambda: kernel.run("print(gate.visits())") != "0\n", what="user code to run")
    kernel.run(
        "import threading\ndef tell():\n    while not service.stopped:\n        time.sleep(0.01)\n"
        "    print('STOPPING', flush=True)"
    )
    cell = kernel.begin("threading.Thread(target=tell).start()\nservice.stop()\ntime.sleep(60)").wait_for("STOPPING")
    kernel.interrupt()
    assert cell.wait(30).error.startswith("KeyboardInterrupt")
    kernel.run("gate.open(); del elements, read")
    assert kernel.run("service = dsnb.start(workers=2); print(service.name)") == "default\n"
    kernel.run(HEALTHY)


@pytest.mark.slow
def test_a_cell_is_interrupted_while_a_thread_worker_runs_user_code(kernel: Kernel) -> None:
    """The cell ends at once; the function goes on to its end, and the service with it."""
    kernel.run(
        "service = dsnb.start(workers=2)" + GATE + "def busy(x):\n"
        "    entered.open()\n"
        "    until = time.monotonic() + 3\n"
        "    while time.monotonic() < until:\n        pass\n"
        "    done.open()\n    return x\n"
        "slow = dsnb.Dataset.range(2).map(busy).apply(dsnb.distribute('distributed_epoch', service))\n"
    )
    cell = kernel.begin(
        "elements = iter(slow).start(); entered.wait(); print('READING', flush=True)\nprint(next(elements))"
    )
    cell.wait_for("READING")
    kernel.interrupt()
    assert cell.wait(15).error.startswith("KeyboardInterrupt")
    assert kernel.run("done.wait(30)") == ""
    assert kernel.run("print(sorted(int(x) for x in elements))") == "[0, 1]\n", "nothing was lost"
    kernel.run("del elements, slow" + HEALTHY)


@pytest.mark.slow
def test_the_kernel_is_interrupted_while_process_workers_run(kernel: Kernel) -> None:
    kernel.run("service = dsnb.start(workers=2, isolation='process')")
    workers = sorted(workers_of(kernel))
    assert len(workers) == 2
    kernel.run("def slow(x):\n    time.sleep(0.04)\n    return x")  # long enough for two interrupts
    cell = kernel.begin(
        "numbers = dsnb.Dataset.range(400).map(slow).apply(dsnb.distribute('distributed_epoch', service))\n"
        "elements, got = iter(numbers), []\nfor element in elements:\n    got.append(int(element))\n"
        "    print('READING', flush=True)"
    )
    for _ in range(2):
        cell.wait_for("READING")
        kernel.interrupt()
        assert cell.wait(15).error.startswith("KeyboardInterrupt")
        cell = kernel.begin("for element in elements:\n    got.append(int(element)); print('READING', flush=True)")
    assert not cell.wait().error
    # An element that came just when the cell was stopped was handed to the cell.
    kernel.run("assert len(set(got)) == len(got) >= 398, len(got)")
    assert sorted(workers_of(kernel)) == workers
    kernel.run("del elements" + HEALTHY)


@pytest.mark.slow
def test_an_exception_leaves_a_with_block(kernel: Kernel) -> None:
    assert "ZeroDivisionError" in kernel.fail(
        "with dsnb.start(workers=2) as service:" + READ.replace("\n", "\n    ") + "\n    1 / 0"
    )
    assert kernel.run("print(service)") == "DataService('default', stopped)\n"
    kernel.run("del elements")
    assert kernel.leftovers() == {}
    kernel.run("service = dsnb.start(workers=2)")
    kernel.fail("with dsnb.start(workers=2):\n    1 / 0")
    kernel.run(HEALTHY)  # the block had not started it


@pytest.mark.slow
def test_a_thousand_iterators_are_dropped_half_read(kernel: Kernel) -> None:
    kernel.run("service = dsnb.start(workers=2)" + READ + "del elements")
    kernel.take_census()
    kernel.run(
        "numbers = dsnb.Dataset.range(10**9).apply(dsnb.distribute('parallel_epochs', service))\n"
        "for _ in range(1000):\n    elements = iter(numbers); next(elements)\n"
        "del elements",
        timeout=110,
    )
    assert kernel.leftovers() == {}
    wait = "service.wait_until(lambda s: not any(job.clients for job in s.jobs)); print(service.workers)"
    assert kernel.run(wait) == "2\n"
    kernel.run(HEALTHY)


@pytest.mark.slow
def test_a_reader_is_called_by_the_cell_that_reads(kernel: Kernel) -> None:
    kernel.run("service = dsnb.start(workers=1)")
    kernel.run("def read(data):\n    elements = iter(data)\n    next(elements)\n    return elements")
    cell = kernel.begin(
        "shared = dsnb.distribute('parallel_epochs', service, job_name='train')\n"
        "elements = read(dsnb.Dataset.range(10**9).apply(shared))"
    ).wait()
    told_by = "lambda now: now.job('train').trainers[0].origin is not None"
    shown = kernel.run(f"print(service.wait_until({told_by}).job('train'))")
    assert re.search(rf"^  client .*\n  cell {cell.number} ", shown, re.MULTILINE), shown
    reading = "stop = threading.Event()\nthread = threading.Thread(target=lambda: [stop.wait(0.01) or next(elements) "
    loop = kernel.begin(f"import threading\n{reading}for _ in iter(stop.is_set, True)])\nthread.start()").wait()
    assert not loop.error
    told = kernel.run("while not (told := service.explain(1.5)): pass\nprint(told[0])")
    assert f"the client in cell {cell.number} of process {kernel.pid} waits" in told
    kernel.run("stop.set(); thread.join(); elements.close()")

"""A user's own fork: the child's handles give advice at once, its end is its own, and the parent's service lives on."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

import dsnb
from tests.support.processes import PythonProcess, python_process
from tests.support.waiting import wait_for

QUIET = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
"""From 3.12 on Python itself says that threads and forks do not go together."""

SETUP = """
import multiprocessing, os, sys, time
import dsnb
service = dsnb.start(workers=1, work_dir=os.environ["WORK_DIR"])
numbers = dsnb.Dataset.range(10**9)
there = numbers.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol="grpc"))
elements, local = iter(there), iter(numbers.map(lambda x: x, num_parallel_calls=2))
assert (next(elements), next(local)) == (0, 0)

def drain(elements):
    for _ in elements:
        pass

def outcome(act):
    try:
        return repr(act())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def check_parent():
    assert len(service.status().workers) == 1
    assert next(elements) > 0 and next(local) > 0
    assert len(dsnb.wire.discovery.running()) == 1
    dsnb.register_dataset(service, numbers)  # which is written to the journal
"""

HANDLES = """
ACTS = {
    "status": service.status, "scale": lambda: service.scale(2), "dashboard": service.dashboard,
    "start": lambda: dsnb.start(), "connect": lambda: dsnb.connect(), "iter": lambda: iter(there).start(),
    "next": lambda: drain(elements), "next of a local one": lambda: drain(local),
    "register": lambda: dsnb.register_dataset(service, numbers),
    "dispatcher": lambda: dsnb.DispatchServer(),
    "worker": lambda: dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=service.target)),
    "close": elements.close, "stop": service.stop, "repr": lambda: repr(service),
    "anew": lambda: sum(int(x) for x in dsnb.Dataset.range(10).map(lambda x: x, num_parallel_calls=2)),
}

def child(queue):
    for name, act in ACTS.items():
        queue.put((name, outcome(act)))

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
for _ in ACTS:
    print(*queue.get(timeout=20), sep="\\t", flush=True)
process.join(20)
assert process.exitcode == 0, process.exitcode
check_parent()
print("DONE")
"""

ENDS = """
import gc
held = [elements, local, service, there]
for how in "exit", "return", "raise", "drop", "os._exit":
    pid = os.fork()
    if not pid:
        if how == "drop":
            del elements, local, service, there, held
            gc.collect()
        if how == "raise":
            sys.stderr = open(os.devnull, "w")
            raise RuntimeError
        if how == "os._exit":
            os._exit(0)
        if how == "return":
            break  # to the end of the program
        sys.exit(0)
    deadline = time.monotonic() + 20
    ended = 0, 0
    while not ended[0] and time.monotonic() < deadline:
        ended = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    assert ended[0] and os.waitstatus_to_exitcode(ended[1]) == (how == "raise"), (how, ended)
    check_parent()
else:
    print("DONE", flush=True)
"""

POOL = """
def double(x):
    return 2 * x

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
    check_parent()
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.terminate()
check_parent()
print("DONE")
"""

WITH_A_CHILD = """
pid = os.fork()
if not pid:
    time.sleep(120)
    os._exit(0)
print("READY", service.target, pid, flush=True)
time.sleep(120)
"""


def broken(connection: socket.socket) -> bool:
    """Whether the other side is gone; takes what it said before."""
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def run(code: str, work_dir: Path) -> str:
    """The output of code in an interpreter of its own, which ends well and prints no error."""
    with PythonProcess(["-c", SETUP + code], env={"WORK_DIR": str(work_dir), **QUIET}) as process:
        assert process.wait_for_exit(timeout=60) == 0
        assert process.stderr == ""
        return process.stdout


@pytest.mark.slow
def test_handles_of_before_the_fork_raise_with_advice_and_do_not_hang(tmp_path: Path) -> None:
    *lines, done = run(HANDLES, tmp_path).replace("\n  ", " ").splitlines()
    told = dict(line.split("\t") for line in lines)
    assert done == "DONE"
    for name in ("status", "scale", "dashboard", "start", "connect", "iter", "register", "dispatcher", "worker"):
        assert re.match(r"FailedPreconditionError: a service cannot be used in this process: .* forked", told.pop(name))
    for name in ("next", "next of a local one"):
        assert "num_workers=0" in told[name]
        assert told.pop(name).startswith("FailedPreconditionError: this iterator cannot be read here")
    assert told == {"close": "None", "stop": "None", "repr": "\"DataService('default', 1 worker)\"", "anew": "45"}


@pytest.mark.slow
def test_however_a_child_ends_the_parents_service_goes_on(tmp_path: Path) -> None:
    assert run(ENDS, tmp_path) == "DONE\n"


@pytest.mark.slow
def test_a_pool_works_beside_a_service(tmp_path: Path) -> None:
    assert run(POOL, tmp_path) == "DONE\n"


def refused(host: str, port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0


@pytest.mark.slow
def test_a_child_that_lives_on_keeps_no_port_of_a_killed_parent(tmp_path: Path) -> None:
    with python_process(SETUP + WITH_A_CHILD, env={"WORK_DIR": str(tmp_path)}) as parent:
        target, child = parent.wait_for_line("READY").split()[1:]
        host, port = target.removeprefix("grpc://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            os.kill(parent.pid, 9)
            wait_for(lambda: broken(connection), what="the connection to break")
        wait_for(lambda: refused(host, int(port)), what="the port to be free")  # the end closes one after the other
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_a_child_keeps_no_connection_to_a_service_of_another_process() -> None:
    code = """
import os, socket, dsnb
service = dsnb.connect()
elements = iter(dsnb.Dataset.range(10**9).apply(dsnb.distribute("parallel_epochs", service)))
assert next(elements) == 0
others = socket.create_server(("127.0.0.1", 0)), socket.socketpair()

def connections():
    found = []
    for entry in os.listdir("/dev/fd"):
        try:
            probe = socket.socket(fileno=os.dup(int(entry)))
            found += [probe.getsockname()] if probe.family != socket.AF_UNIX else []
            probe.close()
        except OSError:
            pass
    return found

before = connections()
if not os.fork():
    print(len(before) > 1, connections() == [others[0].getsockname()], len(others[1]), flush=True)
    os._exit(0)
os.wait()
assert len(connections()) >= len(before) and next(elements) == 1
"""
    with dsnb.start(workers=1), PythonProcess(["-c", code], env=QUIET) as process:
        assert process.wait_for_exit(timeout=60) == 0
        assert (process.stdout, process.stderr) == ("True True 2\n", "")


@pytest.mark.slow
def test_a_fork_before_the_first_service_is_free_to_start_one() -> None:
    code = """
import os, dsnb
if not os.fork():
    with dsnb.start(workers=1) as service:
        numbers = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", service))
        print(sum(int(x) for x in numbers), flush=True)
    os._exit(0)
os.wait()
"""
    with PythonProcess(["-c", code], env=QUIET) as process:
        assert process.wait_for_exit(timeout=60) == 0
        assert (process.stdout, process.stderr) == ("45\n", "")

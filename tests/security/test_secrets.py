"""A token is nowhere but where it has to be: a file of its owner's, and the memory of the processes that use it."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.cli.doctor import check_proxies
from dsnb.monitor.snapshot import Snapshot
from dsnb.storage.urls import without_password
from dsnb.wire import discovery
from dsnb.wire.channel import ServerIdentity
from dsnb.wire.codec import encode
from dsnb.wire.discovery import Connection, ResolvedService
from dsnb.wire.messages import WorkerReport
from tests.security.between import traces_of
from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

TOKEN = "t0ken-0f-this-test-which-nobody-knows"


def family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for other in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            yield from family(other)


def seen_of(pid: int) -> bytes:
    """What other users of the machine see of a process, and what its own user's tools list."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.slow
def test_no_argument_list_and_no_environment_holds_the_token() -> None:
    with dsnb.start(workers=2, isolation="process", token=TOKEN) as service:
        numbers = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", service))
        assert len(list(numbers)) == 10
        pids = list(family(os.getpid()))
        assert len(pids) >= 3
        for pid in pids:
            assert traces_of(TOKEN, seen_of(pid)) == []


@pytest.mark.slow
def test_nothing_that_is_printed_pickled_or_kept_holds_the_token(tmp_path: Path) -> None:
    out, err = StringIO(), StringIO()
    started = partial(dsnb.start, workers=1, token=TOKEN, work_dir=tmp_path / "work", name="digits")
    with redirect_stdout(out), redirect_stderr(err), ExitStack() as stack, started() as service:
        numbers = dsnb.Dataset.range(100).batch(2).apply(dsnb.distribute("distributed_epoch", service, "train"))
        with service.record(tmp_path / "run.db"):
            elements = iter(numbers)
            next(elements)
            state = elements.state_dict() if hasattr(elements, "state_dict") else {}
            list(elements)
        service.report(tmp_path / "run.html")
        dispatcher = stack.enter_context(dsnb.DispatchServer(dsnb.DispatcherConfig(token=TOKEN)))
        config = dsnb.WorkerConfig(dispatcher_address=dispatcher.target, token=TOKEN)
        worker = stack.enter_context(dsnb.WorkerServer(config))
        shown: list[Any] = [
            service,
            service.settings,
            service.status(),
            service._repr_html_(),
            service.dashboard(),
            service.explain(0.2),
            numbers,
            numbers.operation,
            elements,
            dispatcher,
            dispatcher.config,
            dispatcher.debug_state(),
            worker,
            worker.config,
            worker.debug_state(),
            discovery.read("digits"),
            discovery.resolve("digits"),
            dsnb.connect("digits"),
        ]
        for each in shown:
            assert traces_of(TOKEN, f"{each!r} {each}".encode()) == [], type(each)
        for each in (service, numbers, state, service.status()):
            assert traces_of(TOKEN, pickle.dumps(each)) == [], type(each)
        snapshot = encode(service.status())
        assert traces_of(TOKEN, snapshot) == []
    assert traces_of(TOKEN, (out.getvalue() + err.getvalue()).encode()) == []
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.db", "run.html", "journal.sqlite"} <= {path.name for path in kept}
    for path in kept:
        assert traces_of(TOKEN, path.read_bytes()) == [], path


def test_no_message_has_a_field_for_a_token() -> None:
    for message in (Snapshot, WorkerReport):
        assert not [name for name in message.__struct_fields__ if "token" in name or "secret" in name]


@pytest.mark.slow
def test_a_worker_that_crashes_tells_no_token() -> None:
    with dsnb.start(workers=1, isolation="process", token=TOKEN) as service:
        [worker] = service.status().workers
        os.kill(worker.pid, signal.SIGABRT)
        wait_for(
            lambda: any("replaced" in event.text for event in service.status().events),
            what="the worker to be replaced",
            timeout=60,
        )
        status = service.status()
    assert any("Fatal Python error" in event.text for event in status.events)
    assert traces_of(TOKEN, repr(status).encode()) == []


@pytest.mark.slow
def test_a_command_that_fails_tells_no_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with PythonProcess(["-m", "dsnb", "status", "127.0.0.1:1", "--token-file", str(file)]) as process:
        assert process.wait_for_exit() == 1
        assert traces_of(TOKEN, (process.stdout + process.stderr).encode()) == []


def test_what_a_service_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        with dsnb.start(workers=1, work_dir=work, name="digits") as service:
            assert len(list(dsnb.Dataset.range(3).apply(dsnb.distribute("distributed_epoch", service)))) == 3
            with discovery.runtime_dir().joinpath("digits.json").open() as file:
                assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
            for path in work.rglob("*"):
                mode = path.stat().st_mode & 0o777
                assert mode == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_connection_file_of_another_user_is_not_believed() -> None:
    """In a folder that others can write to it would lead pipelines and readers to their server."""
    with dsnb.start(workers=0, name="digits") as service:
        path = discovery.runtime_dir() / "digits.json"
        assert discovery.find("digits").target == service.target
        os.chown(path, 12345, 12345)
        try:
            assert discovery.running() == []
            assert discovery.connection_at(service.target) is None
        finally:
            os.chown(path, os.geteuid(), -1)


@pytest.mark.parametrize(
    "where, shown",
    [
        ("redis://:secret@host:6379/0", "redis://host:6379/0"),
        ("redis://host:6379/0?password=secret", "redis://host:6379/0"),
        ("rediss://me:secret@host/0?username=me&password=secret", "rediss://host/0"),
        ("/data/cache?x@y", "/data/cache?x@y"),
    ],
)
def test_a_place_is_shown_without_its_password(where: str, shown: str) -> None:
    assert without_password(where) == shown
    if where.startswith("redis"):
        recorded = dsnb.Dataset.range(3).cache(where)
        for each in (recorded, recorded.operation):
            assert "secret" not in shown_by_libraries(each)


def shown_by_libraries(value: object) -> str:
    """How a value is shown in cells, logs and tracebacks: by its `repr`, and by what the library rich shows of it."""
    return repr(value) + repr(list(getattr(value, "__rich_repr__", list)()))


@pytest.mark.parametrize(
    "value",
    [
        Connection(name="a", target="grpc://host:1", token=TOKEN, pid=1, started="now"),
        ResolvedService(name="a", target="grpc://host:1", token=TOKEN),
        ServerIdentity(token=TOKEN, instance="i"),
        dsnb.DispatcherConfig(token=TOKEN),
        dsnb.WorkerConfig("127.0.0.1:1", token=TOKEN),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_a_token_is_shown_without_it(value: object) -> None:
    assert TOKEN not in shown_by_libraries(value)


def test_a_proxy_is_shown_without_its_password() -> None:
    for environment in ({"https_proxy": "http://me:secret@proxy:3128"}, {"https_proxy": "me:secret@proxy:3128"}):
        found = check_proxies(environment)
        assert "proxy:3128" in found.text
        assert "secret" not in found.text

"""What goes wrong around a training cache: each has its error or its fallback, and costs no valid entry."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsnb.cache.results import store
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import DataLossError, DsnbError, FailedPreconditionError, UnavailableError
from dsnb.storage import sqlite as database
from dsnb.storage.failpoints import When, failpoint_hook
from dsnb.storage.filesystem import FileSystem
from dsnb.storage.process_identity import this_process
from tests.cache.steps import MEBIBYTE, Output, get, known, put, results
from tests.support.processes import PythonProcess, python_process
from tests.support.waiting import wait_for

Open = Callable[..., LocalTrainingCache]


def failing(step: str, number: int) -> Callable[[str, When], None]:
    """A hook that lets a step fail."""

    def fail(name: str, when: When) -> None:
        if (name, when) == (step, "before"):
            raise OSError(number, os.strerror(number))

    return fail


# ---------------------------------------------------------------------------------------------------------- a full disk


@pytest.mark.parametrize("step", ["result write", "result sync"])
def test_a_result_for_which_the_disk_is_full_keeps_its_fingerprint(open_cache: Open, step: str) -> None:
    cache = open_cache()
    put(cache, "a")
    with failpoint_hook(failing(step, errno.ENOSPC)):
        put(cache, "b")
    assert known(cache, "b")
    assert get(cache, "b") is None
    assert get(cache, "a") == Output("a")
    assert len(results(cache)) == 1


@pytest.mark.parametrize("step", ["result make", "result folder", "entry commit"])
def test_a_step_that_fails_under_the_lock_stores_nothing_and_leaves_nothing(open_cache: Open, step: str) -> None:
    cache = open_cache(max_size=0.0625)
    for name in "ab":
        put(cache, name, 30_000)
    with failpoint_hook(failing(step, errno.EIO)), pytest.raises(UnavailableError, match="Input/output error"):
        put(cache, "c", 30_000)
    assert not known(cache, "c")
    assert [name for name in "ab" if get(cache, name)] == ["a", "b"]  # and the room that was made is not lost either
    assert len(results(cache)) == 2
    put(cache, "c", 30_000)
    assert get(cache, "c")


def test_a_file_that_may_not_grow_is_an_error_and_costs_no_entry(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(DsnbError):
            put(cache, "b", MEBIBYTE)  # neither the result nor the database can grow
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert get(cache, "a") == Output("a")
    assert len(results(cache)) == 1
    put(cache, "b")
    assert get(cache, "b")


# ------------------------------------------------------------------------------------------------ folders and databases


AS_NOBODY = """
import os, sys, urllib.parse  # all that is imported later, when this interpreter's files may be out of reach
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import PermissionDeniedError
from tests.cache.steps import Output, get, known, put, storage
directory = sys.argv[1]
if os.getuid() == 0:  # root itself may write anywhere
    os.setgroups([])
    os.setuid(65534)
"""


def as_nobody(code: str, directory: Path) -> None:
    """Run code in a process that may not write what this user owns."""
    with PythonProcess(["-c", AS_NOBODY + code, str(directory)]) as process:
        assert process.wait_for_exit(timeout=60) == 0, process.describe()


READ_ONLY = """
with LocalTrainingCache(directory) as reading:
    assert known(reading, "a")
    assert get(reading, "a") == Output("a", 1000)
    put(reading, "b")
    assert not known(reading, "b")
"""


@contextmanager
def reachable(folder: Path, base: Path) -> Iterator[None]:
    """Let others look for a folder among pytest's; it and all in it may be read only."""
    if not all(path.stat().st_mode & 0o001 for path in base.parents):
        pytest.skip("the folder of temporary folders is this user's alone")
    above = [path for path in folder.parents if path.is_relative_to(base)]
    before = [(path, path.stat().st_mode) for path in [*above, folder, *folder.rglob("*")]]
    try:
        for path, mode in before:
            within = path == folder or folder in path.parents
            path.chmod((0o555 if path.is_dir() else 0o444) if within else mode | 0o055)
        yield
    finally:
        for path, mode in before:
            path.chmod(mode)


def test_a_read_only_folder_is_read_from(open_cache: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = open_cache()
    put(cache, "a", 1000)
    cache.close()
    with reachable(cache.directory, tmp_path_factory.getbasetemp().parent):
        as_nobody(READ_ONLY, cache.directory)
    assert get(open_cache(), "a") == Output("a", 1000)


def test_a_read_only_folder_is_read_from_while_its_owner_writes(
    open_cache: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if os.getuid():
        pytest.skip("only root can be two users")
    cache = open_cache()
    put(cache, "a", 1000)  # is in the journal still, which the reader has to see
    with reachable(cache.directory, tmp_path_factory.getbasetemp().parent):
        as_nobody(READ_ONLY, cache.directory)
        put(cache, "c")
    assert get(cache, "c")


def test_no_cache_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DsnbError, match="opening the cache"):
        LocalTrainingCache(tmp_path / "file" / "cache")
    code = """
try:
    LocalTrainingCache(directory)
except PermissionDeniedError as error:
    assert "opening the cache" in str(error)
else:
    raise AssertionError("it was opened")
"""
    as_nobody(code, Path("/proc/dsnb-no-such-folder") if os.getuid() else Path("/dsnb-no-such-folder"))


def test_a_cache_of_a_newer_version_is_left_alone(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    cache.close()
    connection = sqlite3.connect(cache.directory / cache.name)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = {path: path.stat().st_mtime_ns for path in cache.directory.rglob("*")}
    with pytest.raises(FailedPreconditionError, match=r"newer version of dsnb \(format 99, not 2\)"):
        open_cache()
    assert {path: path.stat().st_mtime_ns for path in cache.directory.rglob("*")} == before


def test_a_damaged_database_is_named_and_left_alone(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    cache.close()
    (cache.directory / "cache.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(DataLossError, match=r"cache\.db.*not a database"):
        open_cache()
    assert (cache.directory / "cache.db").read_bytes().startswith(b"no database")
    assert len(list(cache.directory.iterdir())) == 2


def test_a_database_damaged_while_it_is_open_breaks_no_training(
    open_cache: Open, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache()
    put(cache, "a")
    cache.close()
    (cache.directory / "cache.db").write_bytes(b"no database at all" * 1000)
    assert cache.get_cached_output_fingerprint("key a") is None
    assert get(cache, "a") is None
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.parametrize("kind", ["nfs4", "9p", "fuse.sshfs"])
def test_network_file_systems_are_refused_with_advice(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(database, "filesystem_of", lambda path: FileSystem(kind=kind, mount="/net"))
    with pytest.raises(FailedPreconditionError, match=f"lies on {kind} at /net, a network file system") as error:
        open_cache()
    assert "DSNB_CACHE_DIRECTORY" in error.value.hint


@pytest.mark.parametrize("local, journal", [(True, "wal"), (False, "delete")])
def test_what_sort_of_journal_is_written_follows_from_the_file_system(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch, local: bool, journal: str
) -> None:
    monkeypatch.setattr(database, "filesystem_of", lambda path: FileSystem(kind="ext4" if local else "any", mount="/"))
    cache = open_cache()
    put(cache, "a")
    assert get(cache, "a")
    with cache.store.reading() as index:
        assert index.database.value("PRAGMA journal_mode") == journal


# --------------------------------------------------------------------------------------------------- time and processes


def test_a_clock_that_jumps_changes_nothing(open_cache: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(max_size=5)
    for jump, name in ((0.0, "a"), (-1e9, "b"), (+1e9, "c"), (-1e6, "d")):
        now = time.time() + jump
        monkeypatch.setattr(time, "time", lambda now=now: now)
        put(cache, name, 2 * MEBIBYTE)
        assert get(cache, "a")  # touched each time, so that it stays
    assert [name for name in "abcd" if known(cache, name)] == ["a", "d"]


def test_a_process_stopped_in_a_transaction_lets_others_read(open_cache: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHORT_TIMEOUT_S", 0.1)
    cache = open_cache()
    put(cache, "a")
    code = f"""
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
cache = LocalTrainingCache({str(cache.directory)!r})
with cache.store.reading() as index, index.database.transaction():
    print("READY")
    input()
"""
    with python_process(code):
        assert known(cache, "a")
        assert get(cache, "a") == Output("a")


STOPPING = """
import os, signal, sys
from dsnb.storage.failpoints import failpoint_hook
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
from tests.cache.steps import Output, get, put
passing = [int(sys.argv[3])]
def stop(name, when):
    if f"{name} {when}" == sys.argv[2]:
        passing[0] -= 1
        if not passing[0]:
            os.kill(os.getpid(), signal.SIGSTOP)
with LocalTrainingCache(sys.argv[1]) as cache:
    with failpoint_hook(stop):
        put(cache, "b", 1000)
    assert get(cache, "b") == Output("b", 1000)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "point, passing",
    [
        ("result make before", 1),
        ("result make after", 1),
        ("result write after", 1),
        ("entry commit before", 1),  # of the folder that is about to be made
        ("entry commit before", 2),  # of the entry
        ("entry commit after", 2),
    ],
)
def test_a_process_stopped_at_a_point_lets_others_read_and_goes_on_later(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch, point: str, passing: int
) -> None:
    monkeypatch.setattr(store, "SHORT_TIMEOUT_S", 0.1)
    cache = open_cache()
    put(cache, "a")
    with PythonProcess(["-c", STOPPING, str(cache.directory), point, str(passing)]) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_for(lambda: ") T " in stat.read_text(), what="the process to stop", timeout=60)
        assert known(cache, "a")
        assert get(cache, "a") == Output("a")
        open_cache()  # sweeps nothing of what the stopped one is writing
        process.popen.send_signal(signal.SIGCONT)
        assert process.wait_for_exit(timeout=60) == 0, process.describe()
    assert get(cache, "b") == Output("b", 1000)
    with cache.store.reading() as index:
        assert {path.name for path in results(cache)} == index.locations()


@pytest.mark.slow
def test_a_process_that_keeps_the_lock_is_an_error_after_a_while(
    open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    put(cache, "a")
    blocking = sqlite3.connect(cache.directory / cache.name, isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(TRAINING_CACHE, "busy_timeout_s", 0.1)
    with pytest.raises(UnavailableError, match="locked"):
        put(cache, "b")
    assert known(cache, "a")
    blocking.execute("ROLLBACK")
    blocking.close()
    put(cache, "b")
    assert get(cache, "b")


FORKING = """
import os, sys
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
from tests.cache.steps import Output, get, put
with LocalTrainingCache(sys.argv[1]) as cache:
    put(cache, "a")
    child = os.fork()
    if not child:
        assert get(cache, "a") == Output("a")
        put(cache, "b")
        cache.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert get(cache, "b") == Output("b")
    put(cache, "c")
"""


def test_a_fork_has_a_connection_of_its_own(open_cache: Open, tmp_path: Path) -> None:
    with PythonProcess(["-c", FORKING, str(tmp_path / "cache")]) as process:
        assert process.wait_for_exit(timeout=60) == 0, process.describe()
    cache = open_cache()
    assert [name for name in "abc" if get(cache, name)] == ["a", "b", "c"]


def test_a_closed_cache_opens_again_when_it_is_used(open_cache: Open) -> None:
    cache = open_cache()
    put(cache, "a")
    cache.close()
    cache.close()
    assert get(cache, "a") == Output("a")


def test_a_dropped_cache_closes_its_database(tmp_path: Path) -> None:
    cache = LocalTrainingCache(tmp_path / "cache")
    put(cache, "a")
    del cache
    names = [os.path.basename(path) for path in (tmp_path / "cache").iterdir()]
    assert "cache.db-wal" not in names


def test_threads_may_share_a_cache(open_cache: Open) -> None:
    cache = open_cache(max_size=0.5)
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for turn in range(15):
                name = str((number + turn) % 5)
                put(cache, name, 20_000)
                assert get(cache, name) == Output(name, 20_000)
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(results(cache)) == 5


def test_what_a_gone_process_was_writing_goes_and_what_a_living_one_writes_stays(open_cache: Open) -> None:
    cache = open_cache()
    place, _, started = this_process().unique_id().split("-")
    with cache.store.new_folder() as writing:
        left = cache.directory / "result-00ff"
        left.mkdir()
        with cache.store.reading() as index, index.database.transaction():
            holder = f"{place}-{2**22 + 1}-{started}"
            index.database.execute("INSERT INTO folder VALUES (?, ?, ?)", left.name, holder, time.time())
        open_cache()
        assert writing.is_dir()
        assert not left.exists()
    assert results(cache) == []


HAMMER = """
import random, sys, time
from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.training import LocalTrainingCache
from tests.cache.steps import get, put
seed, seconds = int(sys.argv[1]), float(sys.argv[2])
chance = random.Random(seed)
until = time.monotonic() + seconds
done = 0
with LocalTrainingCache(max_size=0.25) as cache:
    print("READY", flush=True)
    while time.monotonic() < until:
        name = str(chance.randrange(20))
        if chance.random() < 0.5:
            put(cache, name, chance.choice([100, 20_000, 60_000]))
        else:
            get(cache, name)
        assert cache.used <= 0.25 * (1 << 20)
        done += 1
print("DONE", done)
"""


def hammer(folder: Path, seconds: float) -> int:
    """Two processes put and get at one cache; each checks all bytes that it reads."""
    env = {"DSNB_CACHE_DIRECTORY": str(folder / "cache")}
    with (
        PythonProcess(["-c", HAMMER, "1", str(seconds)], env=env) as first,
        PythonProcess(["-c", HAMMER, "2", str(seconds)], env=env) as second,
    ):
        done = [int(process.wait_for_line("DONE", timeout=seconds + 60).split()[1]) for process in (first, second)]
        for process in (first, second):
            assert process.wait_for_exit() == 0
            assert "could not be read" not in process.stderr, process.describe()
            assert "damaged" not in process.stderr, process.describe()
    return min(done)


@pytest.mark.slow
def test_two_processes_hammer_one_cache(tmp_path: Path, open_cache: Open) -> None:
    assert hammer(tmp_path, 3.0) > 10
    cache = open_cache()
    with cache.store.reading() as index:
        assert {path.name for path in results(cache)} == index.locations()


@pytest.mark.soak
def test_two_processes_hammer_one_cache_for_a_minute(tmp_path: Path) -> None:
    assert hammer(tmp_path, 60.0) > 1000

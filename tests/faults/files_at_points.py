"""Kills, suspends or fails a process at the failpoints of its files, and looks at what is there.

Run as a program, in an interpreter of its own, which forks its victims.

    python -m tests.faults.files_at_points
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import dsnb
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.dispatcher.blobs import BlobStore
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import Record
from dsnb.errors import DsnbError
from dsnb.monitor.run_file import RUN_FILE
from dsnb.pipeline.saving import MANIFEST
from dsnb.storage.failpoints import FAILPOINTS, Action, When, failpoint_hook
from dsnb.storage.files import write_private_file
from dsnb.storage.sqlite import Database
from dsnb.wire import discovery
from dsnb.wire.blobs import blob_digest
from dsnb.wire.security import load_or_create_token
from tests.cache import killing
from tests.cache.steps import put
from tests.dispatcher.simulation import Service
from tests.faults.points import NotedFault
from tests.support.ports import unused_port

DATA = {"old": b"old" * 1000, "new": b"new" * 1000}


@dataclass(frozen=True)
class File:
    """One kind of file, of which a version replaces another one.

    Attributes:
        points: The failpoints that a writer passes, in order.
        visible: The one at which the new version gets visible.
        write: Writes a version into a folder.
        look: The version that is there, or something else.
        first: Whether the new version is the first one.
        locked: Whether a suspended writer keeps others from looking.
    """

    points: tuple[str, ...]
    visible: str
    write: Callable[[Path, str], object]
    look: Callable[[Path], str]
    first: bool = False
    locked: bool = False


def _records() -> dict[str, list[Record]]:
    service = Service()
    service.add_worker("w0")
    service.register(10, 2)
    return {"old": service.records[:1], "new": service.records[1:]}


RECORDS = _records()
PORTS = {"old": unused_port(), "new": unused_port()}


def _write_journal(folder: Path, version: str) -> None:
    with closing(Journal(folder / "journal")) as journal:
        journal.load()
        journal.append(RECORDS[version])


def _look_at_journal(folder: Path) -> str:
    with closing(Journal(folder / "journal")) as journal:
        state = journal.load()
    return "new" if state.datasets else "old"


def _write_run_file(folder: Path, version: str) -> None:
    with closing(Database(folder / "run.db", RUN_FILE)) as database, database.transaction():
        database.execute("INSERT INTO snapshots VALUES (?, ?)", 1.0 if version == "old" else 2.0, DATA[version])


def _look_at_run_file(folder: Path) -> str:
    with closing(Database(folder / "run.db", RUN_FILE)) as database:
        found = database.column("SELECT data FROM snapshots ORDER BY time")
    return "new" if found == [DATA["old"], DATA["new"]] else "old" if found == [DATA["old"]] else repr(found)


def _version(data: bytes | None) -> str:
    return next((version for version, whole in DATA.items() if data == whole), "old" if data is None else repr(data))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _look_at_token(folder: Path) -> str:
    return "new" if (folder / "token").exists() and load_or_create_token(folder / "token") else "old"


def _write_connection(folder: Path, version: str) -> None:
    os.environ["DSNB_RUNTIME_DIR"] = str(folder)
    discovery.publish("service", version, "token")


def _look_at_connection(folder: Path) -> str:
    return str(json.loads((folder / "service.json").read_bytes())["target"])


def _write_port(folder: Path, version: str) -> None:
    dsnb.DispatchServer(dsnb.DispatcherConfig(port=PORTS[version], work_dir=folder)).stop()


def _look_at_port(folder: Path) -> str:
    port = (folder / "port").read_text()
    return next((version for version in PORTS if port == str(PORTS[version])), repr(port))


def _write_blob(folder: Path, version: str) -> None:
    BlobStore(folder / "blobs").put(blob_digest(DATA[version]), DATA[version])


def _look_at_blob(folder: Path) -> str:
    store = BlobStore(folder / "blobs")
    there = [version for version, data in DATA.items() if not store.missing((blob_digest(data),))]
    assert all(bytes(store.get(blob_digest(DATA[version]))) == DATA[version] for version in there)
    return "new" if there == ["old", "new"] else "old" if there == ["old"] else repr(there)


def _write_sweep(folder: Path, version: str) -> None:
    """The new version is without what a process left that was killed while it wrote."""
    if version == "old":
        with failpoint_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
            _forked(lambda: _write_blob(folder, "old"))
    else:
        BlobStore(folder / "blobs")


def _look_at_sweep(folder: Path) -> str:
    return "old" if list((folder / "blobs").iterdir()) else "new"


def _save(folder: Path, version: str) -> None:
    if not (folder / "saved").exists():
        dsnb.Dataset.range(3).save(folder / "saved")


def _look_at_saved(folder: Path) -> str:
    if not (folder / "saved").exists():
        return "old"
    assert (folder / "saved" / MANIFEST).exists()
    return "new" if [int(x) for x in dsnb.Dataset.load(folder / "saved")] == [0, 1, 2] else "something else"


def _use_cache(folder: Path, version: str) -> None:
    with LocalTrainingCache(folder / "cache", max_size=killing.LIMIT) as cache:
        for number in range(3):  # more than it holds, so that room is made
            put(cache, f"{version}{number}", 30_000)


def _look_at_cache(folder: Path) -> str:
    return "; ".join(killing.look(folder)) or "whole"


FILES = {
    "journal": File(("journal commit",), "journal commit", _write_journal, _look_at_journal, locked=True),
    "run file": File(("run file commit",), "run file commit", _write_run_file, _look_at_run_file),
    "certificate or join file": File(
        ("private file write", "private file name"),
        "private file name",
        lambda folder, version: write_private_file(str(folder / "it"), DATA[version]),
        lambda folder: _version(_read(folder / "it")),
    ),
    "token": File(
        ("token name",),
        "token name",
        lambda folder, version: load_or_create_token(folder / "token"),
        _look_at_token,
        first=True,
    ),
    "connection file": File(("connection file name",), "connection file name", _write_connection, _look_at_connection),
    "port": File(("port name",), "port name", _write_port, _look_at_port),
    "blob": File(("blob name",), "blob name", _write_blob, _look_at_blob),
    "blobs of the dead": File(("blob sweep",), "blob sweep", _write_sweep, _look_at_sweep),
    "saved dataset": File(
        tuple(
            f"saved {step}"
            for step in ("manifest write", "manifest sync", "manifest name", "manifest folder", "name", "folder sync")
        ),
        "saved name",
        _save,
        _look_at_saved,
        first=True,
    ),
    "training cache": File(tuple(killing.POINTS_OF_THE_CACHE), "", _use_cache, _look_at_cache, locked=True),
}


def problem(file: File, point: str, when: When, action: Action) -> str:
    """What is wrong after something is done to a writer there; nothing if all is well."""
    with tempfile.TemporaryDirectory(prefix="files-") as name:
        folder = Path(name)
        (folder / "it").mkdir()
        try:
            _strike(file, folder / "it", NotedFault(f"{point}/{when}:{action}", folder / "reached"))
        except AssertionError as error:
            return str(error) or traceback.format_exc()
        return "" if (folder / "reached").exists() else "the failpoint was not reached"


def _strike(file: File, folder: Path, fault: NotedFault) -> None:
    if not file.first:
        assert _forked(lambda: file.write(folder, "old")) == 0, "the old version could not be written"
    victim = _fork(lambda: _write_at(file, folder, fault))
    _, status = os.waitpid(victim, os.WUNTRACED)
    expected = _expected(file, fault.name, fault.when)
    if os.WIFSTOPPED(status):
        if not file.locked:
            _look(file, folder, expected)
        os.kill(victim, signal.SIGCONT)
        _, status = os.waitpid(victim, 0)
        expected = _expected(file, file.visible, "after")
    code = os.waitstatus_to_exitcode(status)
    assert code == (-signal.SIGKILL if fault.action == "kill" else 0), f"the writer ended with {code}"
    _look(file, folder, expected)
    if expected != "new":
        assert _forked(lambda: file.write(folder, "new")) == 0, "what was left is in the way"
        _look(file, folder, _expected(file, file.visible, "after"))


def _write_at(file: File, folder: Path, fault: NotedFault) -> None:
    with failpoint_hook(fault):
        try:
            file.write(folder, "new")
        except (OSError, sqlite3.Error, DsnbError):
            assert fault.action == "fail", "no error is expected"


def _expected(file: File, point: str, when: When) -> str:
    if not file.visible:
        return "whole"
    at, visible = file.points.index(point), file.points.index(file.visible)
    return "new" if at > visible or (at == visible and when == "after") else "old"


def _look(file: File, folder: Path, expected: str) -> None:
    answer = folder.parent / "looked"
    answer.unlink(missing_ok=True)
    assert _forked(lambda: answer.write_text(file.look(folder))) == 0, "what is there cannot be read"
    assert answer.read_text() == expected, f"{answer.read_text()} is there, and not {expected}"


def _forked(act: Callable[[], object]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(_fork(act), 0)[1])


def _fork(act: Callable[[], object]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        act()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent sees the status, a person the traceback
        traceback.print_exc()
    os._exit(code)


def main() -> None:
    """Print what each case found: empty where nothing is wrong."""
    found = {}
    for file in FILES.values():
        for point in file.points:
            kinds: list[tuple[When, Action]] = [
                (when, act) for when in ("before", "after") for act in ("kill", "suspend")
            ]
            kinds += [("before", "fail")] if FAILPOINTS[point].error else []
            for when, action in kinds:
                begun = time.monotonic()
                found[f"{point}/{when}:{action}"] = problem(file, point, when, action)
                sys.stderr.write(f"{point}/{when}:{action}: {time.monotonic() - begun:.1f} s\n")
    sys.stdout.write(f"FOUND {json.dumps(found)}\n")


if __name__ == "__main__":
    main()

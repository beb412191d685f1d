"""No service runs without a token, wherever an empty one comes from: a full disk, a variable, an argument, a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import DsnbError, FailedPreconditionError, InvalidArgumentError
from tests.support.processes import PythonProcess

FULL_DISK = """
import os, sys
sys.path.insert(0, {root!r})
from tests.support.disks import mount
folder = sys.argv[1]
try:
    mount(folder, "64k")
except OSError as error:
    print("CANNOT", error, flush=True)
    raise SystemExit
with open(os.path.join(folder, "filler"), "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
import dsnb
for attempt in ("full", "with room"):
    try:
        server = dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=folder))
    except dsnb.errors.DsnbError as error:
        print("REFUSED", attempt, type(error).__name__, error.what.replace(chr(10), " "), flush=True)
    else:
        print("STARTED", attempt, len(server.token), flush=True)
        server.stop()
    print("LEFT", sorted(name for name in os.listdir(folder) if "token" in name), flush=True)
    os.truncate(os.path.join(folder, "filler"), 0)
"""

CUT_SHORT = """
import os, resource, signal, sys, dsnb
folder = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, hard))
try:
    dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=folder))
except dsnb.errors.DsnbError as error:
    refused = error.what
left = sorted(name for name in os.listdir(folder) if "token" in name)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))  # which holds for what is printed too
print("REFUSED", refused, left, flush=True)
with dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=folder)) as server:
    print("STARTED", len(server.token), flush=True)
"""


@pytest.mark.slow
def test_a_full_disk_leaves_no_empty_token_behind(tmp_path: Path) -> None:
    """One that was left empty switched authentication off at the next start."""
    folder = tmp_path / "work"
    folder.mkdir()
    code = FULL_DISK.format(root=str(Path(__file__).resolve().parents[2]))
    with PythonProcess(["-c", code, str(folder)]) as process:
        process.wait_for_exit(timeout=60)
        if process.stdout.startswith("CANNOT"):
            pytest.skip(f"no disk of one's own can be mounted here: {process.stdout}")
        lines = process.stdout.splitlines()
    assert lines[0].startswith("REFUSED full NotFoundError the token file"), lines
    assert "cannot be made (No space left on device)" in lines[0]
    assert lines[1] == "LEFT []"
    # With room for the token it starts, or is refused for want of room for its journal; never without a token.
    assert "STARTED with room 32" in lines[2] or "REFUSED with room" in lines[2]
    assert lines[3] == "LEFT ['token']"


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 5], ids=["nothing is written", "a part is written"])
def test_a_token_that_cannot_be_written_whole_leaves_no_file_behind(tmp_path: Path, room: int) -> None:
    """As on a full disk, for which a disk of one's own would have to be mounted."""
    folder = tmp_path / "work"
    with PythonProcess(["-c", CUT_SHORT.format(room=room), str(folder)]) as process:
        assert process.wait_for_exit(timeout=60) == 0, process.describe()
        refused, started = process.stdout.splitlines()
    assert refused == f"REFUSED the token file '{folder / 'token'}' cannot be made (File too large) []"
    assert started == "STARTED 32"


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"\n", bytes(32)], ids=["empty", "blank", "zeros"])
def test_a_work_dir_with_a_damaged_token_is_explained_and_nothing_starts(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "work"
    dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=folder)).stop()
    token = folder / "token"
    assert token.stat().st_size > 30
    token.write_bytes(content)
    with pytest.raises(FailedPreconditionError) as caught:
        dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=folder))
    assert str(token) in caught.value.what
    assert "without a token everybody could run code here" in caught.value.did
    assert "remove it, and the service makes a new token" in caught.value.hint
    assert token.read_bytes() == content
    with PythonProcess(["-m", "dsnb", "dispatcher", "--work-dir", str(folder)]) as process:
        assert process.wait_for_exit() == 1
        assert f"the token file '{token}' is" in process.stderr
        assert "Traceback" not in process.stderr
    token.unlink()
    dsnb.DispatchServer(dsnb.DispatcherConfig(work_dir=folder)).stop()
    assert token.stat().st_size > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda empty, target: dsnb.DispatcherConfig(token=empty),
        lambda empty, target: dsnb.WorkerConfig(dispatcher_address=target, token=empty),
        lambda empty, target: dsnb.start(workers=0, token=empty),
        lambda empty, target: dsnb.connect(target, token=empty),
    ],
    ids=["DispatcherConfig", "WorkerConfig", "start", "connect"],
)
@pytest.mark.parametrize("empty", ["", " ", "\n"], ids=["nothing", "blank", "newline"])
def test_an_empty_token_is_refused_as_an_argument(make: Callable[..., Any], empty: str) -> None:
    with dsnb.DispatchServer() as dispatcher:
        with pytest.raises(InvalidArgumentError, match="is empty, and an empty token would let everybody in") as caught:
            make(empty, dispatcher.target)
        assert caught.value.what.startswith("`token` is empty")


COMMANDS = [
    ["dispatcher"],
    ["worker", "--dispatcher", "127.0.0.1:1"],
    ["status", "127.0.0.1:1"],
    ["top", "127.0.0.1:1"],
    ["jobs", "127.0.0.1:1"],
    ["dashboard", "127.0.0.1:1", "--no-open"],
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_an_empty_variable_is_refused_by_each_command(command: list[str]) -> None:
    with PythonProcess(["-m", "dsnb", *command], env={"DSNB_TOKEN": ""}) as process:
        assert process.wait_for_exit() == 2, "a wrong use"
        assert "the environment variable DSNB_TOKEN is empty" in process.stderr
        assert "Traceback" not in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("file", [os.devnull, "empty"])
def test_an_empty_token_file_is_refused_by_each_command(command: list[str], file: str, tmp_path: Path) -> None:
    if file == "empty":
        file = str(tmp_path / "token")
        Path(file).touch()
    with PythonProcess(["-m", "dsnb", *command, "--token-file", file]) as process:
        assert process.wait_for_exit() == 1
        assert f"the token file '{file}' is" in process.stderr
        assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: dsnb.DispatcherConfig(work_dir=""),
        lambda: dsnb.start(workers=0, work_dir=""),
    ],
    ids=["DispatcherConfig", "start"],
)
def test_an_empty_work_dir_is_not_the_current_folder(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="`work_dir` is empty"):
        make()
    with PythonProcess(["-m", "dsnb", "dispatcher", "--work-dir", ""]) as process:
        assert process.wait_for_exit() == 2, "a wrong use"
        assert "`work_dir` is empty" in process.stderr
    assert os.listdir(tmp_path) == []


def test_a_pipe_may_bring_a_token(tmp_path: Path) -> None:
    """As `--token-file <(pass show service)` does; it can be read once."""
    os.mkfifo(tmp_path / "token")
    code = f"import sys; open({str(tmp_path / 'token')!r}, 'w').write('a-token-from-a-pipe')"
    arguments = ["-m", "dsnb", "dispatcher", "--json", "--token-file", str(tmp_path / "token")]
    with PythonProcess(arguments) as process, PythonProcess(["-c", code]):
        target = json.loads(process.wait_for_line("{"))["target"]
        assert dsnb.connect(target, token="a-token-from-a-pipe").status().target == target
        with pytest.raises(DsnbError):
            dsnb.connect(target, token="another")

"""Connection files are found by their owner alone, tell the truth, and do not outlive their process."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dsnb.errors import AlreadyExistsError, DeadlineExceededError, InvalidArgumentError, NotFoundError
from dsnb.wire import discovery
from dsnb.wire.discovery import (
    Connection,
    certificate_for,
    claim,
    connection_at,
    find,
    forget_token,
    publish,
    read,
    remember_token,
    remove_stale,
    resolve,
    retract,
    running,
    runtime_dir,
    service_name,
    stop_reason,
    token_for,
)
from dsnb.wire.join_file import JoinFile, write_join_file
from tests.support.processes import PythonProcess, python_process

TARGET = "grpc://127.0.0.1:5050"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Connection files of each test in a folder of its own, which is not there yet."""
    place = tmp_path / "made" / "on demand"
    monkeypatch.setenv("DSNB_RUNTIME_DIR", str(place))
    yield place
    assert discovery.debug_state() == {}, "tokens are known in this process after the test"


def fields(**changes: Any) -> dict[str, Any]:
    """What a file of a service in this process holds."""
    whole = {"name": "s", "target": TARGET, "token": "t", "pid": os.getpid(), "started": own_start(), "lasting": False}
    return {**whole, **changes}


def own_start() -> str:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def write(folder: Path, content: str | bytes | dict[str, Any], name: str = "s") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    raw = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return path


# ---- the files


def test_a_service_is_found_by_what_was_published(folder: Path) -> None:
    connection = publish("mine", TARGET, "secret")
    assert read("mine") == connection
    assert (connection.name, connection.target, connection.token) == ("mine", TARGET, "secret")
    assert (connection.pid, connection.started) == (os.getpid(), own_start())
    assert running() == [connection]


def test_files_and_folder_are_their_owners_alone(folder: Path) -> None:
    old = os.umask(0)
    try:
        publish("mine", TARGET, "secret")
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "mine.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_but_the_file_is_left_in_the_folder(folder: Path) -> None:
    publish("mine", TARGET, "secret")
    publish("mine", TARGET, "another")
    assert [path.name for path in folder.iterdir()] == ["mine.json"]
    assert read("mine") == Connection(**fields(name="mine", token="another"))


def test_a_name_that_another_service_has_is_taken(folder: Path) -> None:
    first = publish("mine", TARGET, "secret")
    with pytest.raises(AlreadyExistsError, match="runs in this process") as caught:
        publish("mine", "grpc://127.0.0.1:6060", "other")
    assert "dsnb.connect('mine')" in caught.value.hint
    assert read("mine") == first


def test_a_service_takes_back_its_own_file_and_no_others(folder: Path) -> None:
    connection = publish("mine", TARGET, "secret")
    retract(Connection(**fields(name="mine", token="another")))
    assert read("mine") == connection
    retract(connection)
    assert read("mine") is None
    retract(connection)


def test_two_services_are_told_apart(folder: Path) -> None:
    with python_process(
        "import os, json; from dsnb.wire.discovery import publish;"
        "publish('theirs', 'grpc://127.0.0.1:6060', 'their-token'); print('READY', os.getpid()); input()"
    ) as other:
        mine = publish("mine", TARGET, "my-token")
        assert [connection.name for connection in running()] == ["mine", "theirs"]
        assert find("mine") == find(TARGET) == find("127.0.0.1:5050") == find("localhost:5050") == mine
        theirs = find("grpc://127.0.0.1:6060")
        assert (theirs.name, theirs.pid) == ("theirs", other.pid)
        assert token_for("127.0.0.1:6060") == "their-token"
        with pytest.raises(NotFoundError, match="2 services run here") as caught:
            find()
        assert "mine (grpc://127.0.0.1:5050), theirs (grpc://127.0.0.1:6060)" in caught.value.hint
        other.kill()
        assert running() == [mine]
        assert not (folder / "theirs.json").exists(), "whoever finds it removes it"
        assert find() == mine


# ---- how a service ends


def test_how_a_service_ended_is_known_from_its_file_and_process(folder: Path) -> None:
    connection = publish("mine", TARGET, "t")
    assert connection_at("localhost:5050") == connection_at(TARGET) == connection
    assert connection_at("127.0.0.1:6060") is None
    assert stop_reason(connection) == ""
    another = publish("mine", TARGET, "another token")
    assert (stop_reason(connection), stop_reason(another)) == ("it was stopped", "")
    retract(another)
    assert stop_reason(another) == "it was stopped"
    assert stop_reason(Connection(**fields(pid=2**22 + 1))) == "its process 4194305 is gone"


def test_a_service_that_keeps_its_state_may_come_back(folder: Path) -> None:
    connection = publish("mine", TARGET, "t", lasting=True)
    assert running() == [connection]
    retract(connection)
    assert stop_reason(connection) == ""


# ---- what is not a living service


def test_the_file_of_a_dead_process_is_removed(folder: Path) -> None:
    with PythonProcess(["-c", "pass"]) as process:
        process.wait_for_exit()
    path = write(folder, fields(pid=process.pid))
    assert read("s") is None
    assert not path.exists()


def test_the_file_of_a_process_whose_id_was_given_to_another_is_removed(folder: Path) -> None:
    path = write(folder, fields(started=str(int(own_start()) - 1)))
    assert running() == []
    assert not path.exists()


def test_a_name_that_a_dead_process_had_is_free(folder: Path) -> None:
    write(folder, fields(name="default", started="1"), "default")
    assert claim().name == "default"
    publish("default", "grpc://127.0.0.1:6060", "t")


@pytest.mark.parametrize(
    "content",
    ["", "{", b"\xff\xfe\x00", "null", "[]", "5", '"text"', "{}", '{"name": "s"}', "[" * 100_000, "half"],
    ids=lambda content: str(content)[:20],
)
def test_half_written_and_foreign_files_are_passed_over_and_left_alone(folder: Path, content: Any) -> None:
    path = write(folder, json.dumps(fields())[:-9] if content == "half" else content)
    publish("mine", TARGET, "t")
    assert read("s") is None
    assert [connection.name for connection in running()] == ["mine"]
    assert find().name == "mine"
    assert path.exists(), "it may be somebody else's"


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "1"}, {"pid": None}, {"pid": [1]}, {"pid": 1.5}, {"pid": True}, {"token": 5}, {"target": None},
        {"started": 5}, {"more": "of another version"}, {"name": "other"},
    ],
    ids=str,
)  # fmt: skip
def test_a_file_with_other_fields_than_ours_is_passed_over_and_left_alone(folder: Path, change: Any) -> None:
    path = write(folder, fields(**change))
    assert read("s") is None
    assert running() == []
    assert token_for(TARGET) == ""
    assert path.exists()


def test_files_of_other_kinds_are_passed_over(folder: Path) -> None:
    publish("mine", TARGET, "t")
    (folder / "folder.json").mkdir()
    (folder / "notes.txt").write_text("x")
    (folder / "dangling.json").symlink_to(folder / "nowhere")
    assert [connection.name for connection in running()] == ["mine"]


def test_without_a_folder_nothing_runs(folder: Path) -> None:
    assert running() == []
    assert read("mine") is None
    with pytest.raises(NotFoundError, match="no dsnb service of this user") as caught:
        find()
    assert "dsnb.start()" in caught.value.hint
    assert not folder.exists(), "looking makes no folder"


# ---- names


@pytest.mark.parametrize("name", ["a", "train-2", "my_run.v1", "übung", "9"])
def test_names_are_what_file_names_can_be(name: str) -> None:
    assert service_name("name", name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../a", "a b", "a\n", "a\0", "x://", "a:1", None, 5])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        service_name("name", name)
    assert "`name`" in str(caught.value)


def test_free_names_count_up(folder: Path) -> None:
    names = []
    for port in range(5001, 5004):
        names.append(claim().name)
        publish(names[-1], f"grpc://127.0.0.1:{port}", "t")
    assert names == ["default", "default-2", "default-3"]
    (folder / "default-2.json").unlink()
    assert claim().name == "default-2"


def test_a_claimed_name_is_taken_but_no_service_yet(folder: Path) -> None:
    claimed = claim("mine")
    assert running() == []
    assert claim().name == "default"
    with pytest.raises(AlreadyExistsError, match="'mine' runs in this process at an address to come"):
        claim("mine")
    connection = publish("mine", TARGET, "t")
    assert running() == [connection]
    retract(claimed)
    assert running() == [connection], "a claim that became a connection is no claim any more"


def test_a_claim_is_given_back(folder: Path) -> None:
    retract(claim("mine"))
    assert claim("mine").name == "mine"


@pytest.mark.slow
def test_processes_that_claim_at_the_same_moment_get_names_of_their_own(folder: Path) -> None:
    code = (
        "from dsnb.wire.discovery import claim; print('READY', flush=True); input();"
        "print('GOT', claim().name, flush=True); input()"
    )
    with ExitStack() as stack:
        others = [stack.enter_context(python_process(code)) for _ in range(6)]
        for other in others:
            other.popen.stdin.write(b"\n")
            other.popen.stdin.flush()
        names = {other.wait_for_line("GOT").split()[1] for other in others}
    assert names == {"default", *(f"default-{number}" for number in range(2, 7))}


def test_half_written_files_of_killed_processes_are_removed(folder: Path) -> None:
    publish("mine", TARGET, "t")
    (folder / ".dsnb-connection-abc.tmp").write_text("{")
    dead = write(folder, fields(name="dead", started="1"), "dead")
    assert [connection.name for connection in remove_stale()] == ["dead"]
    assert not dead.exists()
    assert [path.name for path in folder.iterdir()] == ["mine.json"]
    assert remove_stale() == []


def test_a_process_that_keeps_the_folder_locked_is_waited_for_but_not_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_LOCK_S", 0.3)
    mine = publish("mine", TARGET, "t")
    code = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX);"
        "print('READY', flush=True); input()"
    )
    with PythonProcess(["-c", code, str(folder)], stdin=True) as other:
        other.wait_for_line("READY")
        assert running() == [mine], "looking needs no lock"
        with pytest.raises(DeadlineExceededError, match=r"0\.3 seconds") as caught:
            publish("other", TARGET, "t")
        assert caught.value.did
        other.kill()
        publish("other", TARGET, "t")


def test_an_unknown_service_is_told_with_those_that_run(folder: Path) -> None:
    publish("mine", TARGET, "t")
    with pytest.raises(NotFoundError, match="'yours'") as caught:
        find("yours")
    assert caught.value.hint == f"running: mine ({TARGET})"
    assert "t" not in caught.value.hint.replace("mine", "").split()


# ---- tokens


def test_a_token_is_looked_for_in_this_process_then_in_files_then_in_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert token_for(TARGET) == ""
    monkeypatch.setenv("DSNB_TOKEN", "of the environment")
    assert token_for(TARGET) == "of the environment"
    publish("mine", TARGET, "of the file")
    assert token_for(TARGET) == token_for("127.0.0.1:5050") == token_for("localhost:5050") == "of the file"
    remember_token(TARGET, "of this process")
    try:
        assert token_for("127.0.0.1:5050") == "of this process"
        assert token_for("127.0.0.1:6060") == "of the environment"
    finally:
        forget_token("127.0.0.1:5050", "of this process")
    assert token_for(TARGET) == "of the file"


def test_the_certificate_is_found_by_the_token_in_this_process_then_in_files_then_in_the_join_file_of_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have the token of their service, and other addresses than its dispatcher."""
    certificate = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n"
    path = tmp_path / "digits.join"
    write_join_file(path, JoinFile(name="d", address="10.0.0.1:5050", token="t", certificate=f"{certificate}named"))
    assert certificate_for("t") == ""
    monkeypatch.setenv("DSNB_JOIN_FILE", str(path))
    assert certificate_for("t") == f"{certificate}named"
    assert token_for("10.0.0.1:5050") == "t"
    assert token_for("10.0.0.2:5050") == ""
    assert certificate_for("another") == ""
    publish("mine", TARGET, "t", certificate="of the file")
    assert certificate_for("t") == "of the file"
    remember_token(TARGET, "t", "of this process")
    try:
        assert certificate_for("t") == "of this process"
    finally:
        forget_token(TARGET, "t")


def test_the_join_file_of_the_environment_names_the_service_where_no_other_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "digits.join"
    write_join_file(path, JoinFile(name="d", address="10.0.0.1:5050", token="t", certificate=""))
    publish("mine", TARGET, "own")
    assert resolve().target == TARGET
    monkeypatch.setenv("DSNB_JOIN_FILE", str(path))
    try:
        assert (resolve().target, resolve().token) == ("grpc://10.0.0.1:5050", "t")
        assert resolve("mine").target == TARGET
    finally:
        forget_token("10.0.0.1:5050", "t")
        forget_token("10.0.0.1:5050", "t")


def test_a_join_file_of_the_environment_that_is_not_there_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSNB_JOIN_FILE", str(tmp_path / "gone"))
    with pytest.raises(NotFoundError, match="gone"):
        resolve()


def test_a_token_is_known_until_it_was_forgotten_as_often_as_remembered() -> None:
    """A dispatcher and its workers in one process each remember it."""
    for _ in range(3):
        remember_token(TARGET, "t")
    for left in (2, 1, 0):
        assert token_for(TARGET) == "t"
        forget_token(TARGET, "t")
        assert discovery.debug_state().get("127.0.0.1:5050", 0) == left
    assert token_for(TARGET) == ""
    forget_token(TARGET, "t")


def test_the_newest_token_of_an_address_holds_and_only_its_own_is_forgotten() -> None:
    """A dispatcher that follows another on the same port, before the first one's last worker is gone."""
    remember_token(TARGET, "old")
    remember_token(TARGET, "new")
    assert token_for(TARGET) == "new"
    forget_token(TARGET, "old")
    assert token_for(TARGET) == "new"
    forget_token(TARGET, "never known")
    forget_token(TARGET, "new")
    assert token_for(TARGET) == ""


# ---- the folder


def test_the_folder_is_the_given_one_else_the_users_runtime_or_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    assert runtime_dir() == folder
    monkeypatch.delenv("DSNB_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == tmp_path / "dsnb" / "services"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "not there"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert runtime_dir() == tmp_path / "data" / "dsnb" / "services"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert runtime_dir() == tmp_path / "home" / ".local" / "share" / "dsnb" / "services"

"""Connection files: how a kernel, a terminal or a dashboard finds the services of this user on this host.

One JSON file for each service, readable by its owner alone, as Jupyter's: name, target, token, process id and the time
that process started (ids are used again). A file whose process is gone is removed by whoever finds it.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from dsnb.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from dsnb.wire.channel import split_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach one service."""

    name: str
    target: str
    token: str
    pid: int
    started: str


_KINDS = {"name": str, "target": str, "token": str, "pid": int, "started": str}


def runtime_dir() -> Path:
    """The folder of the connection files: `DSNB_RUNTIME_DIR`, else the user's runtime or data folder."""
    given = os.environ.get("DSNB_RUNTIME_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base, "dsnb", "services")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share", "dsnb", "services")


def check_name(name: str) -> str:
    """A service's name, if it can be one.

    Raises:
        InvalidArgumentError: for an empty name, or one with characters that a file name should not have.
    """
    if not isinstance(name, str) or not name or not all(c.isalnum() or c in "-_." for c in name) or name[0] == ".":
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of a service", hint="use letters, digits, '-', '_' and '.'"
        )
    return name


def publish(name: str, target: str, token: str) -> Connection:
    """Write the connection file of a service of this process.

    Raises:
        AlreadyExistsError: another living process has a service of that name.
    """
    there = read(name)
    if there is not None and there.target != target:
        raise AlreadyExistsError(
            f"a service named {name!r} runs in process {there.pid} at {there.target}",
            did="nothing was started",
            hint=f"dsnb.connect({name!r}) reads from it; or choose another name",
        )
    connection = Connection(name=name, target=target, token=token, pid=os.getpid(), started=_start_time(os.getpid()))
    folder = runtime_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Written aside with the right mode and renamed, so nobody sees half a file or a readable token.
    handle, path = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(asdict(connection), file)
    os.replace(path, folder / f"{name}.json")
    return connection


def retract(connection: Connection) -> None:
    """Remove the connection file of a service that stops, if it is still its own."""
    if read(connection.name) == connection:
        _path(connection.name).unlink(missing_ok=True)


def read(name: str) -> Connection | None:
    """The connection of that name, or None; a file that was left behind is removed."""
    path = _path(name)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # not there, not readable by us, or not written by us
        return None
    if not isinstance(fields, dict) or {key: type(value) for key, value in fields.items()} != _KINDS:
        return None
    connection = Connection(**fields)
    if connection.name != name:  # a copy under another name
        return None
    if _start_time(connection.pid) != connection.started:
        path.unlink(missing_ok=True)
        return None
    return connection


def running() -> list[Connection]:
    """The connections of all services of this user on this host, by name."""
    try:
        names = sorted(path.stem for path in runtime_dir().glob("*.json"))
    except OSError:
        return []
    return [connection for connection in map(read, names) if connection is not None]


def free_name() -> str:
    """The first of "default", "default-2", "default-3" and so on that no service of this user has here."""
    taken = {connection.name for connection in running()}
    candidates = ["default", *(f"default-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in candidates if name not in taken)


def find(service: str | None = None) -> Connection:
    """The connection of a service.

    Args:
        service: A name or a target; None for the only one that runs.

    Raises:
        NotFoundError: none runs, none fits, or several run and none was named.
    """
    found = running()
    if service is not None:
        address = service.removeprefix("grpc://")
        fitting = [c for c in found if service == c.name or address == c.target.removeprefix("grpc://")]
        if fitting:
            return fitting[0]
        raise NotFoundError(f"no service {service!r} runs here", hint=_list(found))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError("no dsnb service of this user runs here", hint="start one: svc = dsnb.start()")
    raise NotFoundError(f"{len(found)} services run here and none was named", hint=_list(found))


_lock = threading.Lock()
_here: dict[str, list[str]] = {}
"""The tokens of dispatchers that live in this process or have a worker here, by address."""


def remember(target: str, token: str) -> None:
    """Know a dispatcher's token in this process, until `forget` is called as often."""
    with _lock:
        _here.setdefault(split_target(target), []).append(token)


def forget(target: str, token: str) -> None:
    """Take back one `remember`; harmless where there was none."""
    address = split_target(target)
    with _lock:
        tokens = _here.get(address, [])
        if token in tokens:
            tokens.remove(token)
        if not tokens:
            _here.pop(address, None)


def token_for(target: str) -> str:
    """The token for a bare address: from this process, a connection file or `DSNB_TOKEN`; empty if it is nowhere."""
    address = split_target(target)
    with _lock:
        if address in _here:
            return _here[address][-1]
    for connection in running():
        if connection.target.removeprefix("grpc://") == address:
            return connection.token
    return os.environ.get("DSNB_TOKEN", "")


def _list(found: list[Connection]) -> str:
    if not found:
        return "none runs; start one: svc = dsnb.start()"
    return "running: " + ", ".join(f"{c.name} ({c.target})" for c in found)


def _path(name: str) -> Path:
    return runtime_dir() / f"{name}.json"


def _start_time(pid: int) -> str:
    """When a process started, in the kernel's own words; empty when it is gone (zombies are)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "" if not _alive(pid) else "unknown"
    return "" if fields[0] in "ZX" else fields[19]


def _alive(pid: int) -> bool:
    """Whether a process lives, where there is no /proc to tell when it started."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc").exists()

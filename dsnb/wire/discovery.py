"""Connection files: how a kernel, a terminal or a dashboard finds the services of this user on this host.

Like Jupyter, each service has one JSON file that only its owner can read. It contains the name, target, token, process
id and the process's start time (process ids are reused). The next process that finds a file whose process is gone
removes it. Files are changed under a lock on the folder, which the kernel releases if its process dies. A file without
a target only claims a name.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsnb.arguments import short_repr, text
from dsnb.errors import AlreadyExistsError, DeadlineExceededError, DsnbError, InvalidArgumentError, NotFoundError
from dsnb.processes import start_time
from dsnb.storage.failpoints import Failpoint
from dsnb.wire import forks
from dsnb.wire.addresses import host_of, is_loopback, target_address
from dsnb.wire.join_file import JOIN_FILE_VARIABLE, SUFFIX, JoinFile, is_join_file, read_join_file
from dsnb.wire.security import token_from_environment

_LOCK_S = 5.0
_TEMPORARY_PREFIX = ".dsnb-connection-"
_MAX_NAME_BYTES = 200
_RENAME = Failpoint("connection file name")
"""Most bytes of a service's name; a file name has at most 255."""


@dataclass(frozen=True, slots=True, kw_only=True)  # no Struct: that shows the token to the library rich
class Connection:
    """The content of one connection file: how to reach a service.

    Attributes:
        name: The service's name, unique on this host for this user.
        target: Its address as "grpc://host:port"; empty while the name is only claimed.
        token: The token of the service.
        pid: Its process id.
        started: When that process started, as `dsnb.processes.start_time` reports it.
        lasting: Whether the service keeps its state in a folder, so that it may be restarted after its process ends.
        certificate: Its certificate with the key, in PEM format; empty if its connections are not encrypted.
        settings: If the service outlives the kernel that started it: the arguments of `start`, as JSON; else empty.
    """

    name: str
    target: str
    token: str = field(repr=False)
    pid: int
    started: str
    lasting: bool = False
    certificate: str = field(default="", repr=False)
    settings: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedService:
    """What a caller needs to reach a service; the name is the address if the service has no connection file here."""

    name: str
    target: str
    token: str = field(repr=False)


_KINDS = {
    "name": str,
    "target": str,
    "token": str,
    "pid": int,
    "started": str,
    "lasting": bool,
    "certificate": str,
    "settings": str,
}


def runtime_dir() -> Path:
    """The folder of the connection files: `DSNB_RUNTIME_DIR`, else a folder in the user's runtime or data folder."""
    given = os.environ.get("DSNB_RUNTIME_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base, "dsnb", "services")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share", "dsnb", "services")


def service_name(name: str, value: Any) -> str:
    """Check the name of a service, which is also the name of a file.

    Raises:
        InvalidArgumentError: the name is empty, too long, or has characters that a file name should not have.
    """
    given = text(name, value)
    if not all(c.isalnum() or c in "-_." for c in given) or given[0] == "." or len(given.encode()) > _MAX_NAME_BYTES:
        raise InvalidArgumentError(
            f"`{name}`: {short_repr(given)} cannot be the name of a service",
            hint="use letters, digits, '-', '_' and '.', not too many of them",
        )
    return given


def claim(name: str | None = None) -> Connection:
    """Reserve a name for a service that is about to start: only one of several processes gets it.

    `publish` turns the claim into a connection; `retract` releases the name.

    Args:
        name: The name; None for the first free one of "default", "default-2", "default-3" and so on.

    Raises:
        InvalidArgumentError: the name is not valid for a service.
        AlreadyExistsError: another service has the name.
    """
    folder = _ensure_folder()
    with _locked(folder):
        taken = {connection.name: connection for connection in _live_connections(folder)}
        if name is None:
            candidates = ["default", *(f"default-{number}" for number in range(2, len(taken) + 3))]
            name = next(candidate for candidate in candidates if candidate not in taken)
        elif service_name("name", name) in taken:
            raise _name_taken_error(taken[name])
        return _write(folder, name, "", "")


def publish(
    name: str, target: str, token: str, *, lasting: bool = False, certificate: str = "", settings: str = ""
) -> Connection:
    """Write the connection file of a service of this process; the arguments are the attributes of `Connection`.

    Raises:
        AlreadyExistsError: another service has the name.
    """
    folder = _ensure_folder()
    with _locked(folder):
        there = _parse(folder / f"{name}.json")
        # May be replaced: the file of a dead process, one with the same target, and this process's own claim.
        if (
            there is not None
            and is_alive(there)
            and there.target != target
            and not (_is_own(there) and not there.target)
        ):
            raise _name_taken_error(there)
        return _write(folder, name, target, token, lasting=lasting, certificate=certificate, settings=settings)


def retract(connection: Connection) -> None:
    """Remove the connection file of a service that stops, unless the file belongs to another service by now."""
    with suppress(OSError, DeadlineExceededError), _locked(runtime_dir()):
        if _parse(_path(connection.name)) == connection:
            _path(connection.name).unlink(missing_ok=True)
            _path(connection.name).with_suffix(SUFFIX).unlink(missing_ok=True)  # its token is of no use any more


def read(name: str) -> Connection | None:
    """The connection of a running service, by name; None if there is none. Removes the files of dead processes."""
    connection = _parse(_path(name))
    if connection is not None and not is_alive(connection):
        remove_stale()
        return None
    return connection


def running() -> list[Connection]:
    """The connections of all services of this user on this host, by name. Removes the files of dead processes."""
    remove_stale()
    return [connection for connection in _live_connections(runtime_dir()) if connection.target]


def remove_stale() -> list[Connection]:
    """Remove the files that dead processes left; returns the connections that were removed."""
    folder, removed = runtime_dir(), []
    with suppress(OSError, DeadlineExceededError), _locked(folder):  # best effort: another process will do it
        for path in folder.glob(f"{_TEMPORARY_PREFIX}*.tmp"):  # left by a dead process: live writers hold the lock
            path.unlink(missing_ok=True)
        for path in sorted(folder.glob("*.json")):
            connection = _parse(path)
            if connection is not None and not is_alive(connection):
                path.unlink(missing_ok=True)
                removed.append(connection)
    return removed


def _ensure_folder() -> Path:
    folder = runtime_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no other process changes files in it.

    Raises:
        DeadlineExceededError: another process held the lock for `_LOCK_S` seconds.
    """
    handle = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + _LOCK_S
    try:
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"another process has had {folder} locked for {_LOCK_S:g} seconds",
                    did="the connection files were left as they are",
                    hint=f"is a process of yours stopped (Ctrl-Z, a debugger)? `fuser {folder}` says which",
                )
            time.sleep(0.005)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has the handle too
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(
    folder: Path,
    name: str,
    target: str,
    token: str,
    *,
    lasting: bool = False,
    certificate: str = "",
    settings: str = "",
) -> Connection:
    connection = Connection(
        name=name,
        target=target,
        token=token,
        pid=os.getpid(),
        started=start_time(os.getpid()),
        lasting=lasting,
        certificate=certificate,
        settings=settings,
    )
    # A temporary file with mode 0600, then renamed: no process sees a part of it, and only its owner reads the token.
    handle, path = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY_PREFIX, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        fields = asdict(connection)
        if not settings:
            del fields["settings"]  # so that an older version of dsnb, which does not know it, reads the file
        json.dump(fields, file)
    with _RENAME:
        os.replace(path, folder / f"{name}.json")
    return connection


def _parse(path: Path) -> Connection | None:
    """Read a connection file, whether its process is alive or not; None if it is not a connection file of this user.

    Files of other users are ignored: in a folder that others may write to, they could direct pipelines to a foreign
    server.
    """
    try:
        with path.open("rb") as file:
            fields = json.loads(file.read()) if os.fstat(file.fileno()).st_uid == os.geteuid() else None
    except (OSError, ValueError, RecursionError):  # missing, not readable, or not written by dsnb
        return None
    if not isinstance(fields, dict):
        return None
    for missing in ("certificate", "settings"):  # a service of an older version of dsnb has none
        fields.setdefault(missing, "")
    if {key: type(value) for key, value in fields.items()} != _KINDS:
        return None
    connection = Connection(**fields)
    return connection if connection.name == path.stem else None  # else it is a copy under another name


def _live_connections(folder: Path) -> list[Connection]:
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return []
    return [found for found in map(_parse, paths) if found is not None and is_alive(found)]


def is_alive(connection: Connection) -> bool:
    """Whether the process of a service runs."""
    return start_time(connection.pid) == connection.started


def _is_own(connection: Connection) -> bool:
    return connection.pid == os.getpid() and is_alive(connection)


def _name_taken_error(there: Connection) -> AlreadyExistsError:
    whose = "this process" if _is_own(there) else f"process {there.pid}"
    return AlreadyExistsError(
        f"a service named {there.name!r} runs in {whose} at {there.target or 'an address to come'}",
        did="nothing was started",
        hint=f"dsnb.connect({there.name!r}) reads from it; or choose another name",
    )


def find(service: str | None = None) -> Connection:
    """Find the connection of a running service of this user on this host.

    Args:
        service: A name or a target; None for the only service that runs.

    Raises:
        NotFoundError: no service runs, none matches, or several run and `service` is None.
    """
    found = running()
    if service is not None:
        address = _address_or_empty(service)
        fitting = [c for c in found if service == c.name or address == target_address(c.target)]
        if fitting:
            return fitting[0]
        raise NotFoundError(f"no service {service!r} runs here", hint=_services_hint(found))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError("no dsnb service of this user runs here", hint="start one: svc = dsnb.start()")
    raise NotFoundError(f"{len(found)} services run here and none was named", hint=_services_hint(found))


def resolve(service: str | None = None) -> ResolvedService:
    """The target and token of a service. Unlike with `find`, an address may belong to another host or user.

    A join file makes its token and certificate known in this process.

    Args:
        service: A name, a target, or the path of a join file; None for the service of the join file that
            `DSNB_JOIN_FILE` names, or else for the only service that runs here.

    Raises:
        NotFoundError: no service runs, none has that name, or several run and `service` is None; or the join file
            cannot be read.
        FailedPreconditionError: the file is no join file.
    """
    if service is None and (named := _join_file_of_environment()) is not None:
        return use_join_file(named)
    if service is not None and is_join_file(service):
        return use_join_file(read_join_file(service))
    try:
        found = find(service)
    except NotFoundError:
        if service is None or ":" not in service:
            raise
        address = target_address(service)
        return ResolvedService(name=address, target=f"grpc://{address}", token=token_for(address))
    return ResolvedService(name=found.name, target=found.target, token=found.token)


def use_join_file(join_file: JoinFile) -> ResolvedService:
    """Make the token and certificate of a join file known in this process, until it ends."""
    target = f"grpc://{join_file.address}"
    remember_token(target, join_file.token, join_file.certificate)
    return ResolvedService(name=join_file.name, target=target, token=join_file.token)


def connection_at(target: str) -> Connection | None:
    """The connection of the service at an address; None if it is not a service of this user on this host."""
    address = target_address(target)
    return next((c for c in _live_connections(runtime_dir()) if c.target and target_address(c.target) == address), None)


def is_plain_beyond_loopback(connection: Connection) -> bool:
    """Whether other machines can connect to a service, and its connections are not encrypted."""
    return not connection.certificate and not is_loopback(host_of(target_address(connection.target)))


def stop_reason(connection: Connection) -> str:
    """Why a service has ended, as in "its process 123 is gone"; empty while it runs or may be restarted."""
    if connection.lasting:
        return ""
    if not is_alive(connection):
        return f"its process {connection.pid} is gone"
    return "" if _parse(_path(connection.name)) == connection else "it was stopped"


@dataclass(frozen=True, slots=True)
class _Known:
    """A token and a certificate that belong together."""

    token: str = field(repr=False)
    certificate: str = field(repr=False)


_lock = threading.Lock()
_known: dict[str, list[_Known]] = {}
"""The tokens of dispatchers that run in this process or have a worker here, by address; one per `remember_token`."""


def remember_token(target: str, token: str, certificate: str = "") -> None:
    """Remember a dispatcher's token and certificate in this process, until `forget_token` was called equally often."""
    with _lock:
        _known.setdefault(target_address(target), []).append(_Known(token, certificate))


def forget_token(target: str, token: str) -> None:
    """Undo one `remember_token`; does nothing if there was none."""
    address = target_address(target)
    with _lock:
        known = _known.get(address, [])
        match = next((one for one in known if one.token == token), None)
        if match is not None:
            known.remove(match)
        if not known:
            _known.pop(address, None)


def debug_state() -> dict[str, int]:
    """How many tokens this process remembers for each address."""
    with _lock:
        return {address: len(known) for address, known in _known.items()}


def token_for(target: str) -> str:
    """The token for an address: from this process, a connection file, a join file or `DSNB_TOKEN`; empty if none.

    Raises:
        InvalidArgumentError: `DSNB_TOKEN` is set, but empty or not a token.
    """
    address = target_address(target)
    forks.check_grpc()
    with _lock:
        if address in _known:
            return _known[address][-1].token
    connection = connection_at(address)
    if connection is not None:
        return connection.token
    named = _join_file_of_environment()
    return named.token if named is not None and named.address == address else token_from_environment() or ""


def certificate_for(token: str) -> str:
    """The certificate of the service that has this token, with its key; empty if none is known, as without TLS.

    Workers have the certificate of their service, and the same token. So the token finds it for any of the service's
    addresses: in this process, in this user's connection files, or in the join file that `DSNB_JOIN_FILE` names.
    """
    with _lock:
        in_process = [one for entries in _known.values() for one in entries if one.token == token]
    if in_process:
        return in_process[-1].certificate
    connection = next((one for one in _live_connections(runtime_dir()) if one.token == token), None)
    if connection is not None:
        return connection.certificate
    named = _join_file_of_environment()
    return named.certificate if named is not None and named.token == token else ""


def _join_file_of_environment() -> JoinFile | None:
    path = os.environ.get(JOIN_FILE_VARIABLE)
    return read_join_file(path) if path else None


def _address_or_empty(service: str) -> str:
    """The address of a target; empty if the text is not a target but a name."""
    try:
        return target_address(service)
    except DsnbError:
        return ""


def _services_hint(found: list[Connection]) -> str:
    if not found:
        return "none runs; start one: svc = dsnb.start()"
    return "running: " + ", ".join(f"{c.name} ({c.target})" for c in found)


def _path(name: str) -> Path:
    return runtime_dir() / f"{name}.json"

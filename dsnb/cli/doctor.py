"""`dsnb doctor`: check this machine and this Python for problems that affect dsnb."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import msgspec

from dsnb.cli.options import add_command, add_json

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

DESCRIPTION = """\
Check what about this machine and this Python could be in dsnb's way.

Versions, limits, ports, proxies, and what killed processes left. Each finding comes with a remedy. The exit code is 1
if something cannot work."""
EXAMPLES = """\
  dsnb doctor                    read this first when something hangs or cannot be reached
  dsnb doctor --json             for a script, or to add to a report"""

PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The proxy variables that gRPC reads, in order of precedence; gRPC ignores the upper-case spellings."""
_MIN_OPEN_FILES = 1024
_MIN_SHM_BYTES = 256 << 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        name: What was checked.
        level: "ok", "warn" (a possible problem) or "bad" (a problem).
        text: What was found.
        remedy: What to try; empty if nothing is wrong.
    """

    name: str
    level: str
    text: str
    remedy: str = ""


def add_to(commands: Commands) -> None:
    add_json(add_command(commands, "doctor", run, DESCRIPTION, EXAMPLES), "print the findings as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print all findings; the exit code is 1 if one of them is bad."""
    found = list(findings())
    if args.as_json:
        print(json.dumps({"findings": msgspec.to_builtins(found)}, indent=2))
    else:
        for finding in found:
            print(f"{finding.level:5}{finding.name}: {finding.text}")
            if finding.remedy:
                print(f"     try: {finding.remedy}")
    return 1 if any(finding.level == "bad" for finding in found) else 0


def findings() -> Iterator[Finding]:
    """Run all checks and yield their results."""
    yield _system()
    yield from _versions()
    yield _ports()
    yield _proxies(dict(os.environ))
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield _shared_memory()
    yield _connection_files()
    yield from _services()


def _system() -> Finding:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if platform.system() == "Linux":
        return Finding(name="system", level="ok", text=text)
    return Finding(name="system", level="warn", text=text, remedy="Linux is tested; elsewhere use thread workers")


def _versions() -> Iterator[Finding]:
    for package, remedy in (
        ("dsnb", ""),
        ("numpy", "pip install numpy"),
        ("grpcio", "pip install 'grpcio>=1.76'"),
        ("protobuf", "pip install 'protobuf>=6.31.1,<8'"),
        ("cloudpickle", "pip install cloudpickle"),
    ):
        try:
            yield Finding(name=package, level="ok", text=version(package))
        except PackageNotFoundError:
            known = package == "dsnb"  # a source checkout is not installed
            yield Finding(name=package, level="ok" if known else "bad", text="not installed", remedy=remedy)
    try:
        yield Finding(name="panel", level="ok", text=version("panel"))
    except PackageNotFoundError:
        yield Finding(
            name="panel", level="warn", text="not installed", remedy="pip install 'dsnb[notebook]' for the dashboard"
        )


def _ports() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 2.0):
            return Finding(name="ports", level="ok", text="sockets on 127.0.0.1 work")
    except OSError as error:
        return Finding(
            name="ports",
            level="bad",
            text=f"sockets on 127.0.0.1 do not work ({error})",
            remedy="is the loopback interface up (`ip link set lo up`), or does a sandbox forbid sockets?",
        )


def _proxies(environment: dict[str, str]) -> Finding:
    """Check for a proxy in the environment: gRPC would send even calls to this machine through it."""
    # Do not print the user name and password that a proxy's address may contain.
    proxy = next(
        (f"{name}={environment[name].rpartition('@')[2]}" for name in PROXY_VARIABLES if environment.get(name)), ""
    )
    if not proxy:
        return Finding(name="proxies", level="ok", text="none in the environment")
    spared = environment.get("no_grpc_proxy") or environment.get("no_proxy") or ""
    names = {name.strip() for name in spared.split(",")}
    if "*" in names or {"127.0.0.1", "localhost"} <= names:
        return Finding(name="proxies", level="ok", text=f"{proxy}, not used for this machine")
    return Finding(
        name="proxies",
        level="bad",
        text=f"{proxy}: gRPC would also use it for services on this machine",
        remedy="export no_proxy=localhost,127.0.0.1 (and the hosts of your workers), before Python starts",
    )


def _open_files(limit: int) -> Finding:
    text = f"{'any number of' if limit == resource.RLIM_INFINITY else format(limit, ',')} open files"
    if limit == resource.RLIM_INFINITY or limit >= _MIN_OPEN_FILES:
        return Finding(name="limits", level="ok", text=text)
    return Finding(
        name="limits",
        level="warn",
        text=f"{text}; each client in another process needs a few",
        remedy=f"ulimit -n {4 * _MIN_OPEN_FILES}",
    )


def _shared_memory() -> Finding:
    try:
        free = shutil.disk_usage("/dev/shm").free  # noqa: S108 - only inspected, never written to
    except OSError:
        return Finding(
            name="shared memory", level="warn", text="there is no /dev/shm", remedy="containers: --shm-size=1g"
        )
    text = f"{free / 1e6:,.0f} MB free in /dev/shm"
    if free >= _MIN_SHM_BYTES:
        return Finding(name="shared memory", level="ok", text=text)
    remedy = "free some, or give the container more: --shm-size=1g; without it, clients in other processes use gRPC"
    return Finding(name="shared memory", level="warn", text=text, remedy=remedy)


def _connection_files() -> Finding:
    from dsnb.errors import DsnbError
    from dsnb.wire.discovery import remove_stale

    try:
        left = remove_stale()
    except (DsnbError, OSError) as error:
        return Finding(
            name="connection files",
            level="bad",
            text=f"their folder cannot be used ({error})",
            remedy="set DSNB_RUNTIME_DIR to a folder that only you can access",
        )
    names = ", ".join(repr(one.name) for one in left)
    return Finding(
        name="connection files", level="ok", text=f"removed the files of {names}" if names else "nothing left behind"
    )


def _services() -> Iterator[Finding]:
    from dsnb.cli.status import service_summaries
    from dsnb.wire.discovery import running

    found = running()
    if not found:
        yield Finding(name="services", level="ok", text="you have no services on this machine")
    for service in service_summaries(found) if found else []:
        answers = service.workers is not None
        yield Finding(
            name=f"service {service.name}",
            level="ok" if answers else "warn",
            text=f"{service.target}, {service.workers} workers" if answers else f"{service.target} does not answer",
            remedy=""
            if answers
            else f"its process {service.pid} is running but does not answer: a long-running cell may block it",
        )

"""`dsnb doctor`: check this machine and this Python for problems that affect dsnb."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import socket
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dsnb.cli.options import add_command, add_json
from dsnb.errors import FailedPreconditionError
from dsnb.monitor.formatting import format_bytes, plural
from dsnb.processes import usable_cpus
from dsnb.system_limits import describe_os_error

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.wire.discovery import Connection

DESCRIPTION = """\
Check this machine and this Python for problems that affect dsnb.

It checks versions, processors, memory, limits, ports, proxies, and what killed processes left behind. Each problem
comes with a remedy. The exit code is 1 if something cannot work."""
EXAMPLES = """\
  dsnb doctor                    read this first when something hangs or cannot be reached
  dsnb doctor --json             for a script
  dsnb doctor --bundle dsnb.zip  for a bug report: the findings, and the status, events and logs of your services"""

PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The proxy variables that gRPC reads, in order of precedence; gRPC ignores the upper-case spellings."""
_MIN_OPEN_FILES = 1024
_MIN_SHM_BYTES = 256 << 20
_MIN_MEMORY_BYTES = 1 << 30
_GPUS = Path("/proc/driver/nvidia/gpus")
_BUNDLE_NOTE = """\
What `dsnb doctor --bundle` collected, for a bug report. It has no tokens and no elements. It does have names of jobs,
hosts and files, and what user functions printed: read it before you send it.
"""


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
    parser = add_command(commands, "doctor", run, DESCRIPTION, EXAMPLES)
    parser.add_argument("--bundle", metavar="FILE", help="write a zip file for a bug report, without tokens")
    add_json(parser, "print the findings as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print all findings; the exit code is 1 if one of them is bad."""
    found = list(findings())
    if args.bundle is not None:
        write_bundle(args.bundle, found)
        print(f"written to {args.bundle}; read it before you send it: it has names of jobs, hosts and files")
        return 0
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
    yield _processors()
    yield _memory()
    yield check_graphics(_GPUS)
    yield from _versions()
    yield _ports()
    yield check_proxies(dict(os.environ))
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield _shared_memory()
    yield _connection_files()
    yield from _services()


def write_bundle(path: str, found: Sequence[Finding]) -> None:
    """Write the findings and the status of all services of this user into a zip file, without tokens.

    Args:
        path: The file to write; an existing one is replaced.
        found: The findings.

    Raises:
        FailedPreconditionError: the file cannot be written.
    """
    from dsnb.cli.status import try_fetch_snapshot
    from dsnb.monitor.status_text import status_text
    from dsnb.wire.discovery import running

    texts = {"README.txt": _BUNDLE_NOTE, "findings.json": _as_json(found)}
    for service in running():
        snapshot = try_fetch_snapshot(service)
        if snapshot is None:
            texts[f"{service.name}/status.txt"] = f"{service.target} does not answer\n"
        else:
            texts[f"{service.name}/status.txt"] = f"{status_text(snapshot)}\n"
            texts[f"{service.name}/status.json"] = _as_json(snapshot)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in texts.items():
                bundle.writestr(f"dsnb/{name}", text)
    except OSError as error:
        raise FailedPreconditionError(
            f"the bundle cannot be written to {path} ({describe_os_error(error)})",
            did="nothing was written",
            hint="name a file in a folder that you may write to",
        ) from error


def _as_json(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value), indent=2)


def _system() -> Finding:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.release()}"
    if platform.system() == "Linux":
        return Finding(name="system", level="ok", text=text)
    return Finding(name="system", level="warn", text=text, remedy="Linux is tested; elsewhere use thread workers")


def _processors() -> Finding:
    usable, there = usable_cpus(), os.cpu_count() or 1
    text = f"{usable} of {there} processors" if usable < there else plural(there, "processor")
    if usable > 1:
        return Finding(name="processors", level="ok", text=text)
    return Finding(
        name="processors", level="warn", text=text, remedy="workers and the training loop share it; allow a second one"
    )


def _memory() -> Finding:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return Finding(name="memory", level="ok", text="unknown")
    text = f"{format_bytes(total)}, of which {format_bytes(free)} are unused"
    if total >= _MIN_MEMORY_BYTES:
        return Finding(name="memory", level="ok", text=text)
    remedy = "each worker keeps up to 512 MB of elements: dsnb.start(cross_trainer_cache_size_bytes=...) lowers that"
    return Finding(name="memory", level="warn", text=text, remedy=remedy)


def check_graphics(folder: Path) -> Finding:
    """The GPUs that NVIDIA's driver lists; a program would also need a library to find others."""
    models = []
    for file in sorted(folder.glob("*/information")):
        lines = dict(line.partition(":")[::2] for line in file.read_text("utf-8", "replace").splitlines())
        models.append(lines.get("Model", "unknown").strip())
    return Finding(name="GPUs", level="ok", text=", ".join(models) or "no NVIDIA GPU; dsnb needs none")


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
    for package, purpose in (
        ("panel", "the dashboard"),
        ("ipywidgets", "the card under a cell"),
        ("tqdm", "dsnb.progress"),
        ("pillow", "the images of dsnb demo"),
    ):
        try:
            yield Finding(name=package, level="ok", text=version(package))
        except PackageNotFoundError:
            remedy = f"pip install 'dsnb[notebook]' for {purpose}"
            yield Finding(name=package, level="warn", text="not installed", remedy=remedy)


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


def check_proxies(environment: dict[str, str]) -> Finding:
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


def check_open_files(limit: int) -> Finding:
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
    remedy = "free some, or give the container more: --shm-size=1g; without it, clients in other processes use TCP"
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
    from dsnb.wire.discovery import is_plain_beyond_loopback, running

    found = running()
    if not found:
        yield Finding(name="services", level="ok", text="you have no services on this machine")
    yield from map(_not_encrypted, filter(is_plain_beyond_loopback, found))
    for service in service_summaries(found) if found else []:
        answers = service.workers is not None
        state = f", {plural(service.workers or 0, 'worker')}" if answers else " does not answer"
        yield Finding(
            name=f"service {service.name}",
            level="ok" if answers else "warn",
            text=f"{service.target}{state}",
            remedy=""
            if answers
            else f"its process {service.pid} is running but does not answer: a long-running cell may block it",
        )


def _not_encrypted(service: Connection) -> Finding:
    from dsnb.monitor.snapshot import NOT_ENCRYPTED

    return Finding(
        name=f"network of {service.name}",
        level="warn",
        text=f"{service.target}: {NOT_ENCRYPTED}",
        remedy="leave tls=False and --no-tls out, unless you trust everybody on the network",
    )

"""`dsnb status`: print the current state of a service, or list the services."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from dsnb.cli.options import add_command, add_json, add_service, token_of
from dsnb.errors import DsnbError
from dsnb.monitor.status_text import status_text
from dsnb.monitor.tables import Table, text_table

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.monitor.snapshot import Snapshot
    from dsnb.wire.discovery import Connection

DESCRIPTION = """\
Show the workers, jobs and trainers of a running service.

If several services run and none is named, it lists them instead. It also removes files that killed processes left."""
EXAMPLES = """\
  dsnb status                    of the only service of yours on this machine, or the list of them
  dsnb status digits --json      of the one called `digits`, everything, for a script"""

ANSWER_TIMEOUT_S = 3.0
"""How long to wait for each service, in seconds. A service that does not answer is listed as such."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "status", run, DESCRIPTION, EXAMPLES)
    add_service(parser)
    add_json(parser, "print everything as one JSON object (a list as `services`)")


def run(args: argparse.Namespace) -> int:
    """Print a snapshot of one service, or the list of services."""
    from dsnb.notebook.connect import connect
    from dsnb.wire.discovery import remove_stale, running

    for left in remove_stale():
        print(f"removed: the connection file of {left.name!r}, whose process {left.pid} is gone", file=sys.stderr)
    if args.service is None and len(services := running()) > 1:
        found = service_summaries(services)
        lines = {"services": msgspec.to_builtins(found)}
        print(json.dumps(lines, indent=2) if args.as_json else services_text(found))
        return 0
    with connect(args.service, token_of(args)) as service:
        snapshot = service.status()
    print(json.dumps(msgspec.to_builtins(snapshot), indent=2) if args.as_json else status_text(snapshot))
    return 0


class ServiceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the list of services: everything except the token.

    Attributes:
        workers: The number of workers; None, like the next two, if the service does not answer.
        jobs: The number of jobs.
        started: When the service started, in seconds since the epoch.
    """

    name: str
    target: str
    pid: int
    workers: int | None = None
    jobs: int | None = None
    started: float | None = None


def service_summaries(services: list[Connection]) -> list[ServiceSummary]:
    """A summary of each service; all services are queried in parallel."""
    with ThreadPoolExecutor(len(services)) as pool:
        return list(map(service_summary, services, pool.map(try_fetch_snapshot, services)))


def try_fetch_snapshot(connection: Connection) -> Snapshot | None:
    """The service's snapshot, or None if it does not answer in time."""
    from dsnb.monitor.watch import fetch_snapshot

    try:
        return fetch_snapshot(connection.target, connection.token, ANSWER_TIMEOUT_S)
    except DsnbError:
        return None


def service_summary(connection: Connection, snapshot: Snapshot | None) -> ServiceSummary:
    """Summarise one service for the list."""
    known = ServiceSummary(name=connection.name, target=connection.target, pid=connection.pid)
    if snapshot is None:
        return known
    return ServiceSummary(
        name=known.name,
        target=known.target,
        pid=known.pid,
        workers=len(snapshot.workers),
        jobs=snapshot.job_count,
        started=snapshot.started,
    )


def services_text(services: list[ServiceSummary]) -> str:
    """The list of services as text."""
    header = ["name", "target", "pid", "workers", "jobs", "since"]
    return "\n".join(
        [f"{len(services)} services run here; name one:", *text_table(Table.of_text(header, map(_row, services)))]
    )


def _row(service: ServiceSummary) -> list[str]:
    cells = [service.name, service.target, str(service.pid)]
    if service.started is None:
        return [*cells, "-", "-", "does not answer"]
    since = datetime.fromtimestamp(service.started, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return [*cells, str(service.workers), str(service.jobs), since]

"""`dsnb status`: what a service looks like now."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command, add_json, add_service, token_of
from dsnb.cli.report import report, table

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.wire.discovery import Connection

DESCRIPTION = """\
Show the workers, jobs and trainers of a running service.

Without a name, and with several services running, it lists those instead."""
EXAMPLES = """\
  dsnb status                    of the only service of yours on this machine
  dsnb status digits --json      of the one called `digits`, everything, for a script"""


def add_to(commands: Commands) -> None:
    """Declare the command."""
    parser = add_command(commands, "status", run, DESCRIPTION, EXAMPLES)
    add_service(parser)
    add_json(parser, "print everything as one JSON object (a list as `services`)")


def run(args: argparse.Namespace) -> int:
    """Print a snapshot, or the list of services."""
    from dsnb.notebook.service import connect
    from dsnb.wire.discovery import running

    if args.service is None and len(services := running()) > 1:
        print(json.dumps({"services": list(map(listed, services))}) if args.as_json else listing(services))
        return 0
    with connect(args.service, token_of(args)) as service:
        snapshot = service.status()
    print(json.dumps(asdict(snapshot), indent=2) if args.as_json else report(snapshot))
    return 0


def listed(connection: Connection) -> dict[str, object]:
    """What a list of services tells of one: all but its token."""
    return {"name": connection.name, "target": connection.target, "pid": connection.pid}


def listing(services: list[Connection]) -> str:
    """The list of services, for people."""
    rows = [[str(value) for value in listed(connection).values()] for connection in services]
    return "\n".join([f"{len(services)} services run here; name one:", *table(["name", "target", "pid"], rows)])

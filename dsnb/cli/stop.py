"""`dsnb stop`: stop a service that outlives its kernels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command, add_service
from dsnb.errors import FailedPreconditionError

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

DESCRIPTION = """\
Stop a service that was started with `dsnb.start(outlive_kernel=True)`, and its workers.

Other services end with the process that they run in, or by Ctrl-C."""
EXAMPLES = """\
  dsnb stop                      the only service of yours on this machine
  dsnb stop digits               the one called `digits`"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "stop", run, DESCRIPTION, EXAMPLES)
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Stop the service and wait for the end of its process."""
    from dsnb.notebook.detached import stop_detached
    from dsnb.wire.discovery import find

    connection = find(args.service)
    if not connection.settings:
        raise FailedPreconditionError(
            f"the service {connection.name!r} runs in the process {connection.pid}, which may do other things too",
            did="it was left as it is",
            hint="stop it there: svc.stop() in its notebook, or Ctrl-C in its terminal",
        )
    stop_detached(connection)
    print(f"the service {connection.name!r} was stopped")
    return 0

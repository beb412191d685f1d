"""`dsnb report`: write a self-contained HTML report of a run."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command, add_json, add_token_file, token_of

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

DESCRIPTION = """\
Write one page about a run: verdicts, throughput, trainers, splits, workers, events.

The page needs no network. It is made of a file that --record or svc.record() kept, of which it tells the whole; or of a
running service, which it watches for two seconds."""
EXAMPLES = """\
  dsnb report run.db run.html    of a run that was kept
  dsnb report digits run.html    of the running service called `digits`
  dsnb report run.html           of the only service of yours on this machine"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "report", run, DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "source",
        nargs="?",
        help="a recorded run, or a service by its name or address (default: the only one that runs here)",
    )
    parser.add_argument("page", help="the file to write, as in run.html")
    add_token_file(parser)
    add_json(parser, "print the line as JSON, with `page`")


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    path = _write(args)
    print(json.dumps({"page": path}) if args.as_json else f"report written to {path}")
    return 0


def _write(args: argparse.Namespace) -> str:
    from dsnb.notebook.connect import connect
    from dsnb.notebook.reporting import read_recorded_run, write_report

    if args.source is not None and (args.source.endswith(".db") or os.path.isfile(args.source)):
        return write_report(args.page, read_recorded_run(args.source))
    with connect(args.source, token_of(args)) as service:
        return service.report(args.page)

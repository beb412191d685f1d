"""`dsnb report`: write a self-contained HTML report of a run."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command, add_json, add_token_file, token_of
from dsnb.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

DESCRIPTION = """\
Write one page about a run: verdicts, throughput, trainers, splits, workers, events.

The page needs no network. It covers the whole of a run that --record or svc.record() saved to a file, or the next two
seconds of a running service. For two such files, it shows both runs side by side: verdicts, rates, waits and
operations, with the differences."""
EXAMPLES = """\
  dsnb report run.db run.html    of a run that was kept
  dsnb report digits run.html    of the running service called `digits`
  dsnb report a.db b.db ab.html  two runs that were kept, side by side
  dsnb report run.html           of the only service of yours on this machine"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "report", run, DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="source",
        help="a recorded run, two of them, or a service by its name or address (default: the only one that runs here)",
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
    from dsnb.notebook.reporting import read_recorded_run, write_comparison, write_report

    if len(args.sources) > 2:
        raise InvalidArgumentError(
            f"a page is about one run or two, not {len(args.sources)}",
            did="no report was written",
            hint="dsnb report a.db b.db ab.html",
        )
    if len(args.sources) == 2:
        return write_comparison(args.page, *args.sources)
    source = args.sources[0] if args.sources else None
    if source is not None and (source.endswith(".db") or os.path.isfile(source)):
        return write_report(args.page, read_recorded_run(source))
    with connect(source, token_of(args)) as service:
        return service.report(args.page)

"""`dsnb dashboard`: serve the dashboard of a running service or of a recorded run."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command, add_json, add_service, token_of
from dsnb.cli.signals import stop_event, wait_until_stopped
from dsnb.dashboard.browser import open_in_browser
from dsnb.errors import FailedPreconditionError

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.dashboard.server import DashboardServer

DESCRIPTION = """\
Serve the dashboard of a running service, and open it in the browser.

It shows jobs, workers, splits, each trainer's place in the cache, and throughput, live. Anyone who has the printed
address can also control the service from the page. In a notebook, `svc.dashboard()` shows the same under the cell."""
EXAMPLES = """\
  dsnb dashboard                        of the only service of yours on this machine
  dsnb dashboard digits --port 8050     of the one called `digits`, on a port of your choice
  dsnb dashboard --no-open              only print the address"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "dashboard", run, DESCRIPTION, EXAMPLES)
    add_service(parser)
    parser.add_argument("--port", type=int, default=0, help="the port to serve the page on (default: a free port)")
    parser.add_argument(
        "--read-only", action="store_true", help="the pages only show the service and cannot control it"
    )
    parser.add_argument(
        "--replay", metavar="FILE", help="replay a run recorded with svc.record(FILE), with a time slider"
    )
    parser.add_argument("--no-open", dest="open", action="store_false", help="do not open the browser")
    add_json(parser, "print the line as JSON, with `url`")


def run(args: argparse.Namespace) -> int:
    """Serve the dashboard until Ctrl-C or SIGTERM."""
    require_panel()
    if args.replay is not None:
        return replay(args)
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import address_lookup, snapshot_stream
    from dsnb.notebook.connect import connect

    token = token_of(args)
    with connect(args.service, token):
        pass  # report a wrong name, address or token now: the page itself would only wait for the service to appear
    server = start_in_thread(
        snapshot_stream(args.service, token),
        port=args.port,
        look_up_address=address_lookup(args.service, token),
        read_only=args.read_only,
    )
    return serve(server, args)


def replay(args: argparse.Namespace) -> int:
    """Serve the dashboard of a recorded run until Ctrl-C or SIGTERM."""
    from dsnb.dashboard.server import replay_in_thread
    from dsnb.monitor.run_file import RunReader

    with RunReader(args.replay) as reader:
        reader.check()
        return serve(replay_in_thread(reader, port=args.port), args)


def serve(server: DashboardServer, args: argparse.Namespace) -> int:
    """Print the page's address, open the browser if requested, and wait until stopped; then stop the server."""
    with ExitStack() as at_end:
        at_end.callback(server.stop)
        stop = at_end.enter_context(stop_event())
        print(json.dumps({"url": server.url}) if args.as_json else f"dashboard at {server.url}; Ctrl-C stops it")
        sys.stdout.flush()
        if args.open:
            open_in_browser(server.url)
        wait_until_stopped(stop, server.wait)
    return 0


def require_panel() -> None:
    """Check that the libraries of the dashboard are installed.

    Raises:
        FailedPreconditionError: Panel or Bokeh is missing.
    """
    missing = [name for name in ("panel", "bokeh") if find_spec(name) is None]
    if missing:
        raise FailedPreconditionError(
            f"the dashboard needs {' and '.join(missing)}, which this Python lacks",
            did="nothing was started",
            hint="pip install 'dsnb[notebook]'",
        )

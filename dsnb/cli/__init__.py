"""The command line: `dsnb demo`, `dispatcher`, `worker`, `dashboard`, `status`, `top`, `report`, `jobs` and so on.

Each command is a module with `add_to(commands)`, which declares the options, and `run(args)`, which runs the command.
Slow imports belong in `run`, so that `--help` answers immediately.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import dsnb
from dsnb.cli import (
    cache,
    certificate,
    dashboard,
    demo,
    dispatcher,
    doctor,
    jobs,
    notebook,
    report,
    status,
    stop,
    top,
    worker,
)
from dsnb.errors import DsnbError, InvalidArgumentError

DESCRIPTION = "A data service for machine-learning input pipelines that begins in a notebook cell."
EPILOG = """\
to begin:
  dsnb demo                  two trainers share one preprocessing pass, with the dashboard open beside them
  dsnb notebook              a notebook to begin with

a service without a notebook, in two terminals (or `dsnb.start()` in a cell, which is both):
  dsnb dispatcher
  dsnb worker

when it is slow, or does not work:
  dsnb top                   what limits it, live
  dsnb doctor                problems of this machine that affect dsnb

exit codes: 0 done; 1 it failed, and the text says why; 2 wrong use; 130 after Ctrl-C
SIGTERM lets a worker or a dispatcher finish what it has; a second one, or Ctrl-C, stops it

`dsnb COMMAND --help` tells more, with examples."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The command line after `dsnb`; by default that of this process.

    Returns:
        The exit code: 0 for success, 1 for a failure, 2 for incorrect usage, 130 after Ctrl-C.
    """
    args = make_parser().parse_args(_join_subcommand(sys.argv[1:] if arguments is None else arguments))
    # Silence gRPC's core: our errors already report what it logs. It reads the variable at import.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except DsnbError as error:
        print(f"dsnb {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (as `| head`) has closed the pipe. Without the dup2, the flush at exit fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _join_subcommand(arguments: Sequence[str]) -> Sequence[str]:
    """Join "worker" and "drain" or "remove" into one name: they are commands besides `worker`, which runs a worker."""
    if arguments[:1] == ["worker"] and arguments[1:2] in (["drain"], ["remove"]):
        return [" ".join(arguments[:2]), *arguments[2:]]
    return arguments


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="dsnb",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dsnb {dsnb.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    of_services = demo, dispatcher, worker, dashboard, status, top, report, jobs, stop
    for module in (*of_services, notebook, cache, certificate, doctor):
        module.add_to(commands)
    return parser

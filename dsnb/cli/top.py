"""`dsnb top`: a live view of a service in the terminal."""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from dsnb.arguments import seconds
from dsnb.cli.options import add_command, add_json, add_service, token_of
from dsnb.cli.status_text import split_lines

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.monitor.rates import Rates
    from dsnb.monitor.snapshot import JobStatus, Snapshot

DESCRIPTION = """\
Show what limits a running service, live: verdicts, jobs, trainers, workers.

q or Ctrl-C ends it. Where the output is no terminal it is printed once, as text."""
EXAMPLES = """\
  dsnb top                       of the only service of yours on this machine
  dsnb top digits --interval 5   of the one called `digits`, every five seconds
  dsnb top --json                once, with the verdicts, for a script"""

RATE_SPAN_S = 3.0
"""The period over which rates are computed, in seconds; shorter until that much time has passed."""
_FIRST_INTERVAL_S = 1.2
_TRAINER_COLUMNS = ("trainer", "rate", "wait", "own_loop", "lag", "skipped", "lost", "position")
_WORKER_COLUMNS = ("worker", "state", "busy", "rate", "sent_rate", "cache_bytes", "rss_bytes", "address")


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "top", run, DESCRIPTION, EXAMPLES)
    add_service(parser)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks (default: 1)")
    add_json(parser, "print the status and the `verdicts` once, as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Show the service until q or Ctrl-C; print once if the output is not a terminal."""
    from dsnb.notebook.connect import connect

    seconds("interval", args.interval)
    live = not args.as_json and sys.stdout.isatty() and sys.stdin.isatty()
    with connect(args.service, token_of(args)) as service:
        if not live:
            before = service.status()
            time.sleep(_FIRST_INTERVAL_S)
            _print_once(args, before, service.status())
            return 0
        with _terminal():
            snapshots = [service.status()]
            while not _quit_pressed(max(0.2, args.interval) if len(snapshots) > 1 else _FIRST_INTERVAL_S):
                snapshots.append(service.status())
                while len(snapshots) > 2 and snapshots[-1].time - snapshots[1].time >= RATE_SPAN_S:
                    del snapshots[0]
                _draw(screen_lines(snapshots[0], snapshots[-1], shutil.get_terminal_size().columns))
    return 0


def _print_once(args: argparse.Namespace, before: Snapshot, after: Snapshot) -> None:
    from dsnb.monitor.verdict import verdicts

    if args.as_json:
        print(json.dumps(msgspec.to_builtins({**asdict(after), "verdicts": verdicts(before, after)}), indent=2))
    else:
        print("\n".join(screen_lines(before, after, 120)))


def screen_lines(before: Snapshot, after: Snapshot, width: int) -> list[str]:
    """The whole screen as lines of text, cut to the terminal's width."""
    from dsnb.monitor.formatting import LEVEL_SIGNS, format_duration
    from dsnb.monitor.rates import rates
    from dsnb.monitor.verdict import verdicts

    between = rates(before, after)
    lines = [f"{after.service} at {after.target}, up {format_duration(after.time - after.started)}", ""]
    for one in verdicts(before, after):
        lines += textwrap.wrap(f"{LEVEL_SIGNS[one.level]} {one}", width, subsequent_indent="  ")
    for job in after.jobs:
        lines += ["", *_job(job, between)]
    if not after.jobs:
        lines.append("no jobs")
    lines += ["", *_workers(after, between)]
    return [line[:width] for line in lines]


def _job(job: JobStatus, between: Rates) -> Iterator[str]:
    from dsnb.monitor.formatting import format_rate
    from dsnb.monitor.tables import text_table, trainer_table

    its = between.job(job.name)
    yield (
        f"job {job.name} ({job.mode}, {job.state}): "
        f"{format_rate(its.produced)} produced, {format_rate(its.consumed)} consumed"
    )
    yield f"  {job.pipeline}"
    yield from split_lines(job)
    yield from text_table(trainer_table(job, _TRAINER_COLUMNS, between))


def _workers(after: Snapshot, between: Rates) -> list[str]:
    from dsnb.monitor.tables import text_table, worker_table

    return text_table(worker_table(after.workers, _WORKER_COLUMNS, between)) or ["no workers"]


# ---- the terminal


@contextmanager
def _terminal() -> Iterator[None]:
    """Read single keys without echo, and use the alternate screen, so that the old contents return afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _draw(lines: list[str]) -> None:
    rows = shutil.get_terminal_size().lines
    shown = [*lines[: rows - 1], "q ends"]
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in shown[:-1]) + f"{shown[-1]}\x1b[J")
    sys.stdout.flush()


def _quit_pressed(wait_s: float) -> bool:
    """Wait until the next update; return whether q or Ctrl-C was pressed."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(ready) and os.read(sys.stdin.fileno(), 64).lower().startswith((b"q", b"\x03"))

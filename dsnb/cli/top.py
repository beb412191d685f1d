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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from dsnb.arguments import seconds
from dsnb.cli.options import add_command, add_json, add_service, token_of
from dsnb.monitor.status_text import split_lines

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.monitor.rates import Rates
    from dsnb.monitor.snapshot import JobStatus, Snapshot

DESCRIPTION = """\
Show what limits a running service, live: verdicts, jobs, trainers, workers.

q or Ctrl-C ends it; arrow keys and space scroll. Where the output is no terminal it is printed once, as text."""
EXAMPLES = """\
  dsnb top                       of the only service of yours on this machine
  dsnb top digits --interval 5   of the one called `digits`, every five seconds
  dsnb top --json                once, with the verdicts, for a script"""

_MAX_SNAPSHOTS = 600
"""Snapshots that are kept: the verdict on a job that ended is about its last seconds."""
RATE_SPAN_S = 3.0
"""The period over which rates are computed, in seconds; shorter until that much time has passed."""
_FIRST_INTERVAL_S = 1.2
_QUIT_KEYS = (b"q", b"\x03")
_SCROLL_KEYS = {b"\x1b[a": -1, b"k": -1, b"\x1b[b": 1, b"j": 1}
"""The keys that scroll, in lower case, with the lines that they scroll by: arrows, and those of `less`."""
_PAGE_KEYS = {b"\x1b[5~": -1, b"b": -1, b"\x1b[6~": 1, b" ": 1, b"f": 1}
"""The keys that scroll by pages."""
_TRAINER_COLUMNS = ("trainer", "rate", "wait", "own_loop", "lag", "skipped", "lost", "position")
_WORKER_COLUMNS = ("worker", "host", "state", "busy", "rate", "sent_rate", "cache_bytes", "rss_bytes", "address")


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
            _print_once(args, [before, service.status()])
            return 0
        with _terminal():
            _show_live(service.status, max(0.2, args.interval))
    return 0


def _show_live(status: Callable[[], Snapshot], interval_s: float) -> None:
    """Draw the service again and again, and when a key was pressed, until q or Ctrl-C."""
    snapshots, top, due = [status()], 0, time.monotonic() + _FIRST_INTERVAL_S
    while not (key := _pressed_key(max(0.0, due - time.monotonic()))).startswith(_QUIT_KEYS):
        if time.monotonic() >= due:
            due = time.monotonic() + interval_s
            snapshots.append(status())
            del snapshots[:-_MAX_SNAPSHOTS]
        size = shutil.get_terminal_size()
        lines = screen_lines(snapshots, size.columns)
        top = scrolled(top, key, len(lines), size.lines - 1)
        _draw(lines[top : top + size.lines - 1], _footer(top, len(lines), size.lines - 1))


def scrolled(top: int, key: bytes, lines: int, rows: int) -> int:
    """The first line to show after a key.

    Args:
        top: The first line shown before.
        key: The key, as the terminal sends it; empty for none.
        lines: How many lines there are.
        rows: How many of them fit.
    """
    return max(0, min(top + _SCROLL_KEYS.get(key, 0) + _PAGE_KEYS.get(key, 0) * max(1, rows - 1), lines - rows))


def _footer(top: int, lines: int, rows: int) -> str:
    return "q ends" if lines <= rows else f"q ends; arrows and space scroll: lines {top + 1} to {top + rows} of {lines}"


def _print_once(args: argparse.Namespace, snapshots: Sequence[Snapshot]) -> None:
    from dsnb.monitor.verdict import latest_verdicts

    if args.as_json:
        found = {**asdict(snapshots[-1]), "verdicts": latest_verdicts(snapshots)}
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        print("\n".join(screen_lines(snapshots, 120)))


def screen_lines(snapshots: Sequence[Snapshot], width: int) -> list[str]:
    """The whole screen as lines of text, cut to the terminal's width.

    Args:
        snapshots: What was seen of the service, the oldest first; at least one.
        width: The terminal's width in characters.
    """
    from dsnb.monitor.formatting import LEVEL_SIGNS, format_duration
    from dsnb.monitor.rates import rates
    from dsnb.monitor.tables import running_first
    from dsnb.monitor.verdict import latest_verdicts

    after = snapshots[-1]
    before = next(one for one in snapshots if one is after or one.time >= after.time - RATE_SPAN_S)
    between = rates(before, after)
    lines = [f"{after.service} at {after.target}, up {format_duration(after.time - after.started)}", ""]
    for one in latest_verdicts(snapshots):
        lines += textwrap.wrap(f"{LEVEL_SIGNS[one.level]} {one}", width, subsequent_indent="  ")
    for job in running_first(after.jobs):
        lines += ["", *_job(job, between)]
    if not after.jobs:
        lines.append("no jobs")
    lines += ["", *_workers(after, between)]
    return [line[:width] for line in lines]


def _job(job: JobStatus, between: Rates) -> Iterator[str]:
    from dsnb.monitor.formatting import format_mode, format_rate
    from dsnb.monitor.tables import text_table, trainer_table

    its = between.job(job.name)
    yield (
        f"job {job.name} ({format_mode(job.mode)}, {job.state}): "
        f"{format_rate(its.produced)} produced, {format_rate(its.consumed)} consumed"
    )
    yield f"  {job.pipeline}"
    yield from split_lines(job)
    yield from text_table(trainer_table(job, _TRAINER_COLUMNS, between))


def _workers(after: Snapshot, between: Rates) -> list[str]:
    from dsnb.monitor.hosts import host_lines
    from dsnb.monitor.tables import text_table, worker_table

    rows = text_table(worker_table(after.workers, _WORKER_COLUMNS, between))
    return [*rows, *host_lines(after)] if rows else ["no workers"]


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


def _draw(lines: Sequence[str], footer: str) -> None:
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + f"{footer}\x1b[K\x1b[J")
    sys.stdout.flush()


def _pressed_key(wait_s: float) -> bytes:
    """Wait for a key, as the terminal sends it; empty if none was pressed in time."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return os.read(sys.stdin.fileno(), 64).lower() if ready else b""

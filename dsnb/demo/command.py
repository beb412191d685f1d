"""`dsnb demo`: its options, and the printing of its progress and result."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from dsnb.demo.options import DemoOptions
from dsnb.errors import FailedPreconditionError

if TYPE_CHECKING:
    # `dsnb --help` imports this module for its options, so NumPy and the service are imported only when the demo runs.
    from dsnb.demo.result import DemoResult, TrainerResult

DESCRIPTION = """\
Watch one service prepare handwritten digits for two trainers, and what changes when it gets another worker.

A service with one worker reads, decodes, augments, normalises, shuffles and batches 1,437 PNG files, again and again.
Each file takes two milliseconds to arrive, as from storage in a network. A fast and a slow trainer read the batches
through one named job with the cross-trainer cache, so each batch is prepared once and used twice; the dashboard shows
how far the slow one lags behind. The fast one waits for data, and the verdict says why. After some seconds the demo
follows the verdict's advice and adds a worker; the verdict changes.

On a terminal it runs until Ctrl-C; otherwise until both trainers classify 88 % of the held-out digits correctly, but
at most two minutes. It ends with a table of what was shared, needs no network and leaves nothing behind."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dsnb demo` to a parser; pass the parsed options to `run_command`."""
    parser.add_argument(
        "--json",
        action="store_true",
        dest="as_json",
        help="print one JSON object to standard output, and the progress to standard error",
    )
    defaults = DemoOptions()
    parser.add_argument(
        "--workers",
        type=int,
        default=defaults.workers,
        help=f"workers at the beginning; the demo adds more (default: {defaults.workers})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=defaults.seconds,
        help="how long to run (default: until Ctrl-C on a terminal, otherwise 120 at most)",
    )
    parser.add_argument("--no-dashboard", dest="dashboard", action="store_false", help="do not serve the dashboard")
    parser.add_argument("--no-open", dest="open", action="store_false", help="do not open the dashboard in the browser")
    parser.add_argument(
        "--isolation",
        choices=("auto", "thread", "process"),
        default=defaults.isolation,
        help="run the workers in this process, in processes of their own, or in this process until the GIL limits the "
        f"training (default: {defaults.isolation})",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        default=defaults.record,
        help="keep what the dashboard shows in this file, for `dsnb report` and `dsnb dashboard --replay`",
    )


def run_command(args: argparse.Namespace) -> int:
    """Run `dsnb demo` with parsed options; see `add_arguments`."""
    options = DemoOptions(**{field.name: getattr(args, field.name) for field in fields(DemoOptions)})
    return main(options, as_json=args.as_json)


def main(options: DemoOptions | None = None, *, as_json: bool = False) -> int:
    """Run the demo and print its result.

    Args:
        options: How to run the demo; None for the defaults.
        as_json: Print one JSON object to standard output, and the progress to standard error.

    Returns:
        The exit code of the command: 0.

    Raises:
        FailedPreconditionError: Pillow is not installed.
    """
    _require_pillow()
    _one_thread_for_each_trainer()
    from dsnb.demo.run import run
    from dsnb.demo.table import table

    progress = sys.stderr if as_json else sys.stdout

    def print_progress(line: str) -> None:
        print(line, file=progress, flush=True)

    def print_result(result: DemoResult) -> None:
        print(json.dumps(as_dict(result), indent=2) if as_json else table(result), flush=True)

    with _sigterm_raises_exit():
        run(options or DemoOptions(), print_progress, print_result)
    return 0


def as_dict(result: DemoResult) -> dict[str, Any]:
    """The result as plain data, including the computed figures."""
    return {
        "elements_produced": result.elements_produced,
        "elements_consumed": result.elements_consumed,
        "seconds_saved": round(result.seconds_saved, 3),
        "reached": result.reached,
        **{name: value for name, value in msgspec.to_builtins(result).items() if name != "elements_produced"},
        "trainers": [_trainer_as_dict(trainer) for trainer in result.trainers],
    }


def _trainer_as_dict(trainer: TrainerResult) -> dict[str, Any]:
    fields = msgspec.to_builtins(trainer)
    return {**fields.pop("served"), "lag": trainer.served.lag, **fields}


def _require_pillow() -> None:
    if find_spec("PIL") is None:
        raise FailedPreconditionError(
            "the demo decodes images with Pillow, which is not installed",
            did="nothing was started",
            hint="pip install 'dsnb[notebook]', or pip install pillow",
        )


def _one_thread_for_each_trainer() -> None:
    # NumPy's thread pools wait by spinning. On two cores that are shared with two workers, this makes a step of the
    # larger model ten times slower. NumPy reads the variables at import, so in a notebook kernel this may be too late.
    for library in ("OPENBLAS", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


@contextmanager
def _sigterm_raises_exit() -> Iterator[None]:
    """Make SIGTERM (sent by `timeout` and when a session closes) raise SystemExit, so that the demo cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, _raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_exit(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)

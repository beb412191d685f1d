"""`dsnb worker`: run a worker in a process of its own."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dsnb.cli.options import add_address, add_command, add_json, add_token_file, given, token_of
from dsnb.cli.signals import drain_and_stop_events, wait_until_stopped
from dsnb.errors import InvalidArgumentError
from dsnb.imports import gc_paused

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.worker.config import WorkerConfig

DESCRIPTION = """\
Run a worker: the part of a service that runs pipelines and serves their elements.

Any number of workers, on any number of machines, may join one dispatcher; each takes its share of every job. It prints
one line when it is ready and runs until Ctrl-C."""
EXAMPLES = """\
  dsnb worker                                        joins the only service of yours on this machine
  dsnb worker --dispatcher digits --cache-bytes 2GB  joins the one called `digits`, and holds up to 2 GB of elements
  dsnb worker --join digits.join                     joins a service on another machine, from where the file comes
  dsnb worker --dispatcher localhost:5050 --token-file token
  dsnb worker drain w0                               that one finishes what it has and leaves"""
SIZE_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "worker", run, DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "--dispatcher",
        metavar="SERVICE",
        help="the name or the address of the service to join, as in `localhost:5050` "
        "(default: the only one that runs here)",
    )
    parser.add_argument(
        "--join",
        metavar="FILE",
        help="join the service of this join file, which svc.join_command() or `dsnb dispatcher --join-file` wrote; "
        "`-` reads it from standard input",
    )
    add_address(
        parser,
        "auto",
        "the address to listen on (default: %(default)s, the one that routes to the dispatcher)",
    )
    parser.add_argument(
        "--worker-address",
        metavar="ADDRESS",
        help="the address at which readers reach this worker, if it is not the one it listens on",
    )
    parser.add_argument("--cache-bytes", metavar="SIZE", help="the most memory for elements, such as 500MB or 2GiB")
    parser.add_argument(
        "--max-readers", type=int, metavar="N", help="the most readers to serve at once; the next is refused"
    )
    parser.add_argument(
        "--shared-memory-bytes",
        metavar="SIZE",
        help="the most bytes of shared memory for readers of this host, as in 256MiB; 0 for none",
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="NAME",
        help="a name for this worker; once for each. COLOCATED reserves it for readers of its own process, for "
        'coordinated reads, and for readers with target_workers="ANY"',
    )
    parser.add_argument(
        "--dispatcher-gone",
        type=parse_seconds,
        metavar="SECONDS",
        help="how long the dispatcher and all clients must be gone before the worker ends "
        "(default: 50 with --join, because the worker belongs to that service; otherwise 600)",
    )
    add_token_file(parser)
    add_json(parser, "print the line as JSON, with `address` and `dispatcher`")


def run(args: argparse.Namespace) -> int:
    """Run a worker until Ctrl-C or SIGTERM."""
    with gc_paused():
        from dsnb.code.imports import keep_received_modules
        from dsnb.wire.lifecycle import stop_when_idle
        from dsnb.worker.host import keep_freed_memory, set_switch_interval
        from dsnb.worker.server import WorkerServer

    config = config_of(args)
    keep_received_modules()
    keep_freed_memory()
    set_switch_interval()
    with WorkerServer(config) as server, drain_and_stop_events() as (drain, stop):
        if args.as_json:
            print(json.dumps({"address": server.address, "dispatcher": config.dispatcher_address}), flush=True)
        else:
            print(f"worker ready at {server.address}, joined {config.dispatcher_address}; Ctrl-C stops it", flush=True)
        wait_until_stopped(stop, server.join, drain, lambda: stop_when_idle(server))
    return 0


def config_of(args: argparse.Namespace) -> WorkerConfig:
    """The settings that the options give.

    Raises:
        DsnbError: an option is invalid, or names no service.
    """
    from dsnb.worker.config import LAUNCHED_WORKER_GONE_MS, WorkerConfig

    target, token, certificate = service_of(args)
    config = WorkerConfig(
        dispatcher_address=target,
        token=token,
        certificate=certificate,
        worker_tags=args.tag,
        **given(args, "port", "host", "worker_address", "max_readers"),
    )
    if args.cache_bytes is not None:
        config = replace(config, cross_trainer_cache_size_bytes=parse_size(args.cache_bytes))
    if args.shared_memory_bytes is not None:
        config = replace(config, shared_memory_bytes=parse_size(args.shared_memory_bytes))
    if args.dispatcher_gone is not None:
        config = replace(config, dispatcher_gone_ms=int(args.dispatcher_gone * 1000))
    elif args.join is not None:
        config = replace(config, dispatcher_gone_ms=LAUNCHED_WORKER_GONE_MS)
    return config


def service_of(args: argparse.Namespace) -> tuple[str, str | None, str | None]:
    """The target, token and certificate that the options give; None to look these up by the address.

    Raises:
        InvalidArgumentError: `--join` is given with another option that names a service.
        NotFoundError: no such service runs here, or a file cannot be read.
        FailedPreconditionError: a file holds something else.
    """
    if args.join is None:
        return resolve_target(args.dispatcher), token_of(args), None
    if args.dispatcher is not None or args.token_file is not None:
        raise InvalidArgumentError(
            "--join names the service and its token already",
            did="nothing was started",
            hint="leave --dispatcher and --token-file out",
        )
    from dsnb.wire.join_file import read_join_file

    found = read_join_file(args.join)
    return f"grpc://{found.address}", found.token, found.certificate or None


def resolve_target(service: str | None) -> str:
    """The address of a service given by address or name; None means the only one that runs here.

    Raises:
        NotFoundError: no such service runs here.
    """
    if service is not None and ":" in service:
        return service
    from dsnb.wire.discovery import find

    return find(service).target


def parse_seconds(text: str) -> float:
    """Parse a number of seconds, as in `60` or `0.5`.

    Raises:
        ArgumentTypeError: the text is no number, or one that no clock can wait for.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:  # nor NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0; pass for example 60")
    return seconds


def parse_size(text: str) -> int:
    """Parse a size in bytes, as in `500MB`, `2GiB` or `1000`.

    Raises:
        InvalidArgumentError: the text is not a size.
    """
    number = text.rstrip("KMGiIBkmgb")
    unit = text[len(number) :].upper()
    try:
        return int(float(number) * SIZE_UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{text!r} is not a size", did="nothing was started", hint="500MB, 2GiB, or a number of bytes"
        ) from None

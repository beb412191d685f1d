"""`dsnb dispatcher`: run a dispatcher in a process of its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsnb.cli.options import add_address, add_command, add_json, add_token_file, given
from dsnb.cli.signals import drain_and_stop_events, wait_until_stopped
from dsnb.imports import gc_paused

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.dispatcher.config import DispatcherConfig
    from dsnb.dispatcher.server import DispatchServer

DESCRIPTION = """\
Run a dispatcher: the part of a service that workers and trainers turn to.

It knows datasets, jobs, workers and splits, and decides who does what; it never touches an element or runs your code.
It prints one line when it is ready and runs until Ctrl-C. Start at least one `dsnb worker` beside it."""
EXAMPLES = """\
  dsnb dispatcher                                    on a free port; `dsnb worker` finds it
  dsnb dispatcher --port 5050 --name digits          then `dsnb.connect("digits")` in a notebook
  dsnb dispatcher --port 5050 --work-dir digits      killed and started again, it carries on
  dsnb dispatcher --record run.db                    what the dashboard shows is kept, to be played again
  dsnb dispatcher --metrics-port 9464                metrics for Prometheus at http://127.0.0.1:9464/metrics
  dsnb dispatcher --host auto --join-file digits.join
                                                     for other machines, with TLS; copy the file there, and run
                                                     `dsnb worker --join digits.join`"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "dispatcher", run, DESCRIPTION, EXAMPLES)
    add_address(
        parser,
        "127.0.0.1",
        "the address to listen on (default: %(default)s, for this machine only); `auto`: the one that other machines "
        "reach, with TLS",
    )
    parser.add_argument(
        "--dispatcher-address",
        metavar="ADDRESS",
        help="the address at which other machines reach it, if it is not the one it listens on, as in `host:%%port%%`",
    )
    parser.add_argument(
        "--no-tls", action="store_true", help="do not encrypt, on a network that you trust; `dsnb status` warns of it"
    )
    parser.add_argument(
        "--join-file",
        metavar="FILE",
        help="write a file with which workers on other machines join (`dsnb worker --join`)",
    )
    parser.add_argument("--name", help="what `dsnb.connect` and the other commands call it (default: a free name)")
    parser.add_argument(
        "--work-dir",
        metavar="FOLDER",
        help="the folder for its token and its journal. A dispatcher that is started again with the same folder and "
        "port continues the jobs (default: nothing is kept)",
    )
    parser.add_argument(
        "--worker-address",
        action="append",
        metavar="ADDRESS",
        help="a place for a worker, as in `host:5050` or `host:%%port%%`; once for each worker, in the order in which "
        "the modes FILE, DATA, FILE_OR_DATA and HINT number them (default: those that are there when a pass begins)",
    )
    parser.add_argument(
        "--deployment-mode",
        metavar="MODE",
        help="COLOCATED, REMOTE or HYBRID; with COLOCATED, readers of the modes FILE, DATA, FILE_OR_DATA and HINT read "
        "only the workers of their own process (default: none)",
    )
    parser.add_argument(
        "--consumer-timeout-ms",
        type=int,
        metavar="N",
        help="how long a consumer of a coordinated read waits for a round before an error names the missing consumers "
        "(default: 2 minutes)",
    )
    add_monitoring(parser)
    add_token_file(
        parser,
        "the file that holds the token that callers must show; made with a new token if it is not there "
        "(default: the variable DSNB_TOKEN, else a new token that your own processes on this machine find)",
    )
    add_json(parser, "print the line as JSON, with `target`, `token_file` and `metrics_url`")


def add_monitoring(parser: argparse.ArgumentParser) -> None:
    """Add the options for recordings and metrics."""
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="keep what the dashboard shows in this file, for `dsnb report` and `dsnb dashboard --replay`",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics in the text format of Prometheus at http://127.0.0.1:PORT/metrics, to any user of this "
        "machine; 0 chooses a free port, which is printed (default: no metrics)",
    )
    parser.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="the address to serve the metrics on (default: %(default)s, for this machine only). They are plain text "
        "without a token: names of jobs, trainers and workers, and numbers; never elements",
    )


def run(args: argparse.Namespace) -> int:
    """Run a dispatcher until Ctrl-C or SIGTERM."""
    with gc_paused():
        from dsnb.dispatcher.config import DispatcherConfig
        from dsnb.wire.security import load_or_create_token, token_from_environment

    token = token_from_environment() if args.token_file is None else load_or_create_token(args.token_file)
    with claimed_name(args.name) as name:
        config = DispatcherConfig(
            name=name,
            token=token,
            tls=False if args.no_tls else None,
            worker_addresses=args.worker_address,
            **given(args, "port", "host", "dispatcher_address", "work_dir", "deployment_mode", "consumer_timeout_ms"),
        )
        serve(config, args)
    return 0


def serve(config: DispatcherConfig, args: argparse.Namespace) -> None:
    """Run the dispatcher, print its address, and wait until it is stopped or drained."""
    with gc_paused():
        from dsnb.dispatcher.server import DispatchServer
        from dsnb.wire.lifecycle import stop_when_idle

    with (
        DispatchServer(config) as server,
        drain_and_stop_events() as (drain, stop),
        published(server),
        join_file_written(args.join_file, server),
        recording(args, server),
        serving_metrics(args, server) as metrics_url,
    ):
        if args.as_json:
            found = {"target": server.target, "token_file": args.token_file, "metrics_url": metrics_url}
            print(json.dumps(found), flush=True)
        else:
            metrics = f"; metrics at {metrics_url}" if metrics_url else ""
            print(f"dispatcher ready at {server.target}{metrics}; Ctrl-C stops it", flush=True)
        wait_until_stopped(stop, server.join, drain, lambda: stop_when_idle(server))


@contextmanager
def join_file_written(path: str | None, server: DispatchServer) -> Iterator[None]:
    """Write the service's join file if `--join-file` is given.

    Raises:
        NotFoundError: the file cannot be written.
    """
    if path is not None:
        from dsnb.wire.join_file import write_join_file

        write_join_file(path, server.join_file)
    yield


@contextmanager
def recording(args: argparse.Namespace, server: DispatchServer) -> Iterator[None]:
    """Record the service's snapshots to a file if `--record` is given."""
    from dsnb.monitor.run_file import RunWriter

    if args.record is None:
        yield
        return
    with RunWriter(args.record, server.target, server.token):
        yield


@contextmanager
def serving_metrics(args: argparse.Namespace, server: DispatchServer) -> Iterator[str | None]:
    """Serve the service's metrics if `--metrics-port` is given; yields their address, or None.

    Raises:
        InvalidArgumentError: the port is not between 0 and 65535, or the host is no address of this machine.
        AlreadyExistsError: the port is taken.
        FailedPreconditionError: the system does not allow to listen on the port.
    """
    if args.metrics_port is None:
        yield None
        return
    from dsnb.monitor.metrics_server import MetricsServer

    with MetricsServer(server.reported_status, args.metrics_port, host=args.metrics_host) as metrics:
        yield metrics.url


@contextmanager
def claimed_name(name: str | None) -> Iterator[str]:
    """Reserve a service name for this process: `name`, or a free one if it is None.

    Raises:
        AlreadyExistsError: another service uses the name.
    """
    from dsnb.wire.discovery import claim, retract

    connection = claim(name)
    try:
        yield connection.name
    finally:
        retract(connection)  # does nothing once `published` has replaced the claim by a connection file


@contextmanager
def published(server: DispatchServer) -> Iterator[None]:
    """Write the connection file: this user's other processes then find the service by name, and its token by address.

    Raises:
        AlreadyExistsError: another service uses the name.
    """
    from dsnb.wire.discovery import publish, retract

    config = server.config
    connection = publish(
        config.name,
        server.target,
        server.token,
        lasting=config.work_dir is not None,
        certificate=server.certificate,
    )
    try:
        yield
    finally:
        retract(connection)

"""`dsnb jobs`, `dsnb workers`: list them; `dsnb receipt`: one job; `dsnb job`, `dsnb worker ...`: change one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dsnb.cli.options import add_command, add_json, add_service, add_token_file, token_of
from dsnb.monitor.status_text import older_jobs_lines
from dsnb.monitor.tables import job_table, text_table, worker_table

if TYPE_CHECKING:
    from dsnb.cli.options import Commands
    from dsnb.monitor.snapshot import JobStatus, Snapshot, WorkerStatus

JOBS_DESCRIPTION = """\
List the jobs of a running service.

`dsnb status` shows more of each: its splits, its trainers."""
WORKERS_DESCRIPTION = """\
List the workers of a running service.

`dsnb worker drain NAME` takes one out of it."""
JOB_DESCRIPTION = """\
Pause, resume or cancel a job.

A paused job delivers nothing until it is resumed, and loses nothing. Cancelling a job ends each of its readers with an
error that says who cancelled it."""
RECEIPT_DESCRIPTION = """\
Show what an epoch of a job delivered.

For the epoch, each reader and each lost worker: how many of the elements came, how many are missing, and how many came
twice. The exit code is 0 if each element is known to have come exactly once, else 1."""
DRAIN_DESCRIPTION = """\
Have a worker finish its work and leave.

DYNAMIC jobs lose nothing. After 3 seconds, other workers continue its tasks of other modes; in mode OFF, those end
early."""
REMOVE_DESCRIPTION = """\
Remove a worker at once.

Other workers continue its tasks. Elements that they cannot produce again are lost; they are counted, and readers are
warned."""
JOBS_EXAMPLES = """\
  dsnb jobs                      of the only service of yours on this machine
  dsnb jobs digits --json        of the one called `digits`, for a script"""
WORKERS_EXAMPLES = """\
  dsnb workers                   of the only service of yours on this machine
  dsnb workers digits --json     of the one called `digits`, for a script"""
JOB_EXAMPLES = """\
  dsnb job pause train                    `dsnb jobs` lists their names
  dsnb job cancel train --service digits  of the service called `digits`"""

RECEIPT_EXAMPLES = """\
  dsnb receipt train             of the newest epoch of the job `train`
  dsnb receipt train --epoch 1   of its first"""

_JOB_COLUMNS = ("job", "mode", "state", "pass", "clients", "produced", "consumed", "lost_splits", "pipeline")
_WORKER_COLUMNS = (
    *("worker", "address", "state", "isolation", "tasks", "readers", "produced"),
    *("cache_bytes", "capacity_bytes", "rss_bytes"),
)


def add_to(commands: Commands) -> None:
    """Declare the commands for jobs and workers."""
    for name, run, description, examples in (
        ("jobs", run_jobs, JOBS_DESCRIPTION, JOBS_EXAMPLES),
        ("workers", run_workers, WORKERS_DESCRIPTION, WORKERS_EXAMPLES),
    ):
        parser = add_command(commands, name, run, description, examples)
        add_service(parser)
        add_json(parser, f"print everything as one JSON object, with `{name}`")
    for action, description in (("drain", DRAIN_DESCRIPTION), ("remove", REMOVE_DESCRIPTION)):
        parser = add_command(commands, f"worker {action}", run_worker, description)
        parser.add_argument("name", help="the worker's name, as in `w0`, or its address")
        _add_service_options(parser, "--dispatcher", "worker")
        parser.set_defaults(action=action)
    parser = add_command(commands, "job", run_job, JOB_DESCRIPTION, JOB_EXAMPLES)
    parser.add_argument("action", choices=["pause", "resume", "cancel"], help="what to do with it")
    parser.add_argument("name", help="the job's name")
    _add_service_options(parser, "--service", "job")

    parser = add_command(commands, "receipt", run_receipt, RECEIPT_DESCRIPTION, RECEIPT_EXAMPLES)
    parser.add_argument("name", help="the job's name")
    parser.add_argument("--epoch", type=int, help="the epoch, from 1 (default: the newest)")
    default = "the service's name or address (default: the only one that runs here)"
    parser.add_argument("--service", metavar="SERVICE", help=default)
    add_token_file(parser)
    add_json(parser, "print everything as one JSON object")


def _add_service_options(parser: argparse.ArgumentParser, option: str, kind: str) -> None:
    default = "the service's name or address (default: the only one that runs here)"
    parser.add_argument(option, dest="service", metavar="SERVICE", help=default)
    add_token_file(parser)
    add_json(parser, f"print the answer as JSON, with `{kind}` and `state`")


def run_jobs(args: argparse.Namespace) -> int:
    """Print the service's jobs as a table."""
    snapshot = _snapshot(args)
    lines = [*text_table(job_table(snapshot.jobs, _JOB_COLUMNS)), *older_jobs_lines(snapshot)]
    _print(args, "jobs", snapshot.jobs, lines)
    return 0


def run_workers(args: argparse.Namespace) -> int:
    """Print the service's workers as a table."""
    snapshot = _snapshot(args)
    _print(args, "workers", snapshot.workers, text_table(worker_table(snapshot.workers, _WORKER_COLUMNS)))
    return 0


def run_job(args: argparse.Namespace) -> int:
    """Apply an action to a job and print its new state."""
    state = _run_control(args)
    print(json.dumps({"job": args.name, "state": state}) if args.as_json else f"job {args.name!r} is {state}")
    return 0


def run_worker(args: argparse.Namespace) -> int:
    """Drain or remove a worker and print its new state."""
    state = _run_control(args)
    print(json.dumps({"worker": args.name, "state": state}) if args.as_json else f"worker {args.name} is {state}")
    return 0


def run_receipt(args: argparse.Namespace) -> int:
    """Print the receipt of an epoch; 1 unless each element is known to have come once."""
    from dsnb.notebook.connect import connect

    with connect(args.service, token_of(args)) as service:
        found = service.receipt(args.name, args.epoch)
    print(json.dumps(found.to_dict(), indent=2) if args.as_json else found)
    return 0 if found.each_once else 1


def _run_control(args: argparse.Namespace) -> str:
    """Send the request to the service and return the state that the service confirms."""
    from dsnb.monitor.controls import Controls, describe_caller
    from dsnb.notebook.connect import connect

    with connect(args.service, token_of(args)) as found:
        controls = Controls(
            found.target, found.token, requested_by=describe_caller(f"`dsnb {args.command.split()[0]} {args.action}`")
        )
        return str(getattr(controls, args.action)(args.name))


def _snapshot(args: argparse.Namespace) -> Snapshot:
    from dsnb.notebook.connect import connect

    with connect(args.service, token_of(args)) as service:
        return service.status()


def _print(
    args: argparse.Namespace, kind: str, rows: Sequence[JobStatus] | Sequence[WorkerStatus], lines: list[str]
) -> None:
    if args.as_json:
        print(json.dumps({kind: msgspec.to_builtins(rows)}, indent=2))
    else:
        print("\n".join(lines) or f"no {kind}")

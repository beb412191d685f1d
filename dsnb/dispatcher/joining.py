"""Checks of a worker that joins: whether it can run this service's pipelines, and whether others can reach it."""

from __future__ import annotations

import sys

from dsnb.errors import DsnbError, FailedPreconditionError
from dsnb.wire.addresses import host_of, is_loopback
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import Empty, WorkerReport
from dsnb.wire.methods import PING
from dsnb.wire.server import is_local_peer

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_ANSWER_S = 5.0
"""How long a worker that joins may take to answer at its address."""


def check_worker(report: WorkerReport, peer: str, token: str) -> None:
    """Check a worker before it is added.

    Args:
        report: Its first report.
        peer: The address from which it calls, as gRPC writes it.
        token: The service's token.

    Raises:
        FailedPreconditionError: it runs another minor version of Python, or does not answer at its address.
    """
    if report.python and report.python != _PYTHON:
        raise FailedPreconditionError(
            f"the worker runs Python {report.python}, and this service {_PYTHON}: bytecode of functions differs",
            did="the worker was not added",
            hint=f"start it with Python {_PYTHON}",
        )
    if not (is_local_peer(peer) and is_loopback(host_of(report.address))):
        _check_reachable(report, token)


def _check_reachable(report: WorkerReport, token: str) -> None:
    channel = open_channel(report.address, token, report.uid)
    try:
        channel.call(PING, Empty(), timeout=_ANSWER_S)
    except DsnbError as error:
        raise FailedPreconditionError(
            f"the worker says that it is at {report.address}, which cannot be reached from here: {error.what}",
            did="the worker was not added: readers could not reach it either",
            hint="start it with --host or --worker-address and the address at which others reach it, and a --port that "
            "the firewall lets through",
        ) from None
    finally:
        channel.close()

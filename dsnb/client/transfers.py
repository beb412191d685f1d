"""Which way a task's elements come: by reference in one process, through shared memory on one host, else by gRPC."""

from __future__ import annotations

from typing import Any

from dsnb.arguments import instance
from dsnb.errors import FailedPreconditionError, NotFoundError, UnavailableError, near
from dsnb.wire.messages import TaskInfo
from dsnb.wire.transfer import local
from dsnb.wire.transfer.grpc import GrpcEndpoint
from dsnb.wire.transfer.handover import Endpoint, Link
from dsnb.wire.transfer.shared_memory.endpoint import SharedMemoryEndpoint
from dsnb.wire.transfer.shared_memory.memory import supported

_PROTOCOLS = ("grpc", "shared_memory", "local")
_TEXT = instance(str, hint='pass "grpc", "shared_memory" or "local", or leave it out')
_ASKED_FOR = "data_transfer_protocol asks for it"
_LEAVE_OUT = "leave data_transfer_protocol out"


def transfer_protocol(name: str, value: Any) -> str | None:
    """The name of a transfer; None for the best that works.

    Raises:
        InvalidArgumentError: for anything but text.
        NotFoundError: for an unknown name.
        FailedPreconditionError: for one that this system cannot do.
    """
    if value is None:
        return None
    protocol: str = _TEXT(name, value)
    if protocol not in _PROTOCOLS:
        raise NotFoundError(
            f"`{name}`: the data transfer protocol {protocol!r} is not available",
            hint=near(protocol, _PROTOCOLS) + 'use "grpc", "shared_memory" or "local", or leave it out',
        )
    if protocol == "shared_memory" and not supported():
        raise not_available(protocol, "it needs Linux")
    return protocol


def not_available(protocol: str, why: str) -> FailedPreconditionError:
    """The error of a transfer that was asked for and cannot be."""
    return FailedPreconditionError(f"the transfer {protocol!r} is not available: {why}", hint=_LEAVE_OUT)


def way_to(info: TaskInfo, protocol: str | None, token: str, *, before: str, refused: str) -> tuple[Endpoint, Link]:
    """How to reach a task's worker.

    Args:
        info: The task.
        protocol: What was asked for; None for the best that works.
        token: For the worker.
        before: The transfer by which it was read before; empty if it was not.
        refused: Why shared memory is out of the question; empty if that is not known.

    Raises:
        FailedPreconditionError: what was asked for is impossible.
        UnavailableError: it was possible before, and may be again.
    """
    in_process = local.find(info.worker_uid)
    if protocol == "grpc":
        return GrpcEndpoint(info.address, token, info.worker_uid), Link(transfer="grpc", why=_ASKED_FOR)
    if protocol == "shared_memory":
        return SharedMemoryEndpoint(info.worker_uid, token), Link(transfer="shared_memory", why=_ASKED_FOR)
    if in_process is not None:
        return in_process, Link(transfer="local", why=_ASKED_FOR if protocol else "client and worker are one process")
    if protocol == "local":
        if before == "local":
            raise UnavailableError(f"worker {info.worker} was stopped")
        raise not_available("local", f"worker {info.worker} lives in another process")
    if refused or not supported():
        why = refused or "this system has no shared memory without a name"
        return GrpcEndpoint(info.address, token, info.worker_uid), Link(transfer="grpc", why=why)
    link = Link(transfer="shared_memory", why="client and worker are two processes of one host")
    return SharedMemoryEndpoint(info.worker_uid, token), link

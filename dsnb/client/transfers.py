"""Chooses the transfer of a task's elements: by reference in one process, shared memory on one host, otherwise gRPC."""

from __future__ import annotations

from typing import Any

from dsnb.arguments import instance
from dsnb.errors import FailedPreconditionError, NotFoundError, UnavailableError, did_you_mean
from dsnb.transfer import local
from dsnb.transfer.grpc import GrpcEndpoint
from dsnb.transfer.protocol import Endpoint, LinkStats
from dsnb.transfer.shared_memory.client import SharedMemoryEndpoint
from dsnb.transfer.shared_memory.memory import supported
from dsnb.wire.messages import TaskInfo

_PROTOCOLS = ("grpc", "shared_memory", "local")
_TEXT = instance(str, hint='pass "grpc", "shared_memory" or "local", or leave it out')
_REQUESTED = "data_transfer_protocol asks for it"
_LEAVE_OUT = "leave data_transfer_protocol out"


def transfer_protocol(name: str, value: Any) -> str | None:
    """Check the name of a transfer; None chooses the fastest available.

    Raises:
        InvalidArgumentError: for anything but text.
        NotFoundError: for an unknown name.
        FailedPreconditionError: for a transfer that this system does not support.
    """
    if value is None:
        return None
    protocol: str = _TEXT(name, value)
    if protocol not in _PROTOCOLS:
        raise NotFoundError(
            f"`{name}`: the data transfer protocol {protocol!r} is not available",
            hint=did_you_mean(protocol, _PROTOCOLS) + 'use "grpc", "shared_memory" or "local", or leave it out',
        )
    if protocol == "shared_memory" and not supported():
        raise transfer_unavailable(protocol, "it needs Linux")
    return protocol


def transfer_unavailable(protocol: str, why: str) -> FailedPreconditionError:
    """The error of a requested transfer that is not available."""
    return FailedPreconditionError(f"the transfer {protocol!r} is not available: {why}", hint=_LEAVE_OUT)


def choose_transfer(
    info: TaskInfo, protocol: str | None, token: str, *, previous_transfer: str, shared_memory_refusal: str
) -> tuple[Endpoint, LinkStats]:
    """Choose how to reach a task's worker.

    Args:
        info: The task.
        protocol: The requested transfer; None for the fastest available.
        token: The token that the worker requires.
        previous_transfer: The transfer of the previous connection; empty before the first one.
        shared_memory_refusal: Why shared memory cannot be used; empty if it can, as far as is known.

    Raises:
        FailedPreconditionError: the requested transfer is impossible.
        UnavailableError: it was possible before, and may be again.
    """
    in_process = local.find(info.worker_uid)
    if protocol == "grpc":
        return GrpcEndpoint(info.address, token, info.worker_uid), LinkStats(transfer="grpc", reason=_REQUESTED)
    if protocol == "shared_memory":
        return SharedMemoryEndpoint(info.worker_uid, token), LinkStats(transfer="shared_memory", reason=_REQUESTED)
    if in_process is not None:
        return in_process, LinkStats(
            transfer="local", reason=_REQUESTED if protocol else "client and worker are one process"
        )
    if protocol == "local":
        if previous_transfer == "local":
            raise UnavailableError(f"worker {info.worker} was stopped")
        raise transfer_unavailable("local", f"worker {info.worker} lives in another process")
    if shared_memory_refusal or not supported():
        why = shared_memory_refusal or "this system has no shared memory without a name"
        return GrpcEndpoint(info.address, token, info.worker_uid), LinkStats(transfer="grpc", reason=why)
    link = LinkStats(transfer="shared_memory", reason="client and worker are two processes of one host")
    return SharedMemoryEndpoint(info.worker_uid, token), link

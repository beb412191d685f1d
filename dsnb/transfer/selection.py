"""Selects the transfer of a task's elements.

By reference in one process, through shared memory on one host, otherwise over TCP, and by gRPC where that is not
possible or the service uses TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsnb.arguments import instance
from dsnb.errors import FailedPreconditionError, NotFoundError, UnavailableError, did_you_mean
from dsnb.transfer import local
from dsnb.transfer.grpc import GRPC, GrpcEndpoint
from dsnb.transfer.local import LOCAL, LocalEndpoint
from dsnb.transfer.protocol import Endpoint, Transfer, TransferRefused
from dsnb.transfer.shared_memory.client import SharedMemoryEndpoint
from dsnb.transfer.shared_memory.memory import supported
from dsnb.transfer.shared_memory.messages import SHARED_MEMORY
from dsnb.transfer.tcp.client import TcpEndpoint, known_refusal
from dsnb.transfer.tcp.messages import TCP
from dsnb.wire import discovery
from dsnb.wire.addresses import host_of
from dsnb.wire.messages import TaskInfo

_TRANSFERS: Final = {transfer.name: transfer for transfer in (GRPC, TCP, SHARED_MEMORY, LOCAL)}
_NAMES: Final = '"tcp", "grpc", "shared_memory" or "local", or leave it out'
_TEXT = instance(str, hint=f"pass {_NAMES}")
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
    if protocol not in _TRANSFERS:
        raise NotFoundError(
            f"`{name}`: the data transfer protocol {protocol!r} is not available",
            hint=did_you_mean(protocol, list(_TRANSFERS)) + f"use {_NAMES}",
        )
    if protocol == SHARED_MEMORY.name and not supported():
        raise transfer_unavailable(protocol, "it needs Linux")
    return protocol


def can_check_messages(protocol: str | None) -> bool:
    """Whether a transfer can check its messages; None stands for the fastest available one that can."""
    return protocol is None or _TRANSFERS[protocol].carries_checksum


def transfer_unavailable(protocol: str, why: str) -> FailedPreconditionError:
    """The error of a requested transfer that is not available."""
    return FailedPreconditionError(f"the transfer {protocol!r} is not available: {why}", hint=_LEAVE_OUT)


def choose_transfer(
    info: TaskInfo,
    protocol: str | None,
    token: str,
    *,
    checksum: bool = False,
    previous: Transfer | None,
    refusals: Mapping[str, str],
) -> tuple[Endpoint, str]:
    """Choose how to reach a task's worker.

    Args:
        info: The task.
        protocol: The requested transfer; None for the fastest available.
        token: The token that the worker requires.
        checksum: Whether messages are to carry checksums.
        previous: The transfer of the previous connection; None before the first one.
        refusals: Why transfers to this worker cannot be used, by name, as far as is known.

    Returns:
        The worker, and the reason for the choice.

    Raises:
        FailedPreconditionError: the requested transfer is impossible.
        UnavailableError: it was possible before, or may be soon.
    """
    if protocol == GRPC.name:
        return GrpcEndpoint(info.address, token, info.worker_uid), _REQUESTED
    if protocol == SHARED_MEMORY.name:
        return SharedMemoryEndpoint(info.worker_uid, token), _REQUESTED
    if protocol == TCP.name:
        if not info.data_port:
            raise TransferRefused(_no_data_port_text(info))
        return _tcp_endpoint(info, token), _REQUESTED
    in_process = local.find(info.worker_uid)
    if in_process is not None:
        why = _REQUESTED if protocol else "client and worker are one process"
        return LocalEndpoint(in_process), why + _no_checksum_text(checksum)
    if protocol == LOCAL.name:
        if previous is LOCAL:
            raise UnavailableError(f"worker {info.worker} was stopped")
        raise transfer_unavailable(protocol, f"worker {info.worker} lives in another process")
    why = refusals.get(SHARED_MEMORY.name) or _shared_memory_obstacle(checksum)
    if not why:
        return SharedMemoryEndpoint(info.worker_uid, token), "client and worker are two processes of one host"
    tcp_refusal = refusals.get(TCP.name) or _tcp_obstacle(info, token)
    if not tcp_refusal:
        return _tcp_endpoint(info, token), why
    return GrpcEndpoint(info.address, token, info.worker_uid), f"{why}; {tcp_refusal}"


def _tcp_endpoint(info: TaskInfo, token: str) -> TcpEndpoint:
    return TcpEndpoint(host_of(info.address), info.data_port, token, info.worker_uid)


def _no_checksum_text(checksum: bool) -> str:
    return "; checksum=True has nothing to check: references are passed" if checksum else ""


def _shared_memory_obstacle(checksum: bool) -> str:
    """Why shared memory is out of the question; empty if it is not."""
    if checksum:
        return "checksum=True: shared memory carries no checksums"
    return "" if supported() else "this system has no shared memory without a name"


def _tcp_obstacle(info: TaskInfo, token: str) -> str:
    """Why TCP is out of the question if it was not requested; empty if it is not."""
    if not info.data_port:
        return _no_data_port_text(info)
    # Python's TLS takes the GIL again for each 16 KB. Where another thread keeps it busy, that takes 5 ms each time:
    # gRPC, which decrypts without the GIL, was 14 times as fast. Without such a thread the two are about equal.
    if discovery.certificate_for(token):
        return "the service uses TLS, for which gRPC is chosen"
    return known_refusal(host_of(info.address), info.data_port)


def _no_data_port_text(info: TaskInfo) -> str:
    return f"worker {info.worker} has no data port"

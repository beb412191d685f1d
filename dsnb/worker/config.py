"""`WorkerConfig`: the settings of a worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from dsnb.arguments import checked, each, integer, milliseconds, nbytes, one_of, optional, path, text
from dsnb.errors import InvalidArgumentError
from dsnb.wire.addresses import AUTO, advertised_address, listen_host, ports, target, token
from dsnb.wire.certificates import check_certificate
from dsnb.worker.host import memory_bytes

MIB = 1 << 20
_DEFAULT_SHARED_MEMORY_BYTES = 256 * MIB


def _dispatcher_address(name: str, value: Any) -> str:
    if value is None or (isinstance(value, str) and not value):
        raise InvalidArgumentError(
            f"`{name}`: a worker needs the address of its dispatcher",
            hint='WorkerConfig(dispatcher_address="127.0.0.1:5050")',
        )
    return target(name, value)


def _tag(name: str, value: Any) -> str:
    if isinstance(value, str) and not value:
        raise InvalidArgumentError(f"`{name}`: Worker tags cannot be empty", hint=_TAGS_HINT)
    return text(name, value)


_TAGS_HINT = 'pass a list of names: ["COLOCATED"]'


def _shared_memory(name: str, value: Any) -> int:
    size: int = integer(0, hint="pass 0 for none, or leave it out")(name, value)
    there = memory_bytes()
    if size > there > 0:
        raise InvalidArgumentError(
            f"`{name}` is {size:,}, more than the {there:,} bytes of memory that this host has",
            did="nothing was started",
            hint="leave it out for a quarter of the memory, at most 256 MiB; a few batches for each reader suffice",
        )
    return size


def _existing_folder(name: str, value: Any) -> str:
    folder = path(name, value)
    if not os.path.isdir(folder):
        raise InvalidArgumentError(f"`{name}`: {folder!r} is no folder", hint="make it first")
    return folder


LAUNCHED_WORKER_GONE_MS = 50_000
"""`dispatcher_gone_ms` of workers that belong to one service, those of `dsnb.start` and those that join by a join file:
they may run on rented machines. Less than a minute, so that nothing is left of them after a minute."""


@checked(
    dispatcher_address=_dispatcher_address,
    worker_address=optional(advertised_address),
    port=ports,
    protocol=optional(one_of("grpc"), "grpc"),
    heartbeat_interval_ms=optional(milliseconds, 500),
    dispatcher_timeout_ms=optional(milliseconds, 60_000),
    host=listen_host,
    token=optional(token),
    certificate=optional(check_certificate),
    name=optional(text),
    dispatcher_gone_ms=milliseconds,
    cross_trainer_cache_size_bytes=nbytes,
    spill_dir=optional(_existing_folder),
    spill_size_bytes=nbytes,
    shared_memory_bytes=optional(_shared_memory),
    read_ahead_bytes=nbytes,
    max_readers=integer(1, 1_000_000),
    isolation=one_of("thread", "process"),
    worker_tags=each(_tag, _TAGS_HINT),
)
@dataclass(frozen=True)
class WorkerConfig:
    """Settings of a `WorkerServer`; names as in the tf.data service, times in milliseconds.

    Args:
        dispatcher_address: "host:port" or "grpc://host:port" of the dispatcher.
        worker_address: The address that the dispatcher and clients use for this worker; None for the one that it
            listens on. "%port%" stands for the port.
        port: The port to listen on; 0 for a free one. A range, as in `range(5100, 5201)` or "5100-5200", stands for
            its first free port: for firewalls that let only these through. The worker listens on a second port for
            readers over TCP, its data port: a free one, or without TLS the last free one of the second half of a range
            of 4 or more ports. Readers that cannot reach it use gRPC.
        protocol: "grpc".
        heartbeat_interval_ms: How often the worker reports to the dispatcher while no viewer watches the service.
        dispatcher_timeout_ms: How long a worker waits for an unreachable dispatcher before its readers get an error.
        host: The address to listen on. "auto" is the address of this machine that routes to the dispatcher: loopback
            if the dispatcher listens there. "0.0.0.0" stands for all addresses.
        token: The dispatcher's token; None to look it up by the address (this user's connection files, `DSNB_TOKEN`)
            each time a connection is made.
        certificate: The service's certificate with its key, in PEM format, from a join file; None to look it up like
            the token. Without one, connections are not encrypted.
        name: The worker's preferred name; None for "w0", "w1" and so on.
        dispatcher_gone_ms: How long the dispatcher and all clients must have been gone before the worker stops.
        cross_trainer_cache_size_bytes: Bytes of elements kept for other trainers, shared by all tasks of the worker.
        spill_dir: The folder for elements of trainers with `on_lag="spill"` that fall behind; None for the system's
            temporary folder. The files have no names, so none is left over after a crash.
        spill_size_bytes: Most bytes on disk for all tasks together.
        shared_memory_bytes: Most bytes of shared memory for readers on this host, allocated as needed. None for 256
            MiB, or a quarter of the host's memory if that is less; 0 for none: these readers then use TCP or gRPC.
        read_ahead_bytes: Most bytes produced ahead of demand, for each task.
        max_readers: How many readers in other processes are served at a time; others get a ResourceExhaustedError.
        isolation: "process" if readers are in other processes than the worker, so that frames are laid out for them;
            "thread" if they share its process.
        worker_tags: Names for this worker. "COLOCATED" reserves it for the readers of its own process, for coordinated
            reads, and for readers with `target_workers="ANY"`, as in the tf.data service; other names change nothing.

    Raises:
        InvalidArgumentError: a value is invalid.

    Example:
        >>> WorkerConfig(dispatcher_address="127.0.0.1:5050").port
        0
    """

    dispatcher_address: str
    worker_address: str | None = None
    port: int | range | str = 0
    protocol: str = "grpc"
    heartbeat_interval_ms: int = 500
    dispatcher_timeout_ms: int = 60_000
    _: KW_ONLY  # the fields above are positional, in the order of the tf.data service
    host: str = AUTO
    token: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    name: str | None = None
    dispatcher_gone_ms: int = 600_000
    cross_trainer_cache_size_bytes: int = 512 * MIB
    spill_dir: str | None = None
    spill_size_bytes: int = 10 * 1024 * MIB
    shared_memory_bytes: int | None = None
    read_ahead_bytes: int = 16 * MIB
    max_readers: int = 256
    isolation: str = "process"
    worker_tags: Sequence[str] = ()

    @property
    def shared_memory_size(self) -> int:
        """Most bytes of shared memory: `shared_memory_bytes`, or its default."""
        if self.shared_memory_bytes is not None:
            return self.shared_memory_bytes
        return min(_DEFAULT_SHARED_MEMORY_BYTES, (memory_bytes() or 4 * _DEFAULT_SHARED_MEMORY_BYTES) // 4)

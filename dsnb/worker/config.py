"""How a worker is set up."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, field
from typing import Any

from dsnb.arguments import checked, integer, milliseconds, nbytes, one_of, optional, path, port, text
from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError
from dsnb.wire.addresses import loopback, target, target_address, token
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


def _worker_address(name: str, value: Any) -> str:
    """What others are told: "host:port", where the port may be "%port%"."""
    given = text(name, value)
    target_address(given.replace("%port%", "1"), name)
    return given


def _existing_folder(name: str, value: Any) -> str:
    folder = path(name, value)
    if not os.path.isdir(folder):
        raise InvalidArgumentError(f"`{name}`: {folder!r} is no folder", hint="make it first")
    return folder


@checked(
    dispatcher_address=_dispatcher_address,
    worker_address=optional(_worker_address),
    port=port,
    protocol=optional(one_of("grpc"), "grpc"),
    heartbeat_interval_ms=optional(milliseconds, 500),
    dispatcher_timeout_ms=optional(milliseconds, 60_000),
    host=loopback,
    token=optional(token),
    name=optional(text),
    dispatcher_gone_ms=milliseconds,
    cross_trainer_cache_size_bytes=nbytes,
    spill_dir=optional(_existing_folder),
    spill_size_bytes=nbytes,
    shared_memory_bytes=optional(_shared_memory),
    read_ahead_bytes=nbytes,
    max_readers=integer(1, 1_000_000),
    isolation=one_of("thread", "process"),
)
@dataclass(frozen=True)
class WorkerConfig:
    """Settings of a `WorkerServer`; names as in the tf.data service, times in milliseconds.

    Args:
        dispatcher_address: "host:port" or "grpc://host:port" of the dispatcher.
        worker_address: What dispatcher and clients are told; None for the address that it listens on. "%port%" in it
            stands for the port.
        port: 0 for a free one.
        host: The address to listen on; loopback only.
        protocol: "grpc".
        token: The dispatcher's token; None to find it by the address (this user's connection files, `DSNB_TOKEN`),
            anew whenever a connection is made.
        name: What it would like to be called; None for "w0", "w1" and so on.
        heartbeat_interval_ms: How often it reports when nobody watches.
        dispatcher_gone_ms: How long the dispatcher may be gone before a worker that nobody reads stops by itself.
        dispatcher_timeout_ms: How long it waits for a dispatcher that is away before its readers are told.
        cross_trainer_cache_size_bytes: Bytes of elements kept for other trainers, shared by all its tasks.
        spill_dir: Where elements are put for trainers that asked for `on_lag="spill"` and fall behind; None for the
            system's temporary folder. Nothing in it has a name, so nothing can be left behind.
        spill_size_bytes: Bytes on disk that all tasks may take together.
        shared_memory_bytes: Most bytes of shared memory, in which readers of this host find their elements; they are
            taken as they are needed. None for 256 MiB, or a quarter of the host's memory if that is less; 0 for none:
            then these readers use gRPC.
        read_ahead_bytes: Bytes produced ahead of demand, for each task.
        max_readers: Readers of other processes that are served at once; the next one gets a ResourceExhaustedError.

    Raises:
        InvalidArgumentError: for a value that can never be right.

    Example:
        >>> WorkerConfig(dispatcher_address="127.0.0.1:5050").port
        0
    """

    dispatcher_address: str
    worker_address: str | None = None
    port: int = 0
    protocol: str = "grpc"
    heartbeat_interval_ms: int = 500
    dispatcher_timeout_ms: int = 60_000
    _: KW_ONLY  # those before stand in the original's order
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    name: str | None = None
    dispatcher_gone_ms: int = 600_000
    cross_trainer_cache_size_bytes: int = 512 * MIB
    spill_dir: str | None = None
    spill_size_bytes: int = 10 * 1024 * MIB
    shared_memory_bytes: int | None = None
    read_ahead_bytes: int = 16 * MIB
    max_readers: int = 256
    isolation: str = "process"

    @property
    def shared_memory_size(self) -> int:
        """Most bytes of shared memory, whether they were given or not."""
        if self.shared_memory_bytes is not None:
            return self.shared_memory_bytes
        return min(_DEFAULT_SHARED_MEMORY_BYTES, (memory_bytes() or 4 * _DEFAULT_SHARED_MEMORY_BYTES) // 4)

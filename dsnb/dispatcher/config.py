"""How a dispatcher is set up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class DispatcherConfig:
    """Settings of a `DispatchServer`; names as in the tf.data service, times in milliseconds.

    Args:
        port: 0 for a free one; with a `work_dir`, the one that was had last, if it is free.
        host: The address to listen on; loopback only.
        protocol: "grpc".
        token: What every caller must show; None for a random one.
        name: The service's name, for people.
        work_dir: A folder, made if it is not there, that belongs to this service alone: its token, and all that lets a
            dispatcher that is started again in it carry on where the last one was. None for a service that ends with
            its process.
        fault_tolerant_mode: Whether each change of state is kept in `work_dir`; None where there is one.
        worker_timeout_ms: A worker not heard of for this long is lost.
        client_timeout_ms: A client not heard of for this long is gone.
        reconnect_ms: How long one may take to come back whose connection broke.
        consumer_timeout_ms: How long a consumer of a coordinated read waits for a round before it raises an error that
            says for whom; reading can go on after it.
        job_gc_check_interval_ms: How often time-outs are looked at.
        job_gc_timeout_ms: How long a job's record is kept after its last client left; -1 for ever.
        task_gc_timeout_ms: How long the tasks of an unfinished pass are kept after its last client left.
        gc_dynamic_sharding_jobs: Whether DYNAMIC passes are collected as well.
        worker_addresses: The workers by which the static modes (FILE, DATA, FILE_OR_DATA, HINT) number shards, in
            order: "host", "host:port", or "host:%port%" for any port; others are not let in. None to number the
            workers that are there when a pass begins.

    Raises:
        InvalidArgumentError: for a value that can never be right.

    Example:
        >>> DispatcherConfig(port=5050).worker_timeout_ms
        10000
    """

    port: int = 0
    host: str = "127.0.0.1"
    protocol: str = "grpc"
    token: str | None = None
    name: str = "dsnb"
    work_dir: str | os.PathLike[str] | None = None
    fault_tolerant_mode: bool | None = None
    worker_timeout_ms: int = 10_000
    client_timeout_ms: int = 10_000
    reconnect_ms: int = 2_000
    consumer_timeout_ms: int = 120_000
    job_gc_check_interval_ms: int = 200
    job_gc_timeout_ms: int = 600_000
    task_gc_timeout_ms: int = 5_000
    gc_dynamic_sharding_jobs: bool = True
    worker_addresses: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker_addresses", _addresses(self.worker_addresses))
        if not 0 <= self.port < 65536:
            raise InvalidArgumentError(f"the port {self.port} does not exist", hint="use 0 (any) to 65535")
        if self.protocol != "grpc":
            raise InvalidArgumentError(f"the protocol {self.protocol!r} is unknown", hint='use "grpc"')
        if self.fault_tolerant_mode and self.work_dir is None:
            raise InvalidArgumentError(
                "Cannot enable fault tolerant mode without configuring a work dir",
                hint="DispatcherConfig(work_dir=...), which is all that it takes",
            )
        for name in (
            "worker_timeout_ms",
            "client_timeout_ms",
            "reconnect_ms",
            "consumer_timeout_ms",
            "job_gc_check_interval_ms",
            "task_gc_timeout_ms",
        ):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}", hint="use milliseconds above 0")
        if self.job_gc_timeout_ms <= 0 and self.job_gc_timeout_ms != -1:
            raise InvalidArgumentError(
                f"job_gc_timeout_ms is {self.job_gc_timeout_ms}", hint="use milliseconds above 0, or -1 for never"
            )

    @property
    def client_report_ms(self) -> int:
        """How often clients report unless they are asked; hundreds that do nothing shall cost little."""
        return min(2_000, max(500, self.client_timeout_ms // 4))


def _addresses(entries: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(entries, str) or not all(isinstance(entry, str) and entry for entry in entries or ()):
        raise InvalidArgumentError(
            f"worker_addresses is {entries!r}", hint='use a list of addresses: ["localhost:%port%", "otherhost:5050"]'
        )
    return tuple(entries or ())

"""How a dispatcher is set up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import Any

from dsnb.arguments import checked, each, integer, milliseconds, one_of, optional, path, port, text
from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError
from dsnb.wire.addresses import loopback, token
from dsnb.wire.discovery import service_name


def _gc_timeout(name: str, value: Any) -> int:
    hint = "pass a number of milliseconds above 0, at most 10**12, or -1 for ever"
    milliseconds: int = integer(-1, 10**12, hint)(name, value)
    if not milliseconds:
        raise InvalidArgumentError(f"`{name}` is 0", hint=hint)
    return milliseconds


def _addresses(name: str, value: Any) -> tuple[str, ...]:
    entries: tuple[str, ...] = each(text, _ADDRESSES)(name, () if value is None else value)
    return entries


_ADDRESSES = 'pass a list of addresses: ["localhost:%port%", "otherhost:5050"]'


_DEFAULT_GC_CHECK_INTERVAL_MS, _DEFAULT_GC_TIMEOUT_MS, _DEFAULT_WORKER_TIMEOUT_MS = 200, 600_000, 10_000
"""Defaults, also for None, which the original takes for them."""


@checked(
    port=port,
    protocol=optional(one_of("grpc"), "grpc"),
    work_dir=optional(path),
    worker_addresses=_addresses,
    job_gc_check_interval_ms=optional(milliseconds, _DEFAULT_GC_CHECK_INTERVAL_MS),
    job_gc_timeout_ms=optional(_gc_timeout, _DEFAULT_GC_TIMEOUT_MS),
    worker_timeout_ms=optional(milliseconds, _DEFAULT_WORKER_TIMEOUT_MS),
    host=loopback,
    token=optional(token),
    name=service_name,
    client_timeout_ms=milliseconds,
    reconnect_ms=milliseconds,
    consumer_timeout_ms=milliseconds,
    task_gc_timeout_ms=milliseconds,
)
@dataclass(frozen=True)
class DispatcherConfig:
    """Settings of a `DispatchServer`; names as in the tf.data service, times in milliseconds.

    Args:
        port: 0 for a free one; with a `work_dir`, the one that was had last, if it is free.
        host: The address to listen on; loopback only.
        protocol: "grpc".
        token: The secret that every caller must know; None for a random one. Make it long and random: an attacker
            who has recorded a call can try tokens on it.
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
        gc_dynamic_sharding_jobs: Whether DYNAMIC passes that were left half read are collected as well. If not, they
            and their jobs are kept until somebody reads them to their end, or `svc.forget(job_name)`: no element of
            such a pass is given twice, however late its next reader comes.
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
    protocol: str = "grpc"
    work_dir: str | os.PathLike[str] | None = None
    fault_tolerant_mode: bool | None = None
    worker_addresses: Sequence[str] | None = ()
    job_gc_check_interval_ms: int = _DEFAULT_GC_CHECK_INTERVAL_MS
    job_gc_timeout_ms: int = _DEFAULT_GC_TIMEOUT_MS
    worker_timeout_ms: int = _DEFAULT_WORKER_TIMEOUT_MS
    _: KW_ONLY  # those before stand in the original's order
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    name: str = "dsnb"
    client_timeout_ms: int = 10_000
    reconnect_ms: int = 2_000
    consumer_timeout_ms: int = 120_000
    task_gc_timeout_ms: int = 5_000
    gc_dynamic_sharding_jobs: bool = True

    def __post_init__(self) -> None:
        if self.fault_tolerant_mode and self.work_dir is None:
            raise InvalidArgumentError(
                "`fault_tolerant_mode`: Cannot enable fault tolerant mode without configuring a work dir",
                hint="DispatcherConfig(work_dir=...), which is all that it takes",
            )

    @property
    def client_report_interval_ms(self) -> int:
        """How often clients report unless they are asked; hundreds that do nothing shall cost little."""
        return min(2_000, max(500, self.client_timeout_ms // 4))

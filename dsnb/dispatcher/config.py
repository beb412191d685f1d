"""`DispatcherConfig`: the settings of a dispatcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from dsnb.arguments import boolean, checked, each, integer, milliseconds, one_of, optional, path, text
from dsnb.errors import InvalidArgumentError
from dsnb.wire.addresses import advertised_address, is_loopback, listen_host, ports, token
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


def _deployment_mode(name: str, value: Any) -> str:
    known = one_of("COLOCATED", "REMOTE", "HYBRID")
    return str(known(name, value.upper() if isinstance(value, str) else value))


_ADDRESSES = 'pass a list of addresses: ["localhost:%port%", "otherhost:5050"]'


_DEFAULT_GC_CHECK_INTERVAL_MS, _DEFAULT_GC_TIMEOUT_MS, _DEFAULT_WORKER_TIMEOUT_MS = 200, 600_000, 10_000
"""Defaults; None means the default too, as in the tf.data service."""


@checked(
    port=ports,
    protocol=optional(one_of("grpc"), "grpc"),
    work_dir=optional(path),
    worker_addresses=_addresses,
    job_gc_check_interval_ms=optional(milliseconds, _DEFAULT_GC_CHECK_INTERVAL_MS),
    job_gc_timeout_ms=optional(_gc_timeout, _DEFAULT_GC_TIMEOUT_MS),
    worker_timeout_ms=optional(milliseconds, _DEFAULT_WORKER_TIMEOUT_MS),
    host=listen_host,
    tls=optional(boolean),
    dispatcher_address=optional(advertised_address),
    token=optional(token),
    name=service_name,
    client_timeout_ms=milliseconds,
    reconnect_ms=milliseconds,
    consumer_timeout_ms=milliseconds,
    task_gc_timeout_ms=milliseconds,
    deployment_mode=optional(_deployment_mode),
)
@dataclass(frozen=True)
class DispatcherConfig:
    """Settings of a `DispatchServer`; names as in the tf.data service, times in milliseconds.

    Args:
        port: The port to listen on. 0 for a free port; with a `work_dir`, the last port is used again if it is free. A
            range, as in `range(5100, 5201)` or "5100-5200", stands for its first free port.
        host: The address to listen on. "auto" is the address of this machine that routes to other machines, and
            "0.0.0.0" stands for all addresses.
        dispatcher_address: The address that workers and clients on other machines use, if it is not the one that the
            dispatcher listens on, as behind NAT: "host:port", where "%port%" stands for the port.
        tls: Whether connections are encrypted. None: yes if `host` is not loopback. The dispatcher makes its own
            certificate for that, which needs the extra dsnb[cluster]; it is kept in `work_dir` if there is one.
        protocol: "grpc".
        token: The secret that every caller must know; None for a random one. Make it long and random: an attacker
            who has recorded a call can try tokens on it.
        name: The service's name, for display.
        work_dir: A folder for this service only, created if it does not exist. It keeps the token and everything that
            a restarted dispatcher needs to continue. None for a service that ends with its process.
        fault_tolerant_mode: Whether each change of state is kept in `work_dir`. None: yes if there is a `work_dir`.
        worker_timeout_ms: A worker whose last heartbeat is older than this is lost.
        client_timeout_ms: A client whose last heartbeat is older than this is lost.
        reconnect_ms: How long a worker or client may take to reconnect after its connection broke.
        consumer_timeout_ms: How long a consumer of a coordinated read waits for a round before it raises an error
            that names the missing consumers or worker; it can continue to read afterwards.
        job_gc_check_interval_ms: The interval at which time-outs are checked.
        job_gc_timeout_ms: How long a job's record is kept after its last client left; -1 for ever.
        task_gc_timeout_ms: How long the tasks of an unfinished epoch are kept after its last client left.
        gc_dynamic_sharding_jobs: Whether unfinished DYNAMIC epochs are collected too. If False, they and their jobs
            are kept until a client reads them to the end, or until `svc.forget(job_name)`; then no element of such an
            epoch is given twice, however late its next client joins.
        worker_addresses: The workers by which the static modes (FILE, DATA, FILE_OR_DATA, HINT) number shards, in
            order: "host", "host:port", or "host:%port%" for any port. Other workers are refused. None or empty: number
            the workers that are present when an epoch begins.
        deployment_mode: Where the workers are, as in the tf.data service: "COLOCATED" (in the trainers' processes),
            "REMOTE" or "HYBRID". With "COLOCATED", readers of the static modes read only the workers of their own
            process, unless they say `target_workers="ANY"`. None, and the other two, change nothing.

    Raises:
        InvalidArgumentError: a value is not valid.

    Example:
        >>> DispatcherConfig(port=5050).worker_timeout_ms
        10000
    """

    port: int | range | str = 0
    protocol: str = "grpc"
    work_dir: str | os.PathLike[str] | None = None
    fault_tolerant_mode: bool | None = None
    worker_addresses: Sequence[str] | None = ()
    job_gc_check_interval_ms: int = _DEFAULT_GC_CHECK_INTERVAL_MS
    job_gc_timeout_ms: int = _DEFAULT_GC_TIMEOUT_MS
    worker_timeout_ms: int = _DEFAULT_WORKER_TIMEOUT_MS
    _: KW_ONLY  # the fields above are positional, in the order of the tf.data service
    host: str = "127.0.0.1"
    dispatcher_address: str | None = None
    tls: bool | None = None
    token: str | None = field(default=None, repr=False)
    name: str = "dsnb"
    client_timeout_ms: int = 10_000
    reconnect_ms: int = 2_000
    consumer_timeout_ms: int = 120_000
    task_gc_timeout_ms: int = 5_000
    gc_dynamic_sharding_jobs: bool = True
    deployment_mode: str | None = None

    def __post_init__(self) -> None:
        if self.fault_tolerant_mode and self.work_dir is None:
            raise InvalidArgumentError(
                "`fault_tolerant_mode`: Cannot enable fault tolerant mode without configuring a work dir",
                hint="DispatcherConfig(work_dir=...), which is all that it takes",
            )

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted: as `tls` says, else if other machines can connect."""
        return self.tls if self.tls is not None else not is_loopback(self.host)

    @property
    def network(self) -> str:
        """How far the service can be reached: "loopback", or beyond it with "tls" or "plain" connections."""
        if self.uses_tls:
            return "tls"
        return "loopback" if is_loopback(self.host) else "plain"

    @property
    def client_report_interval_ms(self) -> int:
        """The interval of clients' reports. At least 500 ms, so that hundreds of idle clients cost little."""
        return min(2_000, max(500, self.client_timeout_ms // 4))

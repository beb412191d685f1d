"""What a client may ask for: sharding policies, the cross-trainer cache, and the rest of `distribute`'s arguments."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import Any

from dsnb.client.trainer_cache import CrossTrainerCache
from dsnb.dataclass import dataclass
from dsnb.elements.compression import AUTO, CODECS, NONE, codec
from dsnb.errors import InvalidArgumentError
from dsnb.wire import discovery
from dsnb.wire.addresses import split_target
from dsnb.wire.lineup import consumer_name
from dsnb.wire.manner import Manner

LOCAL = "LOCAL"


class ShardingPolicy(enum.IntEnum):
    """How the workers of one job divide a dataset; numbers and meanings as in the tf.data service.

    OFF: every worker produces the whole dataset. DYNAMIC: workers ask for pieces of the sources as they go, so that
    together they produce each element once. In the others worker i of n produces a fixed share, n being the number of
    workers when a pass begins (or the length of `DispatcherConfig.worker_addresses`): FILE, every n-th file of each
    source; DATA, every n-th element; FILE_OR_DATA, by files where all sources read files, else by elements; HINT, what
    `shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT)` in the pipeline leaves.

    Example:
        >>> ShardingPolicy.DYNAMIC.value
        1
    """

    OFF = 0
    DYNAMIC = 1
    FILE = 2
    DATA = 3
    FILE_OR_DATA = 4
    HINT = 5


_ALIASES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked arguments of `distribute` and `from_dataset_id`, apart from service and dataset."""

    mode: ShardingPolicy
    job_name: str = ""
    max_outstanding_requests: int | None = None
    protocol: str | None = None
    compression: str = AUTO
    checksum: bool = False
    trainer_id: str = ""
    manner: Manner | None = None
    target_workers: str = AUTO
    consumer: int = 0
    consumers: int = 0
    """How many consumers read in rounds, of whom this is one; 0 in other reads."""
    split_cache: str = ""
    """The operation that keeps splits in the memory of each worker process; empty where there is none."""

    @property
    def local(self) -> bool:
        """Whether only workers of this process are read."""
        return self.target_workers == LOCAL

    @property
    def cached(self) -> bool:
        """Whether the job's readers share through the cross-trainer cache."""
        return bool(self.trainer_id) and not self.consumers

    @property
    def in_turn(self) -> bool:
        """Whether its tasks deliver strictly in turn, so that trainers can be compared step by step."""
        return self.manner is not None and self.manner.together > 0

    @property
    def wants_all(self) -> bool:
        """Whether it is to lose nothing of a pass that it shares."""
        return self.manner is not None and self.manner.on_lag in {"wait", "spill"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """Where a service is, and its token, which never gets into a pickle, a fingerprint or a repr."""

    address: str
    token: str | None = field(default=None, repr=False, compare=False)

    def find_token(self) -> str:
        """The token that was given, or the one that is known for the address."""
        return self.token if self.token is not None else discovery.token_for(self.address)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_address_only, (self.address,))

    def __dsnb_fingerprint__(self) -> Any:
        return self.address


def _address_only(address: str) -> ServiceAddress:
    return ServiceAddress(address=address)


def service_address(service: Any) -> ServiceAddress:
    """The address behind whatever stands for a service.

    Args:
        service: A `DataService`, "host:port", "grpc://host:port", or a (protocol, address) pair.

    Raises:
        InvalidArgumentError: for anything else, or an empty address.
        NotFoundError: for another protocol than gRPC.
    """
    target = getattr(service, "target", None)
    if isinstance(target, str):
        return ServiceAddress(address=split_target(target), token=getattr(service, "token", None))
    if isinstance(service, tuple) and len(service) == 2 and all(isinstance(part, str) for part in service):
        service = "://".join(service)
    if not isinstance(service, str):
        raise InvalidArgumentError(
            f"`service` must be a string, a (protocol, address) pair or a DataService, got {type(service).__name__}",
            hint='use svc = dsnb.start(), or "host:port"',
        )
    if not service:
        raise InvalidArgumentError("`service` must not be empty", hint='use svc = dsnb.start(), or "host:port"')
    return ServiceAddress(address=split_target(service))


def sharding_policy(mode: Any) -> ShardingPolicy:
    """The policy that a processing mode names.

    Raises:
        InvalidArgumentError: for a mode that there is not.
    """
    if isinstance(mode, str) and mode in _ALIASES:
        return _ALIASES[mode]
    if not isinstance(mode, ShardingPolicy):
        accepted = ", ".join([*(f"ShardingPolicy.{policy.name}" for policy in ShardingPolicy), *map(repr, _ALIASES)])
        raise InvalidArgumentError(f"the processing mode {mode!r} is unknown", hint=f"use one of: {accepted}")
    return mode


def read_options(
    processing_mode: Any,
    *,
    job_name: str | None,
    consumer_index: int | None,
    num_consumers: int | None,
    max_outstanding_requests: int | None,
    data_transfer_protocol: str | None,
    compression: str | None,
    cross_trainer_cache: CrossTrainerCache | None,
    target_workers: str,
    checksum: bool = False,
) -> ReadOptions:
    """Check the arguments of `distribute` at the call where they were given.

    Raises:
        InvalidArgumentError: for a value that can never be right.
    """
    _check_job_name(job_name)
    if cross_trainer_cache is not None and (consumer_index is not None or num_consumers is not None):
        raise InvalidArgumentError(
            "the cross-trainer cache does not support coordinated reads",
            hint="leave consumer_index and num_consumers out, or the cache",
        )
    target = _target_workers(target_workers)
    if target == LOCAL and num_consumers is not None:
        raise InvalidArgumentError(
            "Coordinated reads require non-local workers: consumers in many processes read one worker together",
            hint='leave target_workers out, or use "ANY"',
        )
    _check_consumers(consumer_index, num_consumers, job_name)
    _check_outstanding(max_outstanding_requests)
    _check_checksum(data_transfer_protocol, wanted=bool(checksum))
    if cross_trainer_cache is not None and job_name is None:
        raise InvalidArgumentError(
            "the cross-trainer cache requires named jobs, so that trainers can find each other",
            hint='add job_name="..."; the same one in each trainer',
        )
    return ReadOptions(
        mode=sharding_policy(processing_mode),
        job_name=job_name or "",
        max_outstanding_requests=max_outstanding_requests,
        protocol=data_transfer_protocol,
        compression=check_compression(compression),
        checksum=bool(checksum),
        trainer_id=cross_trainer_cache.trainer_id if cross_trainer_cache else _consumer_name(consumer_index),
        manner=cross_trainer_cache.manner if cross_trainer_cache else None,
        target_workers=target,
        consumer=consumer_index or 0,
        consumers=num_consumers or 0,
    )


def _consumer_name(index: int | None) -> str:
    return "" if index is None else consumer_name(index)


def check_compression(compression: str | None) -> str:
    """The compression asked for, as it is registered.

    Raises:
        InvalidArgumentError: for one that there is not.
        FailedPreconditionError: for one that is not installed here.
    """
    if compression not in (None, AUTO, *CODECS):
        known = ", ".join(map(repr, CODECS))
        raise InvalidArgumentError(
            f"Invalid `compression` argument: {compression!r}", hint=f'use "AUTO", None, {known}'
        )
    if compression in CODECS:
        codec(compression)
    return compression or NONE


def _check_job_name(job_name: str | None) -> None:
    if job_name is None:
        return
    if not isinstance(job_name, str):
        raise InvalidArgumentError(
            f"`job_name` must be a string, got {type(job_name).__name__}", hint="leave it out for a job of your own"
        )
    if not job_name:
        raise InvalidArgumentError("`job_name` must not be empty", hint="leave it out for a job of your own")


def _check_consumers(index: int | None, count: int | None, job_name: str | None) -> None:
    if (index is None) != (count is None):
        raise InvalidArgumentError(
            "consumer_index and num_consumers must be given together", hint="give both or neither"
        )
    if count is None:
        return
    if job_name is None:
        raise InvalidArgumentError("num_consumers needs a job_name", hint="the same one for each consumer")
    for name, value in (("consumer_index", index), ("num_consumers", count)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{name} is {value!r}", hint="use a whole number")
    assert index is not None
    if count < 1:
        raise InvalidArgumentError(f"num_consumers is {count}", hint="use 1 or more")
    if not 0 <= index < count:
        raise InvalidArgumentError(
            f"consumer_index is {index}, and num_consumers {count}", hint=f"use 0 to {count - 1}, each once"
        )


def _check_outstanding(limit: int | None) -> None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidArgumentError(f"max_outstanding_requests is {limit!r}", hint="use 1 or more, or leave it out")


def _check_checksum(protocol: str | None, *, wanted: bool) -> None:
    if wanted and protocol in ("shared_memory", "local"):
        raise InvalidArgumentError(
            f"checksum=True asks for what the transfer {protocol!r} has not: only messages of gRPC carry checksums",
            hint="leave one of the two out",
        )


def _target_workers(target: str) -> str:
    known = (AUTO, "ANY", LOCAL)
    name = target.upper() if isinstance(target, str) else target
    if name not in known:
        raise InvalidArgumentError(f"target_workers is {target!r}", hint='use "AUTO", "ANY" or "LOCAL"')
    return name


def no_local_worker(options: ReadOptions) -> InvalidArgumentError:
    """The error of a reader that wants local workers where there are none."""
    static = options.mode not in (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC)
    who = f"Static sharding policy <{options.mode.name}> with local reads requires" if static else "Local reads require"
    return InvalidArgumentError(
        f"{who} local workers, but no local worker is found in this process",
        did="the read was given up",
        hint='start workers here, svc = dsnb.start(isolation="thread"), or use target_workers="ANY"',
    )

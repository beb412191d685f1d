"""The options of a read: sharding policies and the checked arguments of `distribute` and `from_dataset_id`."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dsnb.arguments import Rule, instance, integer, number, one_of, optional, short_repr, text
from dsnb.client.ranks import AUTO_RANK, this_rank
from dsnb.client.trainer_cache import CrossTrainerCache
from dsnb.elements.compression import AUTO, CODECS, NONE, load_codec
from dsnb.errors import InvalidArgumentError, did_you_mean
from dsnb.transfer.selection import can_check_messages, transfer_protocol
from dsnb.wire.addresses import target_address
from dsnb.wire.field_groups import COLOCATED, JobParameters, is_colocated, shared
from dsnb.wire.messages import CachePolicy
from dsnb.wire.schedule import consumer_name

LOCAL = "LOCAL"

DROP, PAD, REPEAT = "drop", "pad", "repeat"
REPLAY, RAISE = "replay", "raise"


class ShardingPolicy(enum.IntEnum):
    """How the workers of one job divide a dataset; numbers and meanings as in the tf.data service.

    OFF: every worker produces the whole dataset. DYNAMIC: workers request splits of the sources as they go; together
    they produce each element once. With the other policies worker i of n produces a fixed shard, n being the number of
    workers when an epoch begins (or the length of `DispatcherConfig.worker_addresses`): FILE, every n-th file of each
    source; DATA, every n-th element; FILE_OR_DATA, by files if all sources read files, otherwise by elements; HINT, as
    `shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT)` in the pipeline says.

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

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise InvalidArgumentError(
            f"`value`: {short_repr(value)} is not a valid ShardingPolicy",
            hint=f"{did_you_mean(value, cls.__members__) if isinstance(value, str) else ''}"
            "use ShardingPolicy.OFF, 0 to 5",
        )

    @property
    def is_static(self) -> bool:
        """Whether worker i of n produces a fixed shard."""
        return self not in (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC)


_ALIASES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}


class WorkerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which workers a reader reads, by its `target_workers`, the workers' tags and the service's deployment mode.

    As in the tf.data service: "AUTO" leaves out the workers of other processes that are tagged "COLOCATED", but not in
    coordinated reads; and in a deployment that is "COLOCATED", "AUTO" means "LOCAL" in the static modes.
    """

    local_only: bool = False
    skips_colocated: bool = False

    def allows(self, tags: Collection[str], *, here: bool) -> bool:
        """Whether a worker is read.

        Args:
            tags: Its tags.
            here: Whether it runs in this process.
        """
        return here or not (self.local_only or (self.skips_colocated and is_colocated(tags)))


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The checked arguments of `distribute` and `from_dataset_id`, except service and dataset."""

    mode: ShardingPolicy
    job_name: str = ""
    max_outstanding_requests: int | None = None
    protocol: str | None = None
    compression: str = AUTO
    checksum: bool = False
    trainer_id: str = ""
    cache_policy: CachePolicy | None = None
    target_workers: str = AUTO
    consumer_index: int = 0
    num_consumers: int = 0
    """Number of consumers of a coordinated read; 0 for other reads."""
    at_end: str = ""
    """What readers in step do with a last round that lacks elements: "drop", "pad" or "repeat"."""
    on_worker_loss: str = ""
    """The argument `on_worker_loss` of `distribute`; empty for None."""
    weight: float = 1.0
    """The argument `weight` of `distribute`."""
    split_cache: str = ""
    """The operation of the pipeline that caches splits in the memory of each worker process; empty if there is none."""
    ordered: bool = False
    """Whether elements come in the order of the splits, for any number of workers; see `pipeline/split_order`."""
    rank: int = 0
    ranks: int = 0
    """Which rank of how many this is, in a read in the order of the splits; 0 of 0 for other reads."""

    @property
    def local(self) -> bool:
        """Whether only workers of this process are read."""
        return self.target_workers == LOCAL

    def worker_choice(self, deployment_mode: str) -> WorkerChoice:
        """Which workers are read in a service with this deployment mode."""
        automatic = self.target_workers == AUTO and not self.num_consumers
        colocated = deployment_mode == COLOCATED and self.mode.is_static
        return WorkerChoice(local_only=self.local or (automatic and colocated), skips_colocated=automatic)

    @property
    def cached(self) -> bool:
        """Whether the job's readers share the cross-trainer cache."""
        return bool(self.trainer_id) and not self.num_consumers

    @property
    def job_parameters(self) -> JobParameters:
        """What all readers of the job must agree on."""
        return JobParameters(**{**shared(JobParameters, self), "mode": self.mode.name})

    @property
    def in_step(self) -> int:
        """How many readers take the same number of steps: consumers of a coordinated read, or ranks; 0 if none."""
        return self.num_consumers or self.ranks

    @property
    def raises_losses(self) -> bool:
        """Whether data that are lost with a worker raise an error, and not a warning."""
        return self.on_worker_loss in (RAISE, REPLAY)

    @property
    def round_robin(self) -> bool:
        """Whether tasks deliver strictly in turn, so that trainers can be compared step by step."""
        return self.cache_policy is not None and self.cache_policy.start_together > 0

    @property
    def lossless(self) -> bool:
        """Whether the trainer must not lose elements of an iteration that it shares."""
        return self.cache_policy is not None and self.cache_policy.on_lag in {"wait", "spill"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """The address of a service and its token. The token is never part of a pickle, a fingerprint or a repr.

    If the token is None, the token known for the address is looked up at each connection.
    """

    address: str
    token: str | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_address_only, (self.address,))

    def __dsnb_fingerprint__(self) -> Any:
        return self.address


def _address_only(address: str) -> ServiceAddress:
    return ServiceAddress(address=address)


def service_address(name: str, value: Any) -> ServiceAddress:
    """Return the address of a `DataService`, "host:port", "grpc://host:port" or a (protocol, address) pair.

    Raises:
        InvalidArgumentError: for anything else, or an empty address.
        NotFoundError: for a protocol other than gRPC.
    """
    if isinstance(value, ServiceAddress):
        return value
    target = getattr(value, "target", None)
    if isinstance(target, str):
        return ServiceAddress(address=target_address(target, name), token=getattr(value, "token", None) or None)
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value):
        value = "://".join(value)
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"`{name}` must be a string, a (protocol, address) pair or a DataService, got {type(value).__name__}",
            hint='use svc = dsnb.start(), or "host:port"',
        )
    if not value:
        raise InvalidArgumentError(f"`{name}` must not be empty", hint='use svc = dsnb.start(), or "host:port"')
    return ServiceAddress(address=target_address(value, name))


def sharding_policy(name: str, value: Any) -> ShardingPolicy:
    """Return the policy of a processing mode.

    Raises:
        InvalidArgumentError: for an unknown mode.
    """
    if isinstance(value, str) and value in _ALIASES:
        return _ALIASES[value]
    if not isinstance(value, ShardingPolicy):
        policies = [f"ShardingPolicy.{policy.name}" for policy in ShardingPolicy]
        likely = ""
        if isinstance(value, str):
            meant = f"ShardingPolicy.{value.upper()}"
            likely = f"did you mean {meant}? " if meant in policies else did_you_mean(value, _ALIASES)
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)}, which is no processing mode",
            hint=f"{likely}use one of: {', '.join([*policies, *map(repr, _ALIASES)])}",
        )
    return value


def compression_rule(name: str, value: Any) -> str:
    """Return the compression as it is registered.

    Raises:
        InvalidArgumentError: for an unknown compression.
        FailedPreconditionError: for a codec that is not installed here.
    """
    if value is None:
        return NONE
    if not isinstance(value, str) or value not in (AUTO, *CODECS):
        likely = did_you_mean(value.upper(), (AUTO, *CODECS)) if isinstance(value, str) else ""
        raise InvalidArgumentError(
            f"Invalid `{name}` argument: {short_repr(value)}",
            hint=f'{likely}use "AUTO", None, {", ".join(map(repr, CODECS))}',
        )
    if value in CODECS:
        load_codec(value)
    return value


def target_workers(name: str, value: Any) -> str:
    """Return which workers are read, in capitals; "" means "AUTO", as in the tf.data service."""
    known = one_of(AUTO, "ANY", LOCAL)
    given = (value.upper() or AUTO) if isinstance(value, str) else value
    return str(known(name, given))


def rank_rule(name: str, value: Any) -> int | str:
    """Return a rank, or "auto"."""
    if isinstance(value, str) and value == AUTO_RANK:
        return AUTO_RANK
    rank: int = integer(0, hint='use 0 to world_size - 1, or rank="auto"')(name, value)
    return rank


READ_RULES: Final[Mapping[str, Rule]] = {
    "processing_mode": sharding_policy,
    "job_name": optional(text),
    "consumer_index": optional(integer(0)),
    "num_consumers": optional(integer(1)),
    "rank": optional(rank_rule),
    "world_size": optional(integer(1)),
    "at_end": optional(one_of(DROP, PAD, REPEAT)),
    "on_worker_loss": optional(one_of(REPLAY, REPEAT, DROP, RAISE)),
    "weight": number("pass a positive number, as in weight=2", above=0.0, most=1e6),
    "max_outstanding_requests": optional(integer(1, hint="pass 1 or more, or leave it out")),
    "data_transfer_protocol": transfer_protocol,
    "cross_trainer_cache": optional(instance(CrossTrainerCache, hint='pass dsnb.CrossTrainerCache("lr=0.1")')),
    "target_workers": target_workers,
}
"""Rules of the arguments that `distribute` and `from_dataset_id` share."""


def read_options(
    processing_mode: ShardingPolicy,
    *,
    job_name: str | None,
    consumer_index: int | None,
    num_consumers: int | None,
    max_outstanding_requests: int | None,
    data_transfer_protocol: str | None,
    compression: str,
    cross_trainer_cache: CrossTrainerCache | None,
    target_workers: str,
    checksum: bool = False,
    rank: int | str | None = None,
    world_size: int | None = None,
    at_end: str | None = None,
    on_worker_loss: str | None = None,
    weight: float = 1.0,
) -> ReadOptions:
    """Combine the arguments, each already checked by its rule in `READ_RULES`.

    Raises:
        InvalidArgumentError: for arguments that exclude each other.
        FailedPreconditionError: the rank cannot be found out.
    """
    consumer_index, num_consumers = _consumer(consumer_index, num_consumers, rank, world_size, at_end)
    if cross_trainer_cache is not None and (consumer_index is not None or num_consumers is not None):
        raise InvalidArgumentError(
            "`cross_trainer_cache`: the cross-trainer cache does not support coordinated reads",
            hint="leave consumer_index and num_consumers out, or the cache",
        )
    if target_workers == LOCAL and num_consumers is not None:
        raise InvalidArgumentError(
            "`target_workers`: Coordinated reads require non-local workers, for consumers in many processes read one "
            "worker together",
            hint='leave target_workers out, or use "ANY"',
        )
    names = ("consumer_index", "num_consumers") if rank is None else ("rank", "world_size")
    _check_consumers(consumer_index, num_consumers, job_name, names)
    if checksum and not can_check_messages(data_transfer_protocol):
        raise InvalidArgumentError(
            f"`checksum`: the transfer {data_transfer_protocol!r} has no checksums, only tcp and grpc have",
            hint="leave one of the two out",
        )
    if cross_trainer_cache is not None and job_name is None:
        raise InvalidArgumentError(
            "`cross_trainer_cache`: the cross-trainer cache requires named jobs, so that trainers can find each other",
            hint='add job_name="..."; the same one in each trainer',
        )
    _check_loss_rule(on_worker_loss, processing_mode, num_consumers is not None, cross_trainer_cache is not None)
    return ReadOptions(
        mode=processing_mode,
        job_name=job_name or "",
        max_outstanding_requests=max_outstanding_requests,
        protocol=data_transfer_protocol,
        compression=compression,
        checksum=checksum,
        trainer_id=cross_trainer_cache.trainer_id if cross_trainer_cache else _consumer_trainer_id(consumer_index),
        cache_policy=cross_trainer_cache.cache_policy if cross_trainer_cache else None,
        target_workers=target_workers,
        consumer_index=consumer_index or 0,
        num_consumers=num_consumers or 0,
        at_end=(at_end or DROP) if num_consumers else "",
        on_worker_loss=on_worker_loss or "",
        weight=weight,
    )


def _check_loss_rule(on_worker_loss: str | None, mode: ShardingPolicy, coordinated: bool, cached: bool) -> None:
    """Refuse to let another worker make up for a lost one where none can."""
    if on_worker_loss not in (REPLAY, REPEAT):
        return
    if mode is ShardingPolicy.OFF:
        why = "with OFF each worker produces the whole dataset, so none makes up for another"
    elif coordinated:
        why = "a round of a coordinated read comes from one worker and is whole or not at all"
    elif cached and on_worker_loss == REPEAT:
        why = "the trainers of a cross-trainer cache see one sequence, in which nothing is repeated"
    else:
        return
    raise InvalidArgumentError(
        f'`on_worker_loss` is "{on_worker_loss}": {why}',
        hint='use "raise" to get an error when data are lost, or leave it out',
    )


def _consumer(
    index: int | None, count: int | None, rank: int | str | None, world_size: int | None, at_end: str | None
) -> tuple[int | None, int | None]:
    """The index and number of consumers, by either pair of names."""
    if rank is None and world_size is None:
        if at_end is not None and count is None:
            raise InvalidArgumentError(
                f"`at_end` is {at_end!r}, but there are no ranks to keep in step",
                hint='add rank= and world_size=, or rank="auto"',
            )
        return index, count
    if index is not None or count is not None:
        raise InvalidArgumentError(
            "rank and world_size mean the same as consumer_index and num_consumers", hint="give one pair of them"
        )
    if rank == AUTO_RANK:
        return this_rank(world_size)
    if rank is None or world_size is None:
        raise InvalidArgumentError(
            "rank and world_size must be given together", hint='give both, or rank="auto" to find out'
        )
    return int(rank), world_size


def _consumer_trainer_id(index: int | None) -> str:
    return "" if index is None else consumer_name(index)


def _check_consumers(index: int | None, count: int | None, job_name: str | None, names: tuple[str, str]) -> None:
    if index is None or count is None:
        if index is not count:
            raise InvalidArgumentError(
                "consumer_index and num_consumers must be given together", hint="give both or neither"
            )
        return
    if job_name is None:
        raise InvalidArgumentError(f"{names[1]} needs a job_name", hint="the same one for each consumer")
    if index >= count:
        raise InvalidArgumentError(
            f"{names[0]} is {index}, and {names[1]} {count}", hint=f"use 0 to {count - 1}, each once"
        )


def no_local_worker(options: ReadOptions) -> InvalidArgumentError:
    """The error of a read of local workers in a process that has none."""
    subject = (
        f"Static sharding policy <{options.mode.name}> requires" if options.mode.is_static else "Local reads require"
    )
    return InvalidArgumentError(
        f"{subject} local workers, but no local worker is found in this process",
        did="the read was abandoned",
        hint='start workers here, svc = dsnb.start(isolation="thread"), or use target_workers="ANY"',
    )

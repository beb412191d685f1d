"""`distribute`, `register_dataset` and `from_dataset_id`: register a pipeline with a service and read its elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from dsnb import errors
from dsnb.arguments import checked, optional, text
from dsnb.client.options import (
    READ_RULES,
    REPLAY,
    ReadOptions,
    ServiceAddress,
    ShardingPolicy,
    compression_rule,
    read_options,
    service_address,
)
from dsnb.client.ordered_ranks import as_rank
from dsnb.client.source import FromService
from dsnb.client.trainer_cache import CrossTrainerCache
from dsnb.elements.compression import NONE
from dsnb.elements.spec import compatible, spec_from_json, spec_rule, spec_to_json
from dsnb.errors import DsnbWarning, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.determinism import inexact_reason
from dsnb.pipeline.graph import describe, serialise
from dsnb.pipeline.modes import check_mode
from dsnb.pipeline.operation import INFINITE_CARDINALITY, Operation, walk
from dsnb.pipeline.operations.cache import kept_in_memory
from dsnb.pipeline.operations.with_options import Options
from dsnb.pipeline.registered import registered_inexact_reason, registered_support
from dsnb.pipeline.sharding import made_deterministic, sharding_support
from dsnb.pipeline.split_order import order_obstacle, wants_split_order
from dsnb.pipeline.splits import keeps_split_order, shares_exactly, split_providers
from dsnb.pipeline.validate import dataset as dataset_rule
from dsnb.wire.blobs import blob_pieces, split_bytes
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.job_names import qualified_job_name
from dsnb.wire.messages import DatasetInfo, DatasetRequest, RegisterReply, RegisterRequest, SplitProvider
from dsnb.wire.methods import GET_DATASET, PUT_BLOB, REGISTER
from dsnb.wire.stopped_services import refuse_stopped


@checked(**READ_RULES, service=service_address, compression=compression_rule)
def distribute(
    processing_mode: Any,
    service: Any,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    compression: str | None = "AUTO",
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str = "AUTO",
    checksum: bool = False,
    *,
    rank: int | str | None = None,
    world_size: int | None = None,
    at_end: str | None = None,
    on_worker_loss: str | None = None,
    weight: float = 1.0,
) -> Callable[[Dataset], Dataset]:
    """Run all operations before this one on the workers of a service; for `Dataset.apply`, as in the tf.data service.

    Args:
        processing_mode: A `ShardingPolicy`, or "parallel_epochs" (OFF: every worker produces the whole dataset) or
            "distributed_epoch" (DYNAMIC: together they produce it once).
        service: A `DataService`, "host:port", "grpc://host:port" or a (protocol, address) pair.
        job_name: Clients that use one name share one job; None for a private job. Each loop over the dataset is the
            job's next epoch. The clients of an epoch divide its elements: each element goes to one of them.
        consumer_index: Index of this consumer in a coordinated read, from 0; needs `num_consumers` and `job_name`.
        num_consumers: Number of consumers that read together, in rounds: in each round all consumers get consecutive
            elements of one worker.
        max_outstanding_requests: Most elements in flight or buffered, over all workers; None to limit bytes only.
        data_transfer_protocol: "local" (by reference, in one process), "shared_memory" (on one host), "tcp" (between
            hosts, at the worker's data port) or "grpc" (anywhere); None for the first of these that is available, but
            "grpc" instead of "tcp" if the service uses TLS.
        compression: Compression of elements sent by TCP or gRPC: "AUTO" for whatever is measured to be fastest for
            these data and this connection, possibly none; None for none; "LZ4" or "ZSTD".
        cross_trainer_cache: Share one preprocessing pass with other trainers: each of them gets all elements.
        target_workers: "ANY" to read all workers; "AUTO" to leave out those of other processes that are tagged
            "COLOCATED"; "LOCAL" to read only those of this process.
        checksum: Whether messages carry a checksum; a message damaged on the way is sent again, or raises
            `DataLossError` if that keeps happening. TCP or gRPC is then used, not shared memory. Within one process
            elements are passed by reference and there is nothing to check.
        rank: The same as `consumer_index`, by the name that training loops use; "auto" for the rank of this process
            as torch.distributed, JAX, torchrun, MPI or SLURM know it. With `Options(deterministic=True)` in a
            "distributed_epoch", rank r of n gets element r of each n elements of the one order.
        world_size: The same as `num_consumers`; may be left out with `rank="auto"`.
        at_end: What becomes of the last elements of an epoch if there are too few for a round: "drop" (the default)
            leaves them out, fewer than `world_size` elements in all; "repeat" gives the first of them to all ranks that
            lack one; "pad" does so too, and yields pairs of an element and whether it is such a repetition. In each
            case all ranks take the same number of steps.
        on_worker_loss: What happens when a worker dies that has not delivered all of its part. None: another worker
            produces the rest of the part if the pipeline makes the same elements again, with limited repeated work
            (each element comes once); otherwise the missing elements are counted, and a `DataLossWarning` says so.
            "replay": always produce it again, however long it takes; refused for a pipeline that may make other
            elements. "repeat": if the pipeline may make other elements, produce all unfinished splits, or the shard,
            from their beginning, so that elements may come twice and none is missing. "drop": never produce anything
            again that was partly delivered. "raise": as None, but lost data raise a `DataLossError`; the next `next`
            continues with the others.
        weight: The job's weight when jobs want more processors than their workers have: a job that needs less than its
            part gets what it needs, and the others divide the rest in proportion to their weights. All clients of a job
            pass the same weight. See docs/several_jobs.md.

    Returns:
        A function from dataset to dataset. The new dataset has the elements of the old one, in an order that holds
            within one worker only, unless `Options(deterministic=True)` asks for one order of a "distributed_epoch".
            Operations applied after it run in this process.

    Raises:
        InvalidArgumentError: an argument is never valid, or the pipeline cannot be pickled (the error names the
            variable).
        FailedPreconditionError: `rank` is "auto" and nothing tells the rank, or `on_worker_loss` is "replay" and the
            pipeline may make other elements when it runs again.
        UnavailableError: no service answers at the address.
        PermissionDeniedError: the token is missing or wrong.
        FailedPreconditionError: the requested codec is not installed.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     squares = dsnb.Dataset.range(4).map(lambda x: x * x)
        ...     [int(x) for x in squares.apply(dsnb.distribute("parallel_epochs", svc))]
        [0, 1, 4, 9]
    """
    options = read_options(
        processing_mode,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        compression=compression or NONE,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        checksum=checksum,
        rank=rank,
        world_size=world_size,
        at_end=at_end,
        on_worker_loss=on_worker_loss,
        weight=weight,
    )
    address: ServiceAddress = service

    @checked(dataset=dataset_rule)
    def apply(dataset: Dataset) -> Dataset:
        checked_options = _options_for(options, at_end, dataset)

        def register() -> str:
            return _register(address, dataset, options.compression, dataset_id=None, options=options).dataset_id

        source = FromService(
            service=address,
            dataset_id=register(),
            options=checked_options,
            spec=dataset.operation.element_spec,  # whatever was read before, the pipeline registers alike
            registered_cardinality=dataset.cardinality(),
            shares_exactly=shares_exactly(dataset.operation),
            register_again=register,
            pipeline=dataset.operation,
        )
        writable = dataset.options().writable  # an option of the reading side, so it is not left to the workers
        made = Dataset(source)
        return made if writable is None else made.with_options(Options(writable=writable))

    return apply


@checked(service=service_address, dataset=dataset_rule, compression=compression_rule, dataset_id=optional(text))
def register_dataset(
    service: Any, dataset: Dataset, compression: str | None = "AUTO", dataset_id: str | None = None
) -> str:
    """Register a pipeline with a service, so that any client can read it by id; as in the tf.data service.

    An id keeps its first pipeline. Registering another pipeline of the same structure under it changes nothing and
    gives a `DsnbWarning` that names the first difference; `svc.forget(dataset_id=...)` frees the id, for a cell that is
    edited and run again.

    Args:
        service: A `DataService`, "host:port", "grpc://host:port" or a (protocol, address) pair.
        dataset: The dataset to register.
        compression: As for `distribute`; applies to all readers of this dataset id.
        dataset_id: The id to register it under; None to reuse the id of the same pipeline, or else to get a new one.

    Returns:
        The id.

    Raises:
        InvalidArgumentError: the id has a dataset of another structure, or the pipeline cannot be pickled.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     dsnb.register_dataset(svc, dsnb.Dataset.range(3), dataset_id="three")
        'three'
    """
    reply = _register(service, dataset, compression or NONE, dataset_id=dataset_id, options=None)
    if reply.difference:
        errors.warn(
            f"the dataset id {dataset_id!r} belongs to another pipeline and stays with it: {reply.difference}. To "
            f"register this one under the id, call svc.forget(dataset_id={dataset_id!r}) first; or use another "
            "dataset_id",
            DsnbWarning,
        )
    return reply.dataset_id


def _qualify_job_name(dataset_id: str, options: ReadOptions) -> ReadOptions:
    if not options.job_name:
        return options
    return replace(options, job_name=qualified_job_name(dataset_id, options.job_name))


@checked(**READ_RULES, service=service_address, dataset_id=text, element_spec=optional(spec_rule))
def from_dataset_id(
    processing_mode: Any,
    service: Any,
    dataset_id: str,
    element_spec: Any = None,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str = "AUTO",
    checksum: bool = False,
    *,
    rank: int | str | None = None,
    world_size: int | None = None,
    at_end: str | None = None,
    on_worker_loss: str | None = None,
    weight: float = 1.0,
) -> Dataset:
    """Read a registered dataset; as in the tf.data service.

    Args:
        processing_mode: As for `distribute`.
        service: As for `distribute`.
        dataset_id: The id that `register_dataset` returned.
        element_spec: Compared with the registered element spec; None to use the registered one.
        job_name: As for `distribute`, but within the dataset id: clients that use one id and one name share a job,
            shown as in "images/train". The same name with another id is another job.
        consumer_index: As for `distribute`.
        num_consumers: As for `distribute`.
        max_outstanding_requests: As for `distribute`.
        data_transfer_protocol: As for `distribute`.
        cross_trainer_cache: As for `distribute`.
        target_workers: As for `distribute`.
        checksum: As for `distribute`.
        rank: As for `distribute`.
        world_size: As for `distribute`.
        at_end: As for `distribute`.
        on_worker_loss: As for `distribute`.
        weight: As for `distribute`.

    Raises:
        NotFoundError: no dataset has that id.
        InvalidArgumentError: an argument is never valid, or the element spec differs from the registered one.
        FailedPreconditionError: `on_worker_loss` is "replay" and the pipeline may make other elements when it runs
            again.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1) as svc:
        ...     three = dsnb.register_dataset(svc, dsnb.Dataset.range(3))
        ...     [int(x) for x in dsnb.from_dataset_id("parallel_epochs", svc, three)]
        [0, 1, 2]
    """
    options = read_options(
        processing_mode,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        compression="AUTO",
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        checksum=checksum,
        rank=rank,
        world_size=world_size,
        at_end=at_end,
        on_worker_loss=on_worker_loss,
        weight=weight,
    )
    address: ServiceAddress = service
    with _TemporaryChannel(address) as channel:
        reply, *pieces = channel.fetch(GET_DATASET, DatasetRequest(dataset_id=dataset_id))
    known = reply.info or DatasetInfo()
    definition = b"".join(piece.definition for piece in pieces)
    spec = spec_from_json(known.element_spec)
    if element_spec is not None and spec is not None and not compatible(element_spec, spec):
        raise InvalidArgumentError(
            f"the dataset {dataset_id!r} has elements {spec}, and `element_spec` is {element_spec}",
            hint="leave element_spec out",
        )
    options = _options_for_registered(options, at_end, known)
    source = FromService(
        service=address,
        dataset_id=reply.dataset_id,
        options=_qualify_job_name(reply.dataset_id, replace(options, compression=known.compression)),
        spec=spec if spec is not None else element_spec,
        registered_cardinality=known.cardinality,
        pipeline=blake2b(definition + "".join(known.blobs).encode(), digest_size=16).hexdigest(),
    )
    return Dataset(source)


def _options_for(options: ReadOptions, at_end: str | None, dataset: Dataset) -> ReadOptions:
    """Return the options of a read of a dataset, or refuse them."""
    operation = dataset.operation
    _require_end(at_end, dataset.cardinality())
    if wants_split_order(operation):
        options = _with_order(options, order_obstacle(operation))
    return replace(options, split_cache=kept_in_memory(operation))


def _options_for_registered(options: ReadOptions, at_end: str | None, known: DatasetInfo) -> ReadOptions:
    """Return the options of a read of a registered dataset, or refuse them."""
    _check_mode_of_registered(options.mode, known)
    _require_replay(options, known)
    _require_end(at_end, known.cardinality)
    if known.unordered_reason or any(provider.ordered for provider in known.providers):
        options = _with_order(options, known.unordered_reason)
    return options


def _require_replay(options: ReadOptions, info: DatasetInfo) -> None:
    """Refuse `on_worker_loss="replay"` for what no worker can produce again."""
    if options.on_worker_loss != REPLAY:
        return
    reason = registered_inexact_reason(info, options.mode.name)
    if not reason and options.cached and info.cardinality == INFINITE_CARDINALITY:
        reason = "the trainers of a cross-trainer cache share data without an end"
    if reason:
        raise FailedPreconditionError(
            f'`on_worker_loss` is "{REPLAY}", and another worker may not make the same elements again: {reason}',
            did="nothing was read",
            hint='remove the cause, or use "repeat" (elements may come twice) or "raise" (an error if data are lost)',
        )


def _with_order(options: ReadOptions, obstacle: str) -> ReadOptions:
    """Return the options of a read of a pipeline with `Options(deterministic=True)`; in DYNAMIC mode, it is ordered.

    Args:
        options: The options of the read.
        obstacle: Which operation of the pipeline keeps its elements from having one order; empty if there is none.

    Raises:
        FailedPreconditionError: the mode is DYNAMIC, and the elements could not come in one order.
    """
    if options.mode is not ShardingPolicy.DYNAMIC:
        return options
    what, hint = "", ""
    if obstacle:
        what = f"{obstacle}, so the order of elements would depend on the workers"
        hint = "move it behind `distribute`, where it sees all elements in their order"
    elif options.max_outstanding_requests is not None:
        what = "with `max_outstanding_requests`, all elements under way may be of later splits than the one that is due"
        hint = "leave max_outstanding_requests out"
    if what:
        raise FailedPreconditionError(
            f'Options(deterministic=True) asks for one order of a "distributed_epoch" read, and {what}',
            did="nothing was read",
            hint=f"{hint}; or leave deterministic=True out of the options",
        )
    options = replace(options, ordered=True)
    return as_rank(options) if options.num_consumers else options


def _check_mode_of_registered(mode: ShardingPolicy, known: DatasetInfo) -> None:
    check_mode(mode.name, registered_support(known))
    if mode is ShardingPolicy.DYNAMIC and known.unsplittable_reason:
        raise UnimplementedError(known.unsplittable_reason, hint='use the mode "parallel_epochs" (OFF)')


def _register(
    address: ServiceAddress,
    dataset: Dataset,
    compression: str,
    *,
    dataset_id: str | None,
    options: ReadOptions | None,
) -> RegisterReply:
    operation, mode = dataset.operation, "" if options is None else options.mode.name
    _refuse_local_operations(operation)
    providers, unsplittable = _providers(operation)
    if mode == "DYNAMIC" and unsplittable is not None:
        raise unsplittable
    offer = sharding_support(operation)
    if mode:
        check_mode(mode, offer)
    graph = serialise(operation)
    if graph.fingerprint.unhashable:
        errors.warn(
            "this pipeline cannot be recognised when it is registered again, because of "
            f"{graph.fingerprint.unhashable[0]}; readers share a job only through this dataset object, or its id",
            DsnbWarning,
        )
    info = DatasetInfo(
        fingerprint="" if graph.fingerprint.unhashable else graph.fingerprint.digest,
        blobs=tuple(blob.digest for blob in graph.blobs),
        element_spec=spec_to_json(dataset.operation.element_spec),
        cardinality=dataset.cardinality(),
        compression=compression,
        pipeline=describe(operation),
        providers=providers,
        unsplittable_reason="" if unsplittable is None else unsplittable.what,
        num_files=offer.file_count,
        no_file_sharding_reason=offer.no_files_reason,
        has_shard_hint=offer.has_shard_hint,
        inexact_reason=inexact_reason(operation, sources_have_positions=False),
        inexact_shard_reason=inexact_reason(made_deterministic(operation), sources_have_positions=False),
        unordered_reason=order_obstacle(operation) if wants_split_order(operation) else "",
        in_split_order=keeps_split_order(operation),
        libraries=graph.fingerprint.libraries,
    )
    if options is not None:
        _require_replay(options, info)
    request = RegisterRequest(dataset_id=dataset_id or "", nbytes=len(graph.definition), info=info)
    with _TemporaryChannel(address) as channel:
        reply = channel.upload(REGISTER, lambda: _registration(request, graph.definition))
        arrays = {blob.digest: blob.data for blob in graph.blobs}
        for digest in reply.missing_blobs:
            channel.upload(PUT_BLOB, partial(blob_pieces, digest, arrays[digest]))
    return reply


def _require_end(at_end: str | None, cardinality: int) -> None:
    if at_end is not None and cardinality == INFINITE_CARDINALITY:
        raise InvalidArgumentError(
            f"`at_end` is {at_end!r}, but the dataset never ends", hint="leave at_end out, or .repeat() in the pipeline"
        )


def _refuse_local_operations(operation: Operation) -> None:
    local = next((step for step in walk(operation) if not step.runs_on_workers), None)
    if local is not None:
        raise FailedPreconditionError(
            f"{local.name} cannot run on workers: its message would not reach you",
            did="the dataset was not registered",
            hint=f"put {local.name} after `distribute`; errors come there in the place of their elements",
        )


def _providers(operation: Operation) -> tuple[tuple[SplitProvider, ...], UnimplementedError | None]:
    try:
        found = split_providers(operation)
    except UnimplementedError as error:
        return (), error
    ordered = wants_split_order(operation) and not order_obstacle(operation)
    return tuple(
        SplitProvider(source=provider.source, count=provider.count, ordered=ordered) for provider in found
    ), None


def _registration(request: RegisterRequest, definition: bytes) -> Iterator[RegisterRequest]:
    """Yield the messages of a registration: the metadata, then the pipeline in pieces.

    The pieces are only sent once the server has proven its identity.
    """
    yield request
    for part in split_bytes(definition):
        yield RegisterRequest(definition=part)


class _TemporaryChannel:
    """A context manager with a channel for a few calls."""

    def __init__(self, address: ServiceAddress) -> None:
        self._address = address

    def __enter__(self) -> Channel:
        refuse_stopped(self._address.address)
        self._channel = open_channel(self._address.address, self._address.token)
        return self._channel

    def __exit__(self, *_: object) -> None:
        self._channel.close()

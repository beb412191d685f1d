"""The source operation of a distributed dataset: its elements come from a service."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from dsnb.client.coordinated import CoordinatedStage
from dsnb.client.options import DROP, PAD, ReadOptions, ServiceAddress, ShardingPolicy
from dsnb.client.ordered_ranks import rank_stage
from dsnb.client.origin import count_client, current_origin
from dsnb.client.position import FinishedPassStage, decode_end, decode_position, encode_beginning
from dsnb.client.reader import ReadStage
from dsnb.client.service_stage import JobReader, ServiceStage
from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.elements.spec import TensorSpec
from dsnb.errors import NotFoundError, UnimplementedError
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.operations.with_options import Options, options_of
from dsnb.pipeline.position import IterationCounter
from dsnb.pipeline.splits import SplitProvider
from dsnb.wire.channel import ChannelCache
from dsnb.wire.messages import ClientOrigin
from dsnb.wire.stopped_services import refuse_stopped

_PRESERVED_CARDINALITIES: Final[dict[ShardingPolicy, tuple[int, ...]]] = {
    # By file, a shard of empty files may end although the dataset does not. By hint, any shard may be anything.
    ShardingPolicy.FILE: (0,),
    ShardingPolicy.FILE_OR_DATA: (0,),
    ShardingPolicy.HINT: (),
}
"""The cardinalities (0, endless) that distributing preserves, for the policies that do not preserve both."""


class FromService(Operation, frozen=True, kw_only=True):
    """Elements of a registered dataset. Each stage that it builds is the next pass of this object.

    Attributes:
        registered_cardinality: The registered dataset's cardinality, before it is multiplied or divided by workers.
        shares_exactly: Whether workers that share splits make together that many elements.
    """

    has_source_position: ClassVar[bool] = True

    service: ServiceAddress
    dataset_id: str
    options: ReadOptions
    spec: Any = None
    registered_cardinality: int = UNKNOWN_CARDINALITY
    shares_exactly: bool = False
    pipeline: Operation | str | None = None
    """The registered pipeline or a digest of it. Keys of cached results follow from it, not from where it runs."""
    passes: IterationCounter = msgspec.field(default_factory=IterationCounter)
    connections: ChannelCache = msgspec.field(default_factory=ChannelCache)
    register_again: Callable[[], str] | None = None
    """Registers the pipeline again: the service may have restarted, or forgotten a dataset that was unused for long."""

    @property
    def name(self) -> str:
        """The name with the job, as in `from the service (job 'train')`."""
        job = self.options.job_name
        return f"from the service (job {job!r})" if job else "from the service"

    @property
    def element_spec(self) -> Any:
        """The registered element spec; None if it was unknown. With `at_end="pad"`, of a pair."""
        if self.spec is None or self.options.at_end != PAD:
            return self.spec
        return self.spec, TensorSpec((), bool)

    @property
    def cardinality(self) -> int:
        """Endless and empty stay so if every shard is; otherwise known for private jobs that share splits exactly.

        The clients of a named job divide its elements, and with other modes the number of workers matters.
        """
        if self.options.in_step:
            return self._cardinality_of_rounds
        private = self.options.mode is ShardingPolicy.DYNAMIC and not self.options.job_name
        if private and self.shares_exactly:
            return self.registered_cardinality
        known = _PRESERVED_CARDINALITIES.get(self.options.mode, (INFINITE_CARDINALITY, 0))
        return self.registered_cardinality if self.registered_cardinality in known else UNKNOWN_CARDINALITY

    @property
    def _cardinality_of_rounds(self) -> int:
        """Known for data without an end, and for data that workers share exactly."""
        known = self.registered_cardinality
        if known <= 0 or not (self.shares_exactly and self.options.mode is ShardingPolicy.DYNAMIC):
            return known if known in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY
        count = self.options.in_step
        return known // count if self.options.at_end == DROP else -(-known // count)

    @property
    def iteration_counter(self) -> IterationCounter:
        """Its own counter: all datasets built on this object read one job."""
        return self.passes

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """Never: the order between workers depends on timing."""
        del deterministic
        return False

    @property
    def remote_pipeline(self) -> Operation | None:
        """The distributed pipeline, if it is known here."""
        return self.pipeline if isinstance(self.pipeline, Operation) else None

    @property
    def _remote_options(self) -> Options:
        """The settings of the distributed pipeline, if it is known here."""
        return Options() if self.remote_pipeline is None else options_of(self.remote_pipeline)

    @property
    def position_identity(self) -> Any:
        """The mode, and the pipeline's digest: a position does not depend on the service's address or the job's name.

        Nor on the number of ranks; but it counts rounds if there are ranks.
        """
        digest = self.pipeline if isinstance(self.pipeline, str) else ""
        return (self.options.mode.name, digest, *(("ranks",) if self.options.in_step else ()))

    def split_provider(self) -> SplitProvider | None:
        """Refused: a service delivers elements, not splits."""
        raise UnimplementedError(
            "Cannot create split providers for dataset of type DataServiceDataset: a distributed dataset cannot be the "
            "source of a DYNAMIC job",
            hint='distribute once, at the end; or use the mode "parallel_epochs" (OFF) for the outer job',
        )

    def build(self, context: BuildContext) -> Stage:
        """Build a stage that joins the job's next iteration on the first read, or resumes from a loaded position."""
        positions = context.source_positions
        origin = current_origin()  # here, because joining may happen on another thread than the user's
        if positions is None:
            iteration = next(self.passes)
            return ServiceStage(lambda: self._join(context, origin, iteration))
        if self.options.cached and not self.options.ordered:
            positions.mark_unsupported(
                "the trainers of a cross-trainer cache share one place in each task",
                "the service keeps the place: a trainer that comes back with its trainer_id continues there",
            )
        source_key, state = positions.register(context, self.name)
        finished = decode_end(state) if state is not None else None
        if finished is not None:
            self.passes.continue_after(finished[0])
            positions.set_final(source_key, state)
            return FinishedPassStage(self.name, finished[1])
        start_position = decode_position(state) if state is not None else None
        if start_position is not None:
            self.passes.continue_after(start_position.iteration - 1)
        on_end = partial(positions.set_final, source_key) if len(context.iteration_path) > 1 else None
        iteration = next(self.passes)
        return ServiceStage(
            lambda: self._join(context, origin, iteration, source_key, start_position, on_end),
            source_key,
            state if state is not None else encode_beginning(iteration),
            start_position.skippable if start_position is not None else 0,
            end=start_position.end if start_position is not None else None,
            replayable=not self.options.num_consumers,
        )

    def _join(self, context: BuildContext, origin: ClientOrigin, iteration: int, *position_args: Any) -> JobReader:
        """Join an iteration of the job; if the context is endless, the first unfinished one from `iteration` on."""
        refuse_stopped(self.service.address)
        origin = count_client(origin)
        try:
            return self._reader(context, self.dataset_id, origin, iteration, *position_args)
        except NotFoundError:
            if self.register_again is None:
                raise
            return self._reader(context, self.register_again(), origin, iteration, *position_args)

    def _reader(
        self, context: BuildContext, dataset_id: str, origin: ClientOrigin, iteration: int, *position_args: Any
    ) -> JobReader:
        receipts = context.receipts or self._remote_options.receipts is True
        arguments = (self.service, dataset_id, self.options, origin, iteration, *position_args)
        if self.options.num_consumers:
            return CoordinatedStage(*arguments, opened_files=context.opened_files, keeps_digest=receipts)
        if self.options.ranks:
            return rank_stage(*arguments, opened_files=context.opened_files, keeps_digest=receipts)
        # Keep connections from the second pass on: most datasets are read once, and should leave none open.
        again = self.connections if iteration else None
        reader = ReadStage(
            *arguments,
            unfinished=context.endless,
            connections=again,
            opened_files=context.opened_files,
            keeps_digest=receipts,
        )
        if reader.iteration > iteration and not self.options.cached:
            self.passes.continue_after(reader.iteration)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process counts its own passes and looks up the token; it gets the pipeline's digest only.
        return (
            _restore,
            (
                *(self.service, self.dataset_id, self.options, self.spec),
                *(self.registered_cardinality, self.shares_exactly, self._digest()),
            ),
        )

    def _digest(self) -> str | None:
        """Digest of the pipeline; None if it is unknown or cannot be hashed."""
        if not isinstance(self.pipeline, Operation):
            return self.pipeline
        found = fingerprint(self.pipeline)
        return None if found.unhashable else found.digest

    def __dsnb_fingerprint__(self) -> Any:
        what = (self.service, self.dataset_id) if self.pipeline is None else self.pipeline
        return ("from the service", what, self.options)

    def __dsnb_result__(self) -> Operation:
        # Options of the transfer do not change the elements.
        options = replace(self.options, protocol=None, compression="", checksum=False, max_outstanding_requests=None)
        return self if options == self.options else replace(self, options=options)


def _restore(
    service: ServiceAddress,
    dataset_id: str,
    options: ReadOptions,
    spec: Any,
    cardinality: int,
    shares: bool,
    pipeline: Any,
) -> FromService:
    return FromService(
        service=service,
        dataset_id=dataset_id,
        options=options,
        spec=spec,
        registered_cardinality=cardinality,
        shares_exactly=shares,
        pipeline=pipeline,
    )

"""The operation at the root of a distributed dataset: a source whose elements come from a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar, Final

from dsnb.client.coordinated import CoordinatedStage
from dsnb.client.options import ReadOptions, ServiceAddress, ShardingPolicy
from dsnb.client.reader import ReadStage
from dsnb.client.resume import PassedStage, loaded, loaded_end, mark_of_beginning
from dsnb.client.service_stage import JobReader, ServiceStage
from dsnb.dataclass import dataclass
from dsnb.elements.fingerprint import fingerprint
from dsnb.errors import NotFoundError, UnimplementedError
from dsnb.pipeline.engine.stage import Stage
from dsnb.pipeline.operation import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, BuildContext, Operation
from dsnb.pipeline.passes import PassNumbers
from dsnb.pipeline.splits import SplitProvider
from dsnb.wire.channel import Connections
from dsnb.wire.stopped import refuse_stopped

_KEPT: Final[dict[ShardingPolicy, tuple[int, ...]]] = {
    # A worker whose files are empty may find an end where the whole has none; what a hint leaves, nobody knows.
    ShardingPolicy.FILE: (0,),
    ShardingPolicy.FILE_OR_DATA: (0,),
    ShardingPolicy.HINT: (),
}
"""Cardinalities that distributing does not change, in the modes where they are not both of those two."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FromService(Operation):
    """Elements of a registered dataset. Each stage that is built is the next pass of this object.

    Attributes:
        registered_cardinality: The dataset's own length, before workers are counted.
    """

    remembered: ClassVar[bool] = True

    service: ServiceAddress
    dataset_id: str
    options: ReadOptions
    spec: Any = None
    registered_cardinality: int = UNKNOWN_CARDINALITY
    pipeline: Operation | str | None = field(default=None, repr=False)
    """What the service was given, or a digest of it: results that are kept follow from that, not from where it runs."""
    passes: PassNumbers = field(default_factory=PassNumbers, repr=False)
    connections: Connections = field(default_factory=Connections, repr=False)
    register_again: Callable[[], str] | None = field(default=None, repr=False)
    """Gives the pipeline to the service once more: a service forgets what was not read for long, or starts anew."""

    @property
    def name(self) -> str:
        """With the job, as in `from the service (job 'train')`."""
        job = self.options.job_name
        return f"from the service (job {job!r})" if job else "from the service"

    @property
    def element_spec(self) -> Any:
        """The registered one; None where it was not known."""
        return self.spec

    @property
    def cardinality(self) -> int:
        """Endless and empty stay so where all shards of it are; the rest depends on the number of workers."""
        if self.options.consumers:
            return INFINITE_CARDINALITY  # else it is refused, when it ends at the latest
        known = _KEPT.get(self.options.mode, (INFINITE_CARDINALITY, 0))
        return self.registered_cardinality if self.registered_cardinality in known else UNKNOWN_CARDINALITY

    @property
    def pass_numbers(self) -> PassNumbers:
        """Its own: all datasets that are made of it read one job."""
        return self.passes

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """Workers hand out what is ready."""
        del deterministic
        return False

    @property
    def runs_elsewhere(self) -> Operation | None:
        """What was distributed here."""
        return self.pipeline if isinstance(self.pipeline, Operation) else None

    @property
    def position_identity(self) -> Any:
        """What a reading position is of: not where the service is, or what the job is called."""
        return self.options.mode.name, self.pipeline if isinstance(self.pipeline, str) else ""

    def split_provider(self) -> SplitProvider | None:
        """None of its own: a service hands out elements, not splits."""
        raise UnimplementedError(
            "Cannot create split providers for dataset of type DataServiceDataset: a distributed dataset cannot be the "
            "source of a DYNAMIC job",
            hint='distribute once, at the end; or use the mode "parallel_epochs" (OFF) for the outer job',
        )

    def build(self, context: BuildContext) -> Stage:
        """A stage that joins the job's next pass when it is read, or goes on with one where a bookmark says."""
        bookmarks = context.bookmarks
        if bookmarks is None:
            number = next(self.passes)
            return ServiceStage(lambda: self._join(number, endless=context.endless))
        if self.options.consumers:
            bookmarks.refuse(
                "the consumers of a coordinated read move on together, round by round",
                "the service keeps the round: a consumer that comes back goes on with the others",
            )
        elif self.options.cached:
            bookmarks.refuse(
                "the trainers of a cross-trainer cache share one place in each task",
                "the service keeps the place: a trainer that comes back with its trainer_id goes on there",
            )
        place, mark = bookmarks.take(context, self.name)
        over = loaded_end(mark) if mark is not None else None
        if over is not None:
            self.passes.go_on_behind(over[0])
            bookmarks.end(place, mark)
            return PassedStage(self.name, over[1])
        resumed = loaded(mark) if mark is not None else None
        if resumed is not None:
            self.passes.go_on_behind(resumed.repetition - 1)
        on_end = partial(bookmarks.end, place) if len(context.passes) > 1 else None
        number = next(self.passes)
        return ServiceStage(
            lambda: self._join(number, place, resumed, on_end, endless=context.endless),
            place,
            mark if mark is not None else mark_of_beginning(number),
            resumed.behind if resumed is not None else 0,
        )

    def _join(self, number: int, *where: Any, endless: bool) -> JobReader:
        """Join a pass of the job; where passes go on for ever, the first one from that number on that is not over."""
        refuse_stopped(self.service.address)
        try:
            return self._reader(self.dataset_id, number, *where, endless=endless)
        except NotFoundError:
            if self.register_again is None:
                raise
            return self._reader(self.register_again(), number, *where, endless=endless)

    def _reader(self, dataset_id: str, number: int, *where: Any, endless: bool) -> JobReader:
        if self.options.consumers:
            return CoordinatedStage(self.service, dataset_id, self.options)
        # What is read again will be read once more; most datasets are read once, and leave no connection behind.
        again = self.connections if number else None
        reader = ReadStage(
            self.service, dataset_id, self.options, number, *where, unfinished=endless, connections=again
        )
        if reader.iteration > number and not self.options.cached:
            self.passes.go_on_behind(reader.iteration)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process counts its own passes, finds the token by itself, and does without the pipeline.
        return (
            _restore,
            (self.service, self.dataset_id, self.options, self.spec, self.registered_cardinality, self._digest()),
        )

    def _digest(self) -> str | None:
        """Of the pipeline; None where it is not known, or has none."""
        if not isinstance(self.pipeline, Operation):
            return self.pipeline
        found = fingerprint(self.pipeline)
        return None if found.unhashable else found.digest

    def __dsnb_fingerprint__(self) -> Any:
        what = (self.service, self.dataset_id) if self.pipeline is None else self.pipeline
        return ("from the service", what, self.options)

    def __dsnb_result__(self) -> Operation:
        # How elements travel does not change them.
        options = replace(self.options, protocol=None, compression="", checksum=False, max_outstanding_requests=None)
        return self if options == self.options else replace(self, options=options)


def _restore(
    service: ServiceAddress, dataset_id: str, options: ReadOptions, spec: Any, cardinality: int, pipeline: Any
) -> FromService:
    return FromService(
        service=service,
        dataset_id=dataset_id,
        options=options,
        spec=spec,
        registered_cardinality=cardinality,
        pipeline=pipeline,
    )

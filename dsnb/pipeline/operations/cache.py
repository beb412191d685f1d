"""`Dataset.cache`: records elements, so that later iterations and concurrent runs read them back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dsnb.cache.opened_files import FileComparison, FileState, OpenedFiles, comparable_here, file_states
from dsnb.cache.recordings.backends import PipelineRecordings, warn
from dsnb.cache.recordings.frames import Run, frames_from_run, rows
from dsnb.cache.recordings.locations import check_location, recordings_at
from dsnb.cache.recordings.memory import RecordingMemory
from dsnb.cache.recordings.metadata import RecordingMetadata
from dsnb.cache.recordings.reader import RecordingReader
from dsnb.cache.recordings.recorder import FallBackToPipeline
from dsnb.cache.recordings.recording import RecordingHeader
from dsnb.cache.recordings.split_recording import SplitRecording
from dsnb.cache.recordings.writer import RecordingPlan
from dsnb.code.fingerprint.fingerprint import Fingerprint, fingerprint
from dsnb.code.pipeline_classes import PipelineClasses
from dsnb.elements.frame import Frame
from dsnb.errors import FailedPreconditionError, UnimplementedError
from dsnb.pipeline.engine.randomness import FIXED_SEED
from dsnb.pipeline.engine.stage import Stage, as_list, concat_as_list
from dsnb.pipeline.operation import BuildContext, Operation, Unchanged, walk
from dsnb.pipeline.operations.cache_splits import SplitCacheStage
from dsnb.pipeline.splits import FileSource, SplitProvider, split_providers
from dsnb.storage.urls import without_password
from dsnb.wire.threads import shielded

CHUNK_BYTES: Final = 16 << 20
LEASE_S: Final = 5.0


class Cache(Unchanged, frozen=True, kw_only=True):
    """Records the elements of its input.

    Attributes:
        where: A directory or address; None for memory.
        memory: The recordings, if they are in memory.
        limit: Maximum size of all recordings in that location, in bytes; None for no limit.
        expire_s: How long a server keeps a recording that is not read; None means forever.
        content: Whether files are compared by content instead of size and modification time.
        chunk_bytes: Size of a chunk, which is committed at once, in bytes.
        lease_s: Seconds without a sign of life after which another process takes over from a writer.
        classes: The classes for named tuples and dataclasses that are read back.
    """

    where: str | None
    memory: RecordingMemory
    limit: int | None = None
    expire_s: float | None = None
    content: bool = False
    chunk_bytes: int = CHUNK_BYTES
    lease_s: float = LEASE_S
    classes: PipelineClasses = msgspec.field(default_factory=PipelineClasses)

    @property
    def name(self) -> str:
        return "cache()" if self.where is None else f"cache({without_password(self.where)!r})"

    @property
    def elementwise(self) -> bool:
        """True: in a static mode, each worker records its own shard and runs no other."""
        return True

    @property
    def position_identity(self) -> object:
        """Empty, since where elements are recorded does not change them."""
        return ()

    def __dsnb_fingerprint__(self) -> object:
        # Leaves out the recordings in memory, so that a cell that is run again makes an equal pipeline.
        where = None if self.where is None else without_password(self.where)
        return ("cache", *self.inputs, where, self.limit, self.expire_s, self.content)

    def __dsnb_result__(self) -> Operation:
        return self.inputs[0]

    @property
    def inputs_per_element(self) -> int:
        """0: a recording is kept split by split, so its splits do not depend on later operations."""
        return 0

    def split_provider(self) -> SplitProvider | None:
        """None: the sources have the splits, if the input can be recorded split by split.

        Raises:
            UnimplementedError: an operation of the input mixes splits; the message names it.
        """
        mixing = next((step for step in walk(self.inputs[0]) if step.inputs and not _is_split_local(step)), None)
        if mixing is not None:
            raise UnimplementedError(
                f"Splitting is not implemented for recordings of mixed splits: {self.name} would record split by "
                f"split, but {mixing.name} in front of it mixes them",
                did="nothing was read",
                hint=f"put {mixing.name} behind `cache`, or use OFF or a static sharding policy",
            )
        return None

    def build(self, context: BuildContext) -> Stage:
        """Build a stage that records or reads.

        Raises:
            UnimplementedError: the task reads only some splits, and an operation mixes them.
            FailedPreconditionError: some value in the pipeline cannot be hashed, so changes of it would not be noticed.
        """
        if context.splits is not None:
            return self._build_split(context)
        return CacheStage(self, context)

    def _build_split(self, context: BuildContext) -> Stage:
        self.split_provider()
        (provider,) = split_providers(self.inputs[0])
        recording = SplitRecording(self.recordings("splits"), recording_start(self.inputs[0], context), provider.count)
        try:
            return SplitCacheStage(self.name, self.inputs[0], context, recording, self.open_source, self.chunk_bytes)
        except BaseException:
            recording.close()
            raise

    def open_source(self, context: BuildContext) -> FrameSource:
        """Build the input as a source of frames that records which files it opens."""
        opened = OpenedFiles()
        stage = self.inputs[0].build(replace(context, opened_files=opened))
        return FrameSource(stage, opened, "content" if self.content else "change")

    @property
    def named_files(self) -> tuple[FileState, ...]:
        """The files that the input names, with their current states."""
        found = fingerprint(self.inputs[0], result=True)
        return file_states(found.files, "content" if self.content else "change")

    def recordings(self, kind: str = "") -> PipelineRecordings:
        """Return where this pipeline's recordings are.

        Args:
            kind: Separates recordings of different kinds; each kind finds only its own.

        Raises:
            FailedPreconditionError: the pipeline has no key.
        """
        if self.where is None:
            return self.memory.recordings(kind + _shard_key(self.inputs[0]))
        key, found, known = self._key(kind)
        about = RecordingMetadata.from_fingerprint(chain_of_names(self.inputs[0]), found, tuple(known.items()))
        return recordings_at(self.where, key, about, limit=self.limit, expire_s=self.expire_s)

    def key(self) -> str:
        """The key under which a location has the recording of whole passes of this pipeline.

        Raises:
            FailedPreconditionError: the pipeline has no key.
        """
        return self._key("")[0]

    def _key(self, kind: str) -> tuple[str, Fingerprint, dict[str, str]]:
        found = fingerprint(self.inputs[0], result=True)
        refuse_unhashable(found, self.name)
        known = {path: state for _, path, state in file_states(found.files, "content" if self.content else "change")}
        return fingerprint((kind, found.digest, known)).digest, found, known

    def check(self) -> None:
        """Check that the pipeline has a key and the location can be read; warn if the input is random in each epoch.

        Raises:
            FailedPreconditionError: some value in the pipeline cannot be hashed, so changes of it would not be noticed;
                or a newer version of dsnb recorded there.
        """
        if self.where is not None:
            check_location(self.where)
            refuse_unhashable(fingerprint(self.inputs[0]), self.name)
        drawing = next(_unseeded(self.inputs[0]), None)
        if drawing is not None:
            warn(
                f"{drawing.name} draws new random values in each pass, but {self.name} keeps those of one pass",
                "later passes will replay the order of the first",
                f"draw behind it, as in .cache(...).shuffle(...); or give {drawing.name} a seed, if one order is meant",
            )


def kept_in_memory(operation: Operation) -> str:
    """Return the name of a cache that keeps elements in this process's memory; empty if there is none."""
    return next((step.name for step in walk(operation) if isinstance(step, Cache) and step.where is None), "")


def chain_of_names(operation: Operation) -> str:
    """Return a pipeline in one line."""
    return " | ".join(step.name for step in walk(operation))


def _unseeded(operation: Operation) -> Iterator[Operation]:
    """Yield the operations that draw without a seed, except those before another cache, which keeps one order."""
    if not isinstance(operation, Cache):
        for source in operation.inputs:
            yield from _unseeded(source)
        if operation.draws_without_seed:
            yield operation


def recording_start(operation: Operation, context: BuildContext) -> RecordingHeader:
    """Return the header of a recording of this pipeline.

    Args:
        operation: The pipeline.
        context: How it runs. With `shared_order`, other tasks record other parts of it, and all must draw alike;
            `deterministic` is the default for operations without a setting of their own.
    """
    return RecordingHeader(
        entropy=FIXED_SEED if context.shared_order else secrets.randbits(64),
        repeatable=all(step.repeatable_under(deterministic=context.deterministic) for step in walk(operation)),
        pipeline=chain_of_names(operation),
    )


def _is_split_local(operation: Operation) -> bool:
    return operation.split_local and len(operation.inputs) == 1 and not isinstance(operation, Cache)


def _shard_key(operation: Operation) -> str:
    """Return what distinguishes the shards of one pipeline. Ignores values: a function may count its own calls."""
    return repr([(step.name, step.files if isinstance(step, FileSource) else ()) for step in walk(operation)])


def refuse_unhashable(found: Fingerprint, name: str) -> None:
    """Refuse a pipeline whose changes could go unnoticed.

    Raises:
        FailedPreconditionError: some value cannot be hashed; the message names it.
    """
    if found.unhashable:
        raise FailedPreconditionError(
            f"{name} cannot tell when the pipeline changes: {found.unhashable[0]} has no value to compare",
            did="nothing was recorded, since a changed pipeline would be given the old elements",
            hint="pass a path, a seed or plain data instead; or `cache()` without a place, which ends with the process",
        )


class CacheStage(Stage):
    """Reads the recording and, with the other stages of this process, writes it; runs the input alone if it must."""

    skips_cheaply = True
    closes_slowly = True

    def __init__(self, operation: Cache, context: BuildContext) -> None:
        super().__init__(operation.name)
        self._operation = operation
        self._classes = operation.classes
        self._opened_files = context.opened_files
        # A recording depends neither on the iteration nor on the position in a larger tree, so that all its readers
        # agree.
        self._context = BuildContext(
            entropy=context.entropy,
            low_latency=context.low_latency,
            shared_order=context.shared_order,
            cpus=context.cpus,
        )
        self._pipeline: FrameSource | None = None
        self._reported_files = 0
        plan = RecordingPlan(
            header=recording_start(operation.inputs[0], context),
            open_pipeline=self._open,
            chunk_bytes=operation.chunk_bytes,
            lease_s=operation.lease_s,
        )
        self._may_share_memory = context.copied_later
        # The first `next` builds an iterator, so Ctrl-C may interrupt at any point here.
        self._reader = shielded(
            lambda: RecordingReader(operation.recordings(), plan, copied_later=context.copied_later),
            lambda late: late.close(),
        )
        if self._opened_files is not None and not context.low_latency:
            # On a worker, they need not be compared (by content, perhaps): its clients compare the pipeline's files.
            self._opened_files.add_states(operation.named_files)

    @property
    def may_share_memory(self) -> bool:
        """Whether elements may be views of the recording; otherwise they are copies."""
        return self._may_share_memory

    def _open(self, entropy: int) -> FrameSource:
        return self._operation.open_source(replace(self._context, entropy=entropy))

    def produce(self, want: int) -> Run:
        if self._pipeline is None:
            try:
                run = self._reader.pull(want)
                self._report_files()
                return self._classes.convert_run(run) if isinstance(run, list) and run else run
            except FallBackToPipeline as alone:
                self._fall_back(alone)
                if alone.error is not None:
                    raise alone.error from alone.error.__cause__
        assert self._pipeline is not None
        run = self._pipeline.pull_elements(want)
        self._report_files()
        return run

    def _report_files(self) -> None:
        """Report the files that the elements were read from, no matter which process opened them."""
        if self._opened_files is None:
            return
        if self._pipeline is not None:
            self._opened_files.add_states(self._pipeline.take_files())
            return
        files = self._reader.files()
        if len(files) != self._reported_files:
            self._opened_files.add_states(files)
            self._reported_files = len(files)

    def skip(self, count: int) -> int:
        began = self._reader.position
        if self._pipeline is None:
            try:
                return self._reader.skip(count)
            # The position may have advanced before the fallback: skip only the rest.
            except FallBackToPipeline as alone:
                self._fall_back(alone)
                skipped = alone.position - began
                return skipped + self._own_pipeline().skip(count - skipped)
        return self._own_pipeline().skip(count)

    def _own_pipeline(self) -> FrameSource:
        assert self._pipeline is not None
        return self._pipeline

    def _fall_back(self, fallback: FallBackToPipeline) -> None:
        pipeline = fallback.take_pipeline()
        if pipeline is None:
            pipeline = self._open(fallback.entropy)
            pipeline.skip(fallback.position)
        assert isinstance(pipeline, FrameSource)
        self._pipeline = pipeline
        # `cancel` may have run on another thread before it could see the new pipeline.
        if self._cancelled:
            pipeline.cancel()
        self._reader.close()

    def cancel(self) -> None:
        super().cancel()
        self._reader.cancel()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def release(self, unread: int) -> None:
        # The last reader of this process to close commits what was recorded.
        self._reader.close()
        if self._pipeline is not None:
            self._pipeline.close()


class FrameSource:
    """A stage as input of a recording: frames instead of runs.

    Args:
        stage: The stage.
        opened: Where the stage records the files that it opens.
        compared_by: How to compare files.
    """

    def __init__(self, stage: Stage, opened: OpenedFiles, compared_by: FileComparison) -> None:
        self._stage = stage
        self._opened = opened
        self._compared_by: FileComparison = compared_by
        self._unframed: list[Any] = []
        self._error: Exception | None = None

    def pull(self, want: int) -> list[Frame]:
        """Return the next elements as frames; none at the end.

        Raises:
            Exception: the error of an element, in its place.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        run: Run = self._unframed[:want]
        self._unframed = self._unframed[want:]
        if not run:
            run = self._stage.pull(want)
        if not len(run):
            return []
        try:
            return frames_from_run(run)
        except Exception:  # noqa: BLE001 - an element may hold anything; the error is raised again below, in its place
            return self._one_by_one(as_list(run))

    def _one_by_one(self, run: list[Any]) -> list[Frame]:
        found: list[Frame] = []
        for index, element in enumerate(run):
            try:
                found += frames_from_run([element])
            except Exception as error:
                self._unframed = run[index + 1 :] + self._unframed
                if not found:
                    raise
                self._error = error
                break
        return found

    def pull_elements(self, want: int) -> Run:
        """Return the next elements as a run; empty at the end."""
        frames = self.pull(want)
        runs = [rows(frame, 0, frame.count) for frame in frames]
        return runs[0] if len(runs) == 1 else concat_as_list(runs)

    def take_files(self) -> tuple[FileState, ...]:
        """Return the files that were opened since the last call."""
        return comparable_here(self._opened.take_new_states(self._compared_by))

    def skip(self, count: int) -> int:
        """Drop elements and return how many there were."""
        return self._stage.skip(count)

    def cancel(self) -> None:
        """Make running and later pulls raise `CancelledError`."""
        self._stage.cancel()

    def close(self) -> None:
        self._stage.close()

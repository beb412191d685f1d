"""`Dataset.cache`: elements once produced are read back by later passes, and by other runs at the same time."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any, Final

from dsnb.cache.backends import PipelineRecordings, warn
from dsnb.cache.frames import Run, frames_from_run, rows
from dsnb.cache.locations import check_location, recordings_at, without_password
from dsnb.cache.memory import RecordingMemory
from dsnb.cache.metadata import RecordingMetadata
from dsnb.cache.opened_files import FileComparison, FileState, OpenedFiles, file_states
from dsnb.cache.reader import RecordingReader
from dsnb.cache.recorder import FallBackToPipeline
from dsnb.cache.recording import RecordingHeader
from dsnb.cache.split_recording import SplitRecording
from dsnb.cache.writer import RecordingPlan
from dsnb.dataclass import dataclass
from dsnb.elements.fingerprint import Fingerprint, fingerprint
from dsnb.elements.frame import Frame
from dsnb.elements.pipeline_classes import PipelineClasses
from dsnb.errors import FailedPreconditionError, UnimplementedError
from dsnb.pipeline.engine.randomness import FIXED_SEED
from dsnb.pipeline.engine.stage import Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation, Unchanged, walk
from dsnb.pipeline.operations.cache_splits import SplitCacheStage
from dsnb.pipeline.splits import FileSource, SplitProvider, split_providers
from dsnb.wire.threads import shielded

CHUNK_BYTES: Final = 16 << 20
LEASE_S: Final = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Cache(Unchanged):
    """The input, recorded.

    Attributes:
        where: A directory; None for memory.
        memory: What is kept, if it is memory.
        limit: Most bytes of all recordings in the place; None for no limit.
        expire_s: How long a server keeps what nobody reads; None for ever.
        content: Whether files count by their content, and not by size and time.
        chunk_bytes: What is committed at once, in bytes.
        lease_s: After how long a silent writer is taken over, in seconds.
        classes: What named tuples and dataclasses are to be of that are read back.
    """

    where: str | None = field(repr=False)
    memory: RecordingMemory
    limit: int | None = None
    expire_s: float | None = None
    content: bool = False
    chunk_bytes: int = CHUNK_BYTES
    lease_s: float = LEASE_S
    classes: PipelineClasses = field(default_factory=PipelineClasses, repr=False)

    @property
    def name(self) -> str:
        """With the place."""
        return "cache()" if self.where is None else f"cache({without_password(self.where)!r})"

    @property
    def elementwise(self) -> bool:
        """It is: each worker of a static mode records its own shard, and runs no other."""
        return True

    @property
    def position_identity(self) -> object:
        """Nothing: where elements are kept does not change them."""
        return ()

    def __dsnb_fingerprint__(self) -> object:
        # Without what is in memory: a cell that is run again makes the same pipeline.
        where = None if self.where is None else without_password(self.where)
        return ("cache", *self.inputs, where, self.limit, self.expire_s, self.content)

    def __dsnb_result__(self) -> Operation:
        return self.inputs[0]

    def split_provider(self) -> SplitProvider | None:
        """None of its own, if the input can be recorded split by split.

        Raises:
            UnimplementedError: naming what mixes splits.
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
        """A stage that records or reads.

        Raises:
            UnimplementedError: for a task that reads only some splits, where something mixes them.
            FailedPreconditionError: something in the pipeline has no value to tell a changed one by.
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
        """The input at work, which notes the files that it opens."""
        opened = OpenedFiles()
        stage = self.inputs[0].build(replace(context, opened_files=opened))
        return FrameSource(stage, opened, "content" if self.content else "change")

    @property
    def named_files(self) -> tuple[FileState, ...]:
        """The files that the input names, in their states."""
        found = fingerprint(self.inputs[0], result=True)
        return file_states(found.files, "content" if self.content else "change")

    def recordings(self, kind: str = "") -> PipelineRecordings:
        """Where the recordings of this pipeline are.

        Args:
            kind: What sort of recordings; others are not found by it.

        Raises:
            FailedPreconditionError: it has no key.
        """
        if self.where is None:
            return self.memory.recordings(kind + _shard_key(self.inputs[0]))
        found = fingerprint(self.inputs[0], result=True)
        refuse_unhashable(found, self.name)
        known = {path: state for _, path, state in file_states(found.files, "content" if self.content else "change")}
        key = fingerprint((kind, found.digest, known)).digest
        about = RecordingMetadata.from_fingerprint(chain_of_names(self.inputs[0]), found, tuple(known.items()))
        return recordings_at(self.where, key, about, limit=self.limit, expire_s=self.expire_s)

    def check(self) -> None:
        """Look whether the pipeline has a key, the place can be read, and no pass was meant to differ from the others.

        Raises:
            FailedPreconditionError: something in the pipeline has no value to tell a changed one by; or a newer version
                of dsnb has recorded there.
        """
        if self.where is not None:
            check_location(self.where)
            refuse_unhashable(fingerprint(self.inputs[0]), self.name)
        drawing = next(_unseeded(self.inputs[0]), None)
        if drawing is not None:
            warn(
                f"{drawing.name} draws anew in each pass, but {self.name} behind it keeps what one pass drew",
                "later passes will replay the order of the first",
                f"draw behind it, as in .cache(...).shuffle(...); or give {drawing.name} a seed, if one order is meant",
            )


def kept_in_memory(operation: Operation) -> str:
    """What a pipeline keeps in the memory of the process that runs it; empty if nothing."""
    return next((step.name for step in walk(operation) if isinstance(step, Cache) and step.where is None), "")


def chain_of_names(operation: Operation) -> str:
    """A pipeline in one line."""
    return " | ".join(step.name for step in walk(operation))


def _unseeded(operation: Operation) -> Iterator[Operation]:
    """What draws without a seed; not what another recording keeps one order of already."""
    if not isinstance(operation, Cache):
        for source in operation.inputs:
            yield from _unseeded(source)
        if operation.draws_without_seed:
            yield operation


def recording_start(operation: Operation, context: BuildContext) -> RecordingHeader:
    """What to say of a pipeline when its recording begins.

    Args:
        operation: The pipeline.
        context: How it is run: whether others record other parts of it, and all have to draw alike; and whether order
            matters where an operation was not told.
    """
    return RecordingHeader(
        entropy=FIXED_SEED if context.shared_order else secrets.randbits(64),
        repeatable=all(step.repeatable_under(deterministic=context.deterministic) for step in walk(operation)),
        pipeline=chain_of_names(operation),
    )


def _is_split_local(operation: Operation) -> bool:
    return operation.split_local and len(operation.inputs) == 1 and not isinstance(operation, Cache)


def _shard_key(operation: Operation) -> str:
    """What tells the shards of one pipeline apart. Values are not looked at: a function may count its own calls."""
    return repr([(step.name, step.files if isinstance(step, FileSource) else ()) for step in walk(operation)])


def refuse_unhashable(found: Fingerprint, name: str) -> None:
    """Refuse a pipeline that could change without being seen to.

    Raises:
        FailedPreconditionError: naming what has no value.
    """
    if found.unhashable:
        raise FailedPreconditionError(
            f"{name} cannot tell when the pipeline changes: {found.unhashable[0]} has no value to compare",
            did="nothing was recorded, since a changed pipeline would be given the old elements",
            hint="pass a path, a seed or plain data instead; or `cache()` without a place, which ends with the process",
        )


class CacheStage(Stage):
    """Reads the recording, and with all others in this process writes it; or runs the input, where that must be."""

    skips_cheaply = True
    closes_slowly = True

    def __init__(self, operation: Cache, context: BuildContext) -> None:
        super().__init__(operation.name)
        self._operation = operation
        self._classes = operation.classes
        self._opened_files = context.opened_files
        # What is recorded depends on no pass, and no place in a larger tree: all who read it have to mean the same.
        self._context = BuildContext(
            entropy=context.entropy, low_latency=context.low_latency, shared_order=context.shared_order
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
        # An iterator is built by its first `next`, so Ctrl-C may come at any moment of this.
        self._reader = shielded(
            lambda: RecordingReader(operation.recordings(), plan, copied_later=context.copied_later),
            lambda late: late.close(),
        )
        if self._opened_files is not None:
            self._opened_files.add_states(operation.named_files)

    @property
    def may_share_memory(self) -> bool:
        """Views of what is recorded where they are copied later, else copies."""
        return self._may_share_memory

    def _open(self, entropy: int) -> FrameSource:
        return self._operation.open_source(replace(self._context, entropy=entropy))

    def produce(self, want: int) -> Run:
        """The next elements, recorded or produced."""
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
        """Note which files the elements were read from, whoever opened them, where somebody asks."""
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
        """Without looking at what is recorded."""
        began = self._reader.position
        if self._pipeline is None:
            try:
                return self._reader.skip(count)
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
        if self._cancelled:
            pipeline.cancel()
        self._reader.close()

    def cancel(self) -> None:
        """Wake whoever waits, and end the input if nobody else here reads it."""
        super().cancel()
        self._reader.cancel()
        if self._pipeline is not None:
            self._pipeline.cancel()

    def release(self, unread: int) -> None:
        """Leave the recording; the last to leave commits what there is."""
        self._reader.close()
        if self._pipeline is not None:
            self._pipeline.close()


class FrameSource:
    """A pipeline's stage as what a recording is made from: frames instead of runs.

    Args:
        stage: The stage.
        opened: Where it notes the files that it opens.
        compared_by: What they are known by.
    """

    def __init__(self, stage: Stage, opened: OpenedFiles, compared_by: FileComparison) -> None:
        self._stage = stage
        self._opened = opened
        self._compared_by: FileComparison = compared_by
        self._unframed: list[Any] = []
        self._error: Exception | None = None

    def pull(self, want: int) -> list[Frame]:
        """The next elements, laid out; none at the end.

        Raises:
            Exception: what an element failed with, in its place.
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
        except Exception:  # noqa: BLE001 - elements hold anything; found again below, in its place
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
        """The same as elements."""
        frames = self.pull(want)
        if len(frames) == 1:
            return rows(frames[0], 0, frames[0].count)
        return [element for frame in frames for element in as_list(rows(frame, 0, frame.count))]

    def take_files(self) -> tuple[FileState, ...]:
        """The files that were opened since the last call."""
        return self._opened.take_new_states(self._compared_by)

    def skip(self, count: int) -> int:
        """Leave elements out; how many there were."""
        return self._stage.skip(count)

    def cancel(self) -> None:
        """Let whoever pulls get a `CancelledError`."""
        self._stage.cancel()

    def close(self) -> None:
        """Close the stage."""
        self._stage.close()

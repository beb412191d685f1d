"""`Dataset.cache`: elements once produced are read back by later passes, and by other runs at the same time."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any, Final

from dsnb.cache.about import About
from dsnb.cache.backends import Shelf, warn
from dsnb.cache.frames import Run, framed, rows
from dsnb.cache.memory import Memory
from dsnb.cache.opened import FileNote, How, OpenedFiles, states_of
from dsnb.cache.places import check_place, shelf_at, without_password
from dsnb.cache.reader import Reader
from dsnb.cache.recorder import Alone
from dsnb.cache.recording import Begin
from dsnb.cache.split_recording import SplitRecording
from dsnb.cache.writer import Plan
from dsnb.dataclass import dataclass
from dsnb.elements.fingerprint import Fingerprint, fingerprint
from dsnb.elements.frame import Frame
from dsnb.elements.pipeline_classes import PipelineClasses
from dsnb.errors import FailedPreconditionError, UnimplementedError
from dsnb.pipeline.engine.randomness import FIXED
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
    memory: Memory
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
        mixing = next((step for step in walk(self.inputs[0]) if step.inputs and not _keeps_splits(step)), None)
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
        recording = SplitRecording(self.shelf("splits"), begin_of(self.inputs[0], context), provider.count)
        try:
            return SplitCacheStage(self.name, self.inputs[0], context, recording, self.run, self.chunk_bytes)
        except BaseException:
            recording.close()
            raise

    def run(self, context: BuildContext) -> Pipeline:
        """The input at work, which notes the files that it opens."""
        opened = OpenedFiles()
        stage = self.inputs[0].build(replace(context, opened=opened))
        return Pipeline(stage, opened, "content" if self.content else "change")

    @property
    def named_files(self) -> tuple[FileNote, ...]:
        """The files that the input names, in their states."""
        found = fingerprint(self.inputs[0], result=True)
        return states_of(found.files, "content" if self.content else "change")

    def shelf(self, kind: str = "") -> Shelf:
        """Where the recordings of this pipeline are.

        Args:
            kind: What sort of recordings; others are not found by it.

        Raises:
            FailedPreconditionError: it has no key.
        """
        if self.where is None:
            return self.memory.shelf(kind + _cut_of(self.inputs[0]))
        found = fingerprint(self.inputs[0], result=True)
        refuse_unhashable(found, self.name)
        known = {path: state for _, path, state in states_of(found.files, "content" if self.content else "change")}
        key = fingerprint((kind, found.digest, known)).digest
        about = About.of(described(self.inputs[0]), found, tuple(known.items()))
        return shelf_at(self.where, key, about, limit=self.limit, expire_s=self.expire_s)

    def check(self) -> None:
        """Look whether the pipeline has a key, the place can be read, and no pass was meant to differ from the others.

        Raises:
            FailedPreconditionError: something in the pipeline has no value to tell a changed one by; or a newer version
                of dsnb has recorded there.
        """
        if self.where is not None:
            check_place(self.where)
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


def described(operation: Operation) -> str:
    """A pipeline in one line."""
    return " | ".join(step.name for step in walk(operation))


def _unseeded(operation: Operation) -> Iterator[Operation]:
    """What draws without a seed; not what another recording keeps one order of already."""
    if not isinstance(operation, Cache):
        for source in operation.inputs:
            yield from _unseeded(source)
        if operation.draws_without_seed:
            yield operation


def begin_of(operation: Operation, context: BuildContext) -> Begin:
    """What to say of a pipeline when its recording begins.

    Args:
        operation: The pipeline.
        context: How it is run: whether others record other parts of it, and all have to draw alike; and whether order
            matters where an operation was not told.
    """
    return Begin(
        entropy=FIXED if context.shared else secrets.randbits(64),
        repeatable=all(step.repeatable_under(deterministic=context.deterministic) for step in walk(operation)),
        pipeline=described(operation),
    )


def _keeps_splits(operation: Operation) -> bool:
    return operation.keeps_splits and len(operation.inputs) == 1 and not isinstance(operation, Cache)


def _cut_of(operation: Operation) -> str:
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

    seeks = True
    closes_slowly = True

    def __init__(self, operation: Cache, context: BuildContext) -> None:
        super().__init__(operation.name)
        self._operation = operation
        self._classes = operation.classes
        self._asks = context.opened
        # What is recorded depends on no pass, and no place in a larger tree: all who read it have to mean the same.
        self._context = BuildContext(entropy=context.entropy, prompt=context.prompt, shared=context.shared)
        self._pipeline: Pipeline | None = None
        self._told_files = 0
        plan = Plan(
            begin=begin_of(operation.inputs[0], context),
            open=self._open,
            chunk_bytes=operation.chunk_bytes,
            lease_s=operation.lease_s,
        )
        self._lends = context.copied_later
        # An iterator is built by its first `next`, so Ctrl-C may come at any moment of this.
        self._reader = shielded(
            lambda: Reader(operation.shelf(), plan, copied_later=context.copied_later), lambda late: late.close()
        )
        if self._asks is not None:
            self._asks.add_notes(operation.named_files)

    @property
    def lends(self) -> bool:
        """Views of what is recorded where they are copied later, else copies."""
        return self._lends

    def _open(self, entropy: int) -> Pipeline:
        return self._operation.run(replace(self._context, entropy=entropy))

    def produce(self, want: int) -> Run:
        """The next elements, recorded or produced."""
        if self._pipeline is None:
            try:
                run = self._reader.pull(want)
                self._tell_files()
                return self._classes.adopt(run) if isinstance(run, list) and run else run
            except Alone as alone:
                self._go_alone(alone)
                if alone.error is not None:
                    raise alone.error from alone.error.__cause__
        assert self._pipeline is not None
        run = self._pipeline.run(want)
        self._tell_files()
        return run

    def _tell_files(self) -> None:
        """Note which files the elements were read from, whoever opened them, where somebody asks."""
        if self._asks is None:
            return
        if self._pipeline is not None:
            self._asks.add_notes(self._pipeline.take_files())
            return
        files = self._reader.files()
        if len(files) != self._told_files:
            self._asks.add_notes(files)
            self._told_files = len(files)

    def skip(self, count: int) -> int:
        """Without looking at what is recorded."""
        began = self._reader.position
        if self._pipeline is None:
            try:
                return self._reader.skip(count)
            except Alone as alone:
                self._go_alone(alone)
                skipped = alone.position - began
                return skipped + self._own().skip(count - skipped)
        return self._own().skip(count)

    def _own(self) -> Pipeline:
        assert self._pipeline is not None
        return self._pipeline

    def _go_alone(self, alone: Alone) -> None:
        pipeline = alone.take_source()
        if pipeline is None:
            pipeline = self._open(alone.entropy)
            pipeline.skip(alone.position)
        assert isinstance(pipeline, Pipeline)
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


class Pipeline:
    """A pipeline's stage as what a recording is made from: frames instead of runs.

    Args:
        stage: The stage.
        opened: Where it notes the files that it opens.
        how: What they are known by.
    """

    def __init__(self, stage: Stage, opened: OpenedFiles, how: How) -> None:
        self._stage = stage
        self._opened = opened
        self._how: How = how
        self._waiting: list[Any] = []
        self._error: Exception | None = None

    def pull(self, want: int) -> list[Frame]:
        """The next elements, laid out; none at the end.

        Raises:
            Exception: what an element failed with, in its place.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        run: Run = self._waiting[:want]
        self._waiting = self._waiting[want:]
        if not run:
            run = self._stage.pull(want)
        if not len(run):
            return []
        try:
            return framed(run)
        except Exception:  # noqa: BLE001 - elements hold anything; found again below, in its place
            return self._one_by_one(as_list(run))

    def _one_by_one(self, run: list[Any]) -> list[Frame]:
        found: list[Frame] = []
        for index, element in enumerate(run):
            try:
                found += framed([element])
            except Exception as error:
                self._waiting = run[index + 1 :] + self._waiting
                if not found:
                    raise
                self._error = error
                break
        return found

    def run(self, want: int) -> Run:
        """The same as elements."""
        frames = self.pull(want)
        if len(frames) == 1:
            return rows(frames[0], 0, frames[0].count)
        return [element for frame in frames for element in as_list(rows(frame, 0, frame.count))]

    def take_files(self) -> tuple[FileNote, ...]:
        """The files that were opened since the last call."""
        return self._opened.take(self._how)

    def skip(self, count: int) -> int:
        """Leave elements out; how many there were."""
        return self._stage.skip(count)

    def cancel(self) -> None:
        """Let whoever pulls get a `CancelledError`."""
        self._stage.cancel()

    def close(self) -> None:
        """Close the stage."""
        self._stage.close()

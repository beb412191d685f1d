"""One rank's part of a read in the order of the splits: of each `world_size` elements, every rank gets one.

Theory of operation. The ranks are trainers of a cross-trainer cache, so the elements are made once, and each rank
receives all of them, in the same order. It yields element i of the iteration if i modulo `world_size` is its rank. So
the ranks agree without a word: a step is `world_size` elements, and the end is the same step for all. A position is
the location of the next step's first element, which is the same for all ranks, whatever their number.

A rank waits for the last element of a step before it yields its own: otherwise some ranks could take a last step that
others lack. A rank that comes back in the middle of an iteration knows from the location of the first element that it
gets how many are before it, and goes on with the next whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from dsnb.cache.opened_files import OpenedFiles
from dsnb.client.options import DROP, PAD, RAISE, ReadOptions, ServiceAddress
from dsnb.client.position import StartPosition, encode_end
from dsnb.client.reader import ReadStage
from dsnb.client.service_stage import JobReader
from dsnb.errors import FailedPreconditionError, is_element_error
from dsnb.pipeline.engine.stage import ConsumptionListener, Run, as_list
from dsnb.wire.messages import CachePolicy, ClientOrigin

_SILENCE_S: Final = 600.0
"""How long a rank may take for a step until the others no longer wait for it: it may save a checkpoint, or validate."""


def as_rank(options: ReadOptions) -> ReadOptions:
    """Return the options of one rank of a read in the order of the splits, given those of a consumer.

    Losses are errors: ranks that lost different elements would no longer be in step.
    """
    rank, ranks = options.consumer_index, options.num_consumers
    return replace(
        options,
        rank=rank,
        ranks=ranks,
        consumer_index=0,
        num_consumers=0,
        trainer_id=f"rank {rank} of {ranks}",
        cache_policy=CachePolicy(on_lag="wait", timeout_s=_SILENCE_S, start_together=ranks),
        on_worker_loss=options.on_worker_loss or RAISE,
    )


def rank_stage(
    service: ServiceAddress,
    dataset_id: str,
    options: ReadOptions,
    origin: ClientOrigin,
    iteration: int,
    source_key: str = "",
    start_position: StartPosition | None = None,
    on_end: Callable[[Any], None] | None = None,
    *,
    opened_files: OpenedFiles | None = None,
    keeps_digest: bool = False,
) -> RankStage:
    """Join an iteration as one rank; see `ReadStage` for the arguments."""
    reader = ReadStage(
        service,
        dataset_id,
        options,
        origin,
        iteration,
        source_key,
        start_position,
        (lambda _position: None) if on_end is not None else None,  # so that it keeps what a position needs
        opened_files=opened_files,
        keeps_digest=keeps_digest,
    )
    start = start_position.skippable if start_position is not None else 0
    return RankStage(reader, options, start, on_end)


class _Failed:
    """An error in the place of an element."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class RankStage(JobReader):
    """Yields one rank's elements of a read of all elements.

    Args:
        reader: Reads all elements.
        options: Which rank of how many this is, and what becomes of the last elements.
        start: How many steps lie before the start position.
        on_end: Called with the position at the end, if another pass may follow in the same pipeline.
    """

    closes_slowly = True

    def __init__(
        self, reader: ReadStage, options: ReadOptions, start: int, on_end: Callable[[Any], None] | None
    ) -> None:
        super().__init__("from the service", reader)
        self.source_key = reader.source_key
        self._reader = reader
        self._rank, self._ranks, self._at_end = options.rank, options.ranks, options.at_end
        self._on_end = on_end
        self._start = self._skippable = start
        self._steps = start
        """Steps that were yielded, or lie before the start position."""
        self._buffer: list[Any] = []
        """Elements of the steps that come next."""
        self._aligned = self._over = False
        self._left_out = 0
        """Elements before the first whole step that this rank received."""
        self._unconsumed_left_out = 0
        """Those of them that do not count as consumed yet."""

    @property
    def returned(self) -> bool:
        """Whether this rank has read in this epoch before, and left it."""
        return self._reader.returned

    def warn_at_start(self) -> None:
        self._reader.warn_at_start()

    def note_conversion(self, ns: int, *, to_framework: bool) -> None:
        self._reader.note_conversion(ns, to_framework=to_framework)

    # ---- elements

    def produce(self, want: int) -> Run:
        """Return this rank's elements of at most `want` steps."""
        while (steps := len(self._buffer) // self._ranks) == 0:
            if self._over:
                return self._last_step()
            self._receive(want * self._ranks - len(self._buffer))
        mine = self._buffer[self._rank : steps * self._ranks : self._ranks]
        failed = next((step for step, element in enumerate(mine) if isinstance(element, _Failed)), steps)
        return self._take(mine[: max(1, failed)], max(1, failed) * self._ranks)

    def _receive(self, count: int) -> None:
        """Receive at most `count` elements, or an error in the place of one."""
        try:
            run = as_list(self._reader.pull(count))
        except Exception as error:
            if not is_element_error(error):
                raise
            run = [_Failed(error)]
        self.wait_ns = self._reader.wait_ns
        self._over = not run
        self._buffer += run
        if run and not self._aligned:
            self._align(run)

    def _align(self, run: list[Any]) -> None:
        """Leave out the rest of a step of which this rank had consumed the beginning when it was stopped."""
        origin = self._reader.slice_origin
        assert origin is not None
        assert origin.location is not None
        if origin.location.before is None:
            self._buffer.clear()
            raise FailedPreconditionError(
                f"rank {self._rank} joined an epoch that is under way and has lost elements, so it cannot tell where a "
                "step begins",
                did="it received no element",
                hint="load a saved position in all ranks, or start again under another job_name",
            )
        self._aligned = True
        self._left_out = self._unconsumed_left_out = -origin.location.before % self._ranks
        received = min(self._left_out, len(run))
        del self._buffer[:received]
        self._reader.skip(self._left_out - received)

    def _last_step(self) -> Run:
        """The last step, if it lacks elements and these are made up for."""
        run: Run = []
        if self._buffer and self._at_end != DROP:
            filler = self._rank >= len(self._buffer)
            run = self._take([self._buffer[0 if filler else self._rank]], len(self._buffer), filler=filler)
        self._buffer.clear()
        if self._on_end is not None:
            self._on_end(encode_end(self._reader.iteration, self._steps))
        return run

    def _take(self, mine: list[Any], count: int, *, filler: bool = False) -> Run:
        """Take elements off the buffer, of which some are this rank's."""
        del self._buffer[:count]
        self._steps += len(mine)
        if isinstance(mine[0], _Failed):
            raise mine[0].error
        return [(element, filler) for element in mine] if self._at_end == PAD else mine

    def skip(self, count: int) -> int:
        """Leave steps out: those before the start position are not read, the others are read and dropped."""
        free = min(count, self._skippable)
        self._skippable -= free
        self._reader.skip(free)
        return free + super().skip(count - free)

    def track_consumption(self, *, buffered: bool = False) -> ConsumptionListener:
        """Count a whole step as consumed when the user has received this rank's element."""
        del buffered  # always true for the reader: this stage itself holds the elements of incomplete steps
        return _StepListener(self, self._reader.track_consumption(buffered=True))

    def elements_of(self, steps: int) -> int:
        """How many elements are those of the next steps that the user consumed."""
        left_out, self._unconsumed_left_out = self._unconsumed_left_out, 0
        return left_out + steps * self._ranks

    # ---- positions

    def source_position(self, count: int) -> dict[str, Any]:
        """Return the position after the first `count` steps. That of any rank is good for all.

        Raises:
            FailedPreconditionError: this iteration has no exact position.
        """
        if self._over and not self._buffer and count >= self._steps:
            return encode_end(self._reader.iteration, self._steps)
        elements = self._start + self._left_out + (count - self._start) * self._ranks
        state = self._reader.source_position(elements)
        if "elements" in state:
            return encode_end(self._reader.iteration, count)
        return {**state, "behind": count}


class _StepListener(ConsumptionListener):
    """Passes on how many elements make the steps that the user consumed."""

    __slots__ = ("_listener", "_stage")

    def __init__(self, stage: RankStage, listener: ConsumptionListener) -> None:
        self._stage, self._listener = stage, listener

    def consumed(self, elements: int, errors: int) -> None:
        self._listener.consumed(self._stage.elements_of(elements + errors), 0)

    def may_consume(self) -> bool:
        return self._listener.may_consume()

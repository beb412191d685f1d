"""`Dataset.interleave`: takes blocks of elements by turns from datasets that a user's function returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from time import perf_counter_ns
from typing import Any, Final

from msgspec.structs import replace

from dsnb.pipeline.engine.function_location import function_name
from dsnb.pipeline.engine.inner_datasets import InnerDatasets
from dsnb.pipeline.engine.look_ahead import LookAhead
from dsnb.pipeline.engine.stage import Run, Stage, as_list
from dsnb.pipeline.operation import BuildContext, Operation
from dsnb.pipeline.validate import AUTOTUNE, MOST_THREADS
from dsnb.wire.messages import StageReport

DEFAULT_CYCLE: Final = 8
"""The default of `cycle_length`: the same on every machine, so that the order is the same too."""


class Interleave(Operation, frozen=True, kw_only=True):
    """Blocks of `block` elements from `cycle` datasets at a time; threads read `calls` of them ahead.

    If `deterministic` is None, the options of the whole pipeline decide.
    """

    function: Callable[..., Any]
    cycle: int = DEFAULT_CYCLE
    block: int = 1
    calls: int | None = None
    deterministic: bool | None = None

    @property
    def name(self) -> str:
        return f"interleave({function_name(self.function)})"

    def repeatable_under(self, *, deterministic: bool) -> bool:
        """False if threads may deliver elements in the order in which they are ready."""
        ordered = deterministic if self.deterministic is None else self.deterministic
        return ordered or self.calls in (None, 1)

    @property
    def split_local(self) -> bool:
        return True

    def __dsnb_result__(self) -> Operation:
        return self if self.calls is None else replace(self, calls=None)

    def build(self, context: BuildContext) -> Stage:
        (source,) = self.build_inputs(context)
        return InterleaveStage(self, source, context)


class InterleaveStage(Stage):
    """Reads inner datasets through a cycle of slots, each with an inner dataset or empty.

    A slot whose dataset ended stays empty until its next turn, then it gets the next dataset, as in tf.data. If order
    is free, a slot whose next element is not ready is skipped in favour of one that has an element.
    """

    def __init__(self, operation: Interleave, source: Stage, context: BuildContext) -> None:
        super().__init__(operation.name, source)
        self._operation = operation
        self._ordered = context.deterministic if operation.deterministic is None else operation.deterministic
        self._datasets = InnerDatasets(operation.name, operation.function, source, context)
        self._threads = min(operation.cycle, MOST_THREADS) if operation.calls == AUTOTUNE else operation.calls or 0
        self._changed = threading.Condition()
        self._slots: list[_CycleSlot | None] = [None] * operation.cycle
        self._current = 0
        self._block_left = operation.block
        self._exhausted = False
        self._interrupted: list[Any] = []

    def produce(self, want: int) -> Run:
        out, self._interrupted = self._interrupted, []
        try:
            # Return what is ready instead of waiting for more.
            while len(out) < want and not (out and self._threads and self._must_wait()):
                if self._take_full_cycles(out, want):
                    continue
                slot = self._slots[self._current] or self._find_slot()
                if slot is None:
                    break
                self._take(self._ready_slot(slot), out, want)
        except KeyboardInterrupt:
            self._interrupted = out
            raise
        except Exception as failure:  # noqa: BLE001 - elements before an error are delivered first
            return self.fail_after(failure, out)
        return out

    def _take(self, slot: _CycleSlot, out: list[Any], want: int) -> None:
        """Take one block from a slot, or the part that is wanted; advance at the end of the block or dataset."""
        wanted = min(want - len(out), self._block_left)
        # Pull at once what the slot will contribute in whole cycles, and never more than is wanted.
        cycles = (want - len(out)) // (len(self._slots) * self._operation.block)
        before = len(out)
        out += slot.take(wanted, max(wanted, cycles * self._operation.block))
        taken = len(out) - before
        self._block_left -= taken
        if not taken:
            self._slots[self._current] = None
            self._close(slot)
            if self._threads:
                self._open_all()
        if not taken or not self._block_left:
            self._advance()

    def _take_full_cycles(self, out: list[Any], want: int) -> bool:
        """Take whole cycles from all slots at once, as far as each slot has elements; return whether there were any."""
        block = self._operation.block
        slots = self._slots_of_next_cycle() if self._block_left == block else []
        cycles = (want - len(out)) // (max(1, len(slots)) * block)
        if not slots or not cycles:
            return False
        cycles = min(cycles, min(place.fill(cycles * block) for place in slots) // block)
        if not cycles:
            return False
        columns = [slot.take(cycles * block, 0) for slot in slots]
        if block == 1:
            out.extend(chain.from_iterable(zip(*columns, strict=True)))
        else:
            for at in range(0, cycles * block, block):
                for column in columns:
                    out += column[at : at + block]
        return True

    def _slots_of_next_cycle(self) -> list[_CycleSlot]:
        """The slots of the next cycle, in order; none if one of them must be filled or waited for first."""
        if not self._exhausted and not all(self._slots):
            return []
        slots = [slot for slot in (*self._slots[self._current :], *self._slots[: self._current]) if slot is not None]
        ready = [place for place in slots if place.ready] if self._threads else slots
        return ready if len(ready) == len(slots) or not self._ordered else []

    def _find_slot(self) -> _CycleSlot | None:
        """Go to the next slot with a dataset and fill empty slots on the way; None at the end."""
        if self._threads:
            self._open_all()
        for _ in range(len(self._slots)):
            if self._slots[self._current] is None and not self._exhausted:
                self._open(self._current)
            if self._slots[self._current] is not None:
                return self._slots[self._current]
            self._current = (self._current + 1) % len(self._slots)
            self._block_left = self._operation.block
        return None

    def _open_all(self) -> None:
        """Fill empty slots now, so that their threads start early; each gets the dataset of its next turn."""
        count = len(self._slots)
        for step in range(count):
            index = (self._current + step) % count
            if self._slots[index] is None and not self._exhausted:
                self._open(index)

    def _open(self, index: int) -> None:
        inner = self._datasets.next()
        if inner is None:
            self._exhausted = True
            return
        ahead = LookAhead(inner, self.name, None, self._changed) if index < self._threads else None
        self._slots[index] = _CycleSlot(inner, ahead)
        self.adopt(inner)
        if ahead is not None:
            ahead.start()

    def _advance(self) -> None:
        self._current = (self._current + 1) % len(self._slots)
        self._block_left = self._operation.block

    def _must_wait(self) -> bool:
        """Whether the next element is not ready yet."""
        if self._ordered:
            slot = self._slots[self._current]
            return slot is not None and not slot.ready
        return any(self._slots) and self._ready_index() is None

    def _ready_slot(self, slot: _CycleSlot) -> _CycleSlot:
        """Return `slot`, or, if order is free and a block begins, the next slot that has an element; waits for one."""
        if self._ordered or not self._threads or self._block_left < self._operation.block:
            return slot
        with self._changed:
            if self._ready_index() is None:
                began = perf_counter_ns()
                self._changed.wait_for(lambda: self._ready_index() is not None)
                self.wait_ns += perf_counter_ns() - began
                # The reader was faster than all slots: let each of them buffer more.
                for other in self._slots:
                    if other is not None and other.look_ahead is not None:
                        other.look_ahead.grow()
            self._current = self._ready_index() or 0
        return self._slots[self._current] or slot

    def _ready_index(self) -> int | None:
        count = len(self._slots)
        indices = ((self._current + step) % count for step in range(count))
        return next((index for index in indices if (slot := self._slots[index]) is not None and slot.ready), None)

    def cancel(self) -> None:
        super().cancel()
        for slot in list(self._slots):
            if slot is not None:
                slot.cancel()

    def release(self, unread: int) -> None:
        slots, self._slots = self._slots, [None] * len(self._slots)
        for slot in slots:
            if slot is not None:
                self._close(slot)

    def _close(self, slot: _CycleSlot) -> None:
        self.wait_ns += slot.look_ahead.wait_ns if slot.look_ahead else 0
        slot.close()

    def report(self, depth: int) -> StageReport:
        """Counters of this stage; elements read ahead from inner datasets count as buffered."""
        ahead = [slot.look_ahead for slot in list(self._slots) if slot is not None and slot.look_ahead is not None]
        return replace(
            super().report(depth),
            wait_ns=self.wait_ns + sum(one.wait_ns for one in ahead),
            buffered=sum(one.buffered for one in ahead),
            capacity=sum(one.capacity for one in ahead),
            threads=min(self._threads, self._operation.cycle),
        )


class _CycleSlot:
    """One inner dataset of the cycle, with or without a thread that reads ahead."""

    def __init__(self, stage: Stage, look_ahead: LookAhead | None) -> None:
        self.stage = stage
        self.look_ahead = look_ahead
        self._held: list[Any] = []
        self._next = 0
        self._failure: Exception | None = None

    @property
    def ready(self) -> bool:
        return (
            self.look_ahead is None
            or self._next < len(self._held)
            or self._failure is not None
            or self.look_ahead.ready
        )

    def fill(self, pull: int) -> int:
        """Pull up to `pull` elements if none are held, and return how many are held. An error stays until `take`."""
        if self._next >= len(self._held) and self._failure is None:
            try:
                self._pull(pull)
            except Exception as failure:  # noqa: BLE001 - raised when its turn comes
                self._failure = failure
        return max(0, len(self._held) - self._next)

    def _pull(self, pull: int) -> None:
        self._held, self._next = [], 0
        self._held = as_list(self.stage.pull(pull) if self.look_ahead is None else self.look_ahead.take(pull))

    def take(self, count: int, pull: int) -> list[Any]:
        """Return up to `count` held elements, after pulling up to `pull` if none are held; empty at the end."""
        if self._next >= len(self._held):
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._pull(pull)
        first, self._next = self._next, self._next + count
        return self._held[first : self._next]

    def cancel(self) -> None:
        self.stage.cancel() if self.look_ahead is None else self.look_ahead.cancel()

    def close(self) -> None:
        self.stage.close() if self.look_ahead is None else self.look_ahead.close_stage(0)

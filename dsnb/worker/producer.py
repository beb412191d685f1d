"""The thread that runs a task's pipeline ahead of demand and closes frames.

A frame is closed when it is full in bytes or elements, when it is a few milliseconds old, or at an eighth of the
window. A pull that took longer than a frame may age closes it at once, so slow elements never wait for one another;
and while a pull takes long, another thread closes the frame with what came before it, and with what it has so far.

User code of the last operation runs on the producer's own thread: a lone element is handed on without waking another.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from dsnb.dataclass import dataclass
from dsnb.elements.failure import failure_of
from dsnb.elements.frame import Frame, Schema, frames_of
from dsnb.elements.structure import flatten
from dsnb.errors import CancelledError, InvalidArgumentError, is_out_of_band
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.worker.gathered import concat_runs, runs_for_local_readers
from dsnb.worker.overdue import FlushTimer

FRAME_BYTES = 1 << 20
FRAME_ELEMENTS = 8192
BURST_BYTES = 4 << 20
"""Most bytes of elements, each a frame of its own, that are handed over together: one turn at the task's lock, one
call to the reader's socket."""
_AGE_S = 0.003
_RUN_S = 0.001
_RUN_ELEMENTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """How much may be added to an outlet.

    Attributes:
        frame_bytes: Most bytes of one frame; a single element may be larger, up to `element_bytes`.
        burst_bytes: Most bytes of frames of one element each that are added together; fewer than one has: one by one.
        element_bytes: Most bytes that an element may have.
    """

    frame_bytes: int = FRAME_BYTES
    burst_bytes: int = 0
    element_bytes: int = 1 << 62

    def elements_per_frame(self, nbytes: int) -> int:
        """Elements of one frame, where each has so many bytes."""
        return max(1, min(FRAME_ELEMENTS, self.frame_bytes // nbytes))

    def elements_per_run(self, nbytes: int) -> int:
        """Elements of one run: of a frame, or of several frames that readers of other processes hear of together."""
        most = self.elements_per_frame(nbytes)
        return most if most > 1 else max(1, self.burst_bytes // nbytes)


class FrameReceiver(Protocol):
    """Where a producer's frames go."""

    @property
    def limits(self) -> FrameLimits:
        """How much may be added; another object when it has changed."""
        ...

    def wait_for_room(self) -> bool:
        """Wait until another frame is wanted; False when production must stop."""
        ...

    def on_pulled(self, pending: int) -> None:
        """Learn that what the pipeline made so far was added, or is among the next `pending` elements to be added."""

    def add(self, *frames: Frame) -> None:
        """Take frames."""

    def finish(self) -> None:
        """Learn that the pipeline has come to its end."""

    def fail_readers(self, error: Exception) -> None:
        """Tell readers of an error that stands in no element's place; production goes on with the next pull."""


class Producer(threading.Thread):
    """Runs one pipeline.

    Args:
        name: Of the thread.
        build: Makes the pipeline's stage; called on the thread.
        receiver: Takes the frames.
        error_context: What errors of the pipeline are told about where they happened.
        packed: Whether frames are laid out for readers of other processes.
        seek: What to do with the stage first; called on the thread.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], Stage],
        receiver: FrameReceiver,
        error_context: str,
        *,
        packed: bool,
        seek: Callable[[Stage], None] = lambda _stage: None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.stage: Stage | None = None
        self.one_to_one = True
        """Whether each element of the pipeline, or an error in its place, has become one element of the outlet."""
        self.positioned = False
        """Whether the stage is where the first element is made."""
        self._build = build
        self._seek = seek
        self._receiver = receiver
        self._error_context = error_context
        self._packed = packed
        self._added = 0
        self._added_when_wanted = -1
        """How many had been added when the outlet wanted more the last time."""
        self._schema: Schema | None = None
        self._ready: list[Frame] = []
        """Frames that were laid out and not handed over."""
        self._want = 1
        self._pending: list[Run] = []
        self._pending_count = 0
        self._since = 0.0
        self._shows_partial_results = False
        """Whether the stage can tell what a pull has so far."""
        self._pulling_since: float | None = None
        """Since when there has been a pull of several elements."""
        self._limits = receiver.limits
        self._element_bytes = 0
        self._update_limits(1)
        self._frame_lock = threading.RLock()  # over all that concerns the frame that is being gathered, and its schema
        self._flush_timer = FlushTimer(f"{name}-frames", _AGE_S, self._flush_if_old)

    def run(self) -> None:
        try:
            self.stage = self._build()
        except CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - a module of the user's that ends the process, for instance
            self._receiver.add(Frame.of_failure(failure_of(error, self._error_context)))
            self._receiver.finish()
            return
        try:
            self._shows_partial_results = self.stage.enable_inline_calls()
            self._seek(self.stage)
            self.positioned = True
            self._produce(self.stage)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: readers are told instead of waiting for ever
            self._add_failure(error)
            self._receiver.finish()
        finally:
            self._flush_timer.end()
            self.stage.close()

    def _produce(self, stage: Stage) -> None:
        while True:
            idle = not self._pending_count  # and stays so: another thread takes from what is gathered, and adds nothing
            if not self._wait_for_room():
                return
            want = max(1, min(self._want, self._max_run_elements - self._pending_count))
            began = time.monotonic()
            if self._shows_partial_results and want > 1:
                self._pulling_since = began
                self._flush_timer.arm()
            try:
                run = stage.pull(want)
            except Exception as error:  # noqa: BLE001 - it stands in an element's place
                if is_out_of_band(error) and isinstance(error, CancelledError):
                    return  # the task was stopped, or is another worker's now
                with self._frame_lock:
                    self._pulling_since = None
                    self._flush()
                    if not is_out_of_band(error):
                        self._add_failure(error)
                        self._receiver.on_pulled(0)
                if is_out_of_band(error):
                    self._receiver.fail_readers(error)
                continue
            took = time.monotonic() - began
            if not len(run):
                with self._frame_lock:
                    self._pulling_since = None
                    self._flush()
                self._receiver.finish()
                return
            if idle and want == 1 and took > _RUN_S and isinstance(run, list):
                self._add_single(run)
                self._adapt(1, took)
                continue
            with self._frame_lock:
                self._pulling_since = None
                self._add_run(run, began)
                self._receiver.on_pulled(self._pending_count)
                self._adapt(len(run), took)
                if (
                    took > _RUN_S
                    or self._pending_count >= self._max_frame_elements
                    or time.monotonic() - self._since > _AGE_S
                ):
                    self._flush()
                else:
                    self._flush_timer.arm()

    def _wait_for_room(self) -> bool:
        """Wait until another frame is wanted, unless one is since nothing was added; False when it must stop."""
        added = self._added
        if self._added_when_wanted != added:
            if not self._receiver.wait_for_room():
                return False
            self._added_when_wanted = added
        return True

    def _add_single(self, run: list[Any]) -> None:
        """Add a lone element: somebody waits for it."""
        with self._frame_lock:
            self._receiver.on_pulled(1)
            self._try_to_add(run)

    def _flush_if_old(self) -> bool:
        """Close the frame if it is old, whatever the pipeline does; True while there is one that is not."""
        with self._frame_lock:
            old = time.monotonic() - _AGE_S
            if self._pulling_since is not None and self._pulling_since <= old:
                self._add_partial_run(self._pulling_since)
            if self._since <= old:
                self._flush()
            return bool(self._pending) or self._pulling_since is not None

    def _add_partial_run(self, began: float) -> None:
        """Gather what a pull has so far that takes long; the pull then ends with the call that is being made."""
        run = self.stage.take_partial_run() if self.stage is not None else []
        if run is None:
            return  # its calls have not begun, as on a busy machine or behind a slow source: it is looked at again
        self._pulling_since = None
        if run:
            self._add_run(run, began)

    def _adapt(self, count: int, took: float) -> None:
        """Longer runs while they are quick; shorter ones when a slow function would hold elements back."""
        if took < _RUN_S and 2 * count >= self._want:  # less than wanted where the frame had no room for more
            self._want = min(self._want * 2, _RUN_ELEMENTS, self._max_run_elements)
        elif took > 2 * _RUN_S:
            self._want = max(1, self._want // 2)

    def _update_limits(self, nbytes: int) -> None:
        """Learn how large the newest element is: that says how many of them go together."""
        limits = self._receiver.limits
        if nbytes != self._element_bytes or limits is not self._limits:
            self._element_bytes, self._limits = nbytes, limits
            self._max_frame_elements, self._max_run_elements = (
                limits.elements_per_frame(nbytes),
                limits.elements_per_run(nbytes),
            )

    def _add_run(self, run: Run, began: float) -> None:
        if not self._pending:
            self._since = began
        self._update_limits(_bytes_of_first(run))
        self._pending.append(run)
        self._pending_count += len(run)

    def _flush(self) -> None:
        if not self._pending:
            return
        pending = self._pending
        self._pending, self._pending_count = [], 0
        for run in [concat_runs(pending)] if self._packed else runs_for_local_readers(pending):
            self._try_to_add(run)

    def _try_to_add(self, run: Run) -> None:
        try:
            self._lay_out(run)
        except Exception as error:  # noqa: BLE001 - elements hold anything; what we did not think of is told, not waited for
            self.one_to_one = len(run) == 1
            self._add_failure(error)

    def _lay_out(self, run: Run) -> None:
        apart = len(run) > 1 and self._max_run_elements > self._max_frame_elements
        for some in (run[at : at + 1] for at in range(len(run))) if apart else (run,):
            for part in frames_of(some, self._schema, packed=self._packed):
                if isinstance(part, Exception):
                    self._add_failure(part)
                else:
                    self._schema = self._schema or part.schema
                    self._add(part)
        self._add_ready()

    def _add(self, frame: Frame) -> None:
        """Add a frame, in pieces where it came out larger than one may be."""
        if frame.nbytes <= self._receiver.limits.frame_bytes or frame.count == 1:
            if frame.nbytes > self._receiver.limits.element_bytes:
                self._add_failure(self._too_large(frame))
            else:
                self._ready.append(frame)
                self._update_limits(max(1, frame.nbytes // frame.count))
            return
        middle = frame.count // 2
        for start, stop in ((0, middle), (middle, frame.count)):
            for part in frames_of(list(frame.elements(start, stop)), self._schema, packed=self._packed):
                if isinstance(part, Frame):
                    self._add(part)

    def _add_ready(self) -> None:
        ready, self._ready = self._ready, []
        while ready:
            count = self._burst_count(ready) if len(ready) > 1 else 1
            frames, ready = ready[:count], ready[count:]
            self._wait_for_room()
            self._receiver.add(*frames)
            self._added += sum([frame.count for frame in frames])

    def _burst_count(self, frames: list[Frame]) -> int:
        """How many of these may be added together."""
        room = self._receiver.limits.burst_bytes
        return max(1, bisect_right(list(accumulate([frame.nbytes for frame in frames])), room))

    def _add_failure(self, error: Exception) -> None:
        self._add_ready()
        failure = failure_of(error, f"{self._error_context}, element {self._added}")
        self._added += 1
        self._receiver.add(Frame.of_failure(failure))

    def _too_large(self, frame: Frame) -> InvalidArgumentError:
        limit = self._receiver.limits.element_bytes
        return InvalidArgumentError(
            f"the element size is larger than cache size in bytes ({frame.nbytes:,} > {limit:,})",
            did="the element was dropped; its place is taken by this error",
            hint="raise cross_trainer_cache_size_bytes of the workers, or make smaller batches",
        )


def _bytes_of_first(run: Run) -> int:
    """About how large the elements of a run are; frames that come out too large all the same are cut."""
    if isinstance(run, np.ndarray):
        return max(1, run.nbytes // len(run))
    return max(1, sum(getattr(leaf, "nbytes", None) or _length(leaf) for leaf in flatten(run[0])))


def _length(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, (bytes, str)) else 8

"""The thread that runs a task's pipeline ahead of demand and lays its elements out in frames.

Theory of operation. The producer pulls runs of elements from the pipeline's last stage and gathers them until a frame
is closed: when it is full in bytes (at most an eighth of the window) or elements, when it is a few milliseconds old, or
after a slow pull, so that slow elements never wait for one another. While a pull takes long, a timer thread
(`FlushTimer`) closes the frame with the earlier elements, and with those that the running pull has so far. The length
of the next run adapts to how long pulls take.

User code of the last operation runs on the producer's own thread, so a single element reaches its reader without a
switch to another thread.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import numpy as np

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame, Schema, frames_of
from dsnb.elements.structure import flatten
from dsnb.errors import CancelledError, InvalidArgumentError, is_out_of_band
from dsnb.pipeline.engine.stage import Run, Stage, as_list, concat_runs
from dsnb.storage.urls import add_host
from dsnb.worker.processor_shares import JobPace

FRAME_BYTES = 1 << 20
FRAME_ELEMENTS = 8192
BURST_BYTES = 4 << 20
"""Most bytes of single-element frames that are added together: they share one acquisition of the task's lock and one
call to the reader's socket."""
_AGE_S = 0.003
_RUN_S = 0.001
_RUN_ELEMENTS = 4096


class FrameLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large frames, and groups of frames, may be.

    Attributes:
        frame_bytes: Most bytes of one frame; a single element may be larger, up to `element_bytes`.
        burst_bytes: Most bytes of single-element frames that are added together. Frames are added one by one if this is
            less than an element has.
        element_bytes: Most bytes that an element may have.
    """

    frame_bytes: int = FRAME_BYTES
    burst_bytes: int = 0
    element_bytes: int = 1 << 62

    def elements_per_frame(self, nbytes: int) -> int:
        """How many elements fit in one frame if each has `nbytes` bytes."""
        return max(1, min(FRAME_ELEMENTS, self.frame_bytes // nbytes))

    def elements_per_run(self, nbytes: int) -> int:
        """How many elements of `nbytes` bytes to pull at once: those of one frame, or of a burst of frames."""
        most = self.elements_per_frame(nbytes)
        return most if most > 1 else max(1, self.burst_bytes // nbytes)


class FrameReceiver(Protocol):
    """Where a producer's frames go."""

    @property
    def limits(self) -> FrameLimits:
        """The present limits; a new object whenever they change."""
        ...

    @property
    def pace(self) -> JobPace:
        """Holds the pipeline back between its elements."""
        ...

    def wait_for_room(self) -> bool:
        """Wait until another frame is wanted; False if production must stop."""
        ...

    def on_pulled(self, pending: int) -> None:
        """Note how many elements the pipeline has made: those added so far, and the next `pending` ones."""

    def add(self, *frames: Frame) -> None:
        """Append frames to the task's sequence."""

    def finish(self) -> None:
        """Mark the sequence as complete: the pipeline has ended."""

    def fail_readers(self, error: Exception) -> None:
        """Fail all readers with an error that takes no element's place; production continues with the next pull."""


class Producer(threading.Thread):
    """Runs one pipeline and adds its elements to a receiver.

    Args:
        name: The thread's name.
        build: Makes the pipeline's stage; called on the thread.
        receiver: Takes the frames.
        error_context: Where the pipeline runs; added to its errors.
        packed: Whether frames are laid out for readers in other processes.
        seek: Moves the new stage to its first element; called on the thread.
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
        """Whether each element of the pipeline, or an error in its place, became one element of the receiver."""
        self.positioned = False
        """Whether `seek` has returned, so that the stage's position can be reported."""
        self._build = build
        self._seek = seek
        self._receiver = receiver
        self._error_context = error_context
        self._packed = packed
        self._added = 0
        self._added_when_wanted = -1
        """The value of `_added` when the receiver last wanted more; -1 before."""
        self._schema: Schema | None = None
        self._ready: list[Frame] = []
        """Frames that were laid out and not added yet."""
        self._want = 1
        self._pending: list[Run] = []
        self._pending_count = 0
        self._since = 0.0
        self._shows_partial_results = False
        """Whether the stage supports `take_partial_run`."""
        self._pulling_since: float | None = None
        """When the running pull of several elements began; None if there is none."""
        self._limits = receiver.limits
        self._element_bytes = 0
        self._update_limits(1)
        # Guards the frame that is being gathered, and the schema: the timer thread flushes it during a long pull.
        self._frame_lock = threading.RLock()
        self._flush_timer = FlushTimer(f"{name}-frames", _AGE_S, self._flush_if_old)

    def run(self) -> None:
        try:
            self.stage = self._build()
        except CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - importing a user's module may raise SystemExit, for instance
            self._receiver.add(Frame.of_failure(failure_of(_with_host(error), self._error_context)))
            self._receiver.finish()
            return
        try:
            self._shows_partial_results = self.stage.enable_inline_calls()
            self._seek(self.stage)
            self.positioned = True
            self._produce(self.stage)
        except Exception as error:  # noqa: BLE001 - a bug of dsnb: readers get an error instead of waiting for ever
            if is_out_of_band(error) and isinstance(error, CancelledError):
                return  # while it sought its position, the task was stopped or moved to another worker
            self._add_failure(error)
            self._receiver.finish()
        finally:
            self._flush_timer.end()
            self.stage.close()

    def _produce(self, stage: Stage) -> None:
        while True:
            if not self._wait_for_room():
                return
            want = self._receiver.pace.run_length(max(1, min(self._want, self._max_run_elements - self._pending_count)))
            began = time.monotonic()
            if self._shows_partial_results and want > 1:
                self._pulling_since = began
                self._flush_timer.arm()
            try:
                run = stage.pull(want)
            except Exception as error:  # noqa: BLE001 - user code; the error takes its element's place
                if is_out_of_band(error) and isinstance(error, CancelledError):
                    return  # the task was stopped, or belongs to another worker now
                self._handle_pull_error(error)
                continue
            took = time.monotonic() - began
            if not len(run):
                with self._frame_lock:
                    self._pulling_since = None
                    self._flush()
                self._receiver.finish()
                return
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

    def _handle_pull_error(self, error: Exception) -> None:
        """Add an error of user code in its element's place; send any other to the readers at once."""
        with self._frame_lock:
            self._pulling_since = None
            self._flush()
            if not is_out_of_band(error):
                self._add_failure(error)
                self._receiver.on_pulled(0)
        if is_out_of_band(error):
            self._receiver.fail_readers(error)

    def _wait_for_room(self) -> bool:
        """Wait until another frame is wanted; False if production must stop. Asks only if frames were added since."""
        added = self._added
        if self._added_when_wanted != added or self._receiver.pace.per_s is not None:
            if not self._receiver.wait_for_room():
                return False
            self._added_when_wanted = added
        return True

    def _flush_if_old(self) -> bool:
        """Close the frame if it is old, also during a pull; True if there may be one to close later."""
        with self._frame_lock:
            old = time.monotonic() - _AGE_S
            if self._pulling_since is not None and self._pulling_since <= old:
                self._add_partial_run(self._pulling_since)
            if self._since <= old:
                self._flush()
            return bool(self._pending) or self._pulling_since is not None

    def _add_partial_run(self, began: float) -> None:
        """Gather what a long pull has so far; the pull then returns after the call of user code that is running."""
        run = self.stage.take_partial_run() if self.stage is not None else []
        if run is None:
            return  # the pull has made no call yet (busy machine, slow source): try again at the next tick
        self._pulling_since = None
        if run:
            self._add_run(run, began)

    def _adapt(self, count: int, took: float) -> None:
        """Double the length of the next run after a fast pull; halve it after a slow one, which delays its elements.

        Args:
            count: Elements of the last run.
            took: Seconds that it took.
        """
        # At least half of `want`, not all of it: a run is shorter than wanted where it fills the frame.
        if took < _RUN_S and 2 * count >= self._want:
            self._want = min(self._want * 2, _RUN_ELEMENTS, self._max_run_elements)
        elif took > 2 * _RUN_S:
            self._want = max(1, self._want // 2)

    def _update_limits(self, nbytes: int) -> None:
        """Recompute how many elements make a frame and a run, from the size of the newest element."""
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
        if isinstance(run, np.ndarray) and run.dtype.kind in "US":
            run = as_list(run)  # in an array each text takes the room of the longest
        self._pending.append(run)
        self._pending_count += len(run)

    def _flush(self) -> None:
        if not self._pending:
            return
        pending = self._pending
        self._pending, self._pending_count = [], 0
        for run in (concat_runs(pending),) if self._packed else runs_for_local_readers(pending):
            self._try_to_add(run)

    def _try_to_add(self, run: Run) -> None:
        try:
            self._lay_out(run)
        except Exception as error:  # noqa: BLE001 - an element may be anything; readers get the error and go on
            self.one_to_one = len(run) == 1
            self._add_failure(error)

    def _lay_out(self, run: Run) -> None:
        # A burst: elements so large that each becomes a frame of its own, and all of them are added together.
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
        """Queue a frame for `_add_ready`; halve it, repeatedly, if it came out larger than allowed."""
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
        """How many of these frames may be added together: those within `burst_bytes`, at least one."""
        room = self._receiver.limits.burst_bytes
        return max(1, bisect_right(list(accumulate([frame.nbytes for frame in frames])), room))

    def _add_failure(self, error: Exception) -> None:
        self._add_ready()  # first, to keep the order
        failure = failure_of(_with_host(error), f"{self._error_context}, element {self._added}")
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
    """Estimated bytes of each element of a run, from its first one; `_add` splits frames that turn out too large."""
    if isinstance(run, np.ndarray):
        return max(1, run.nbytes // len(run))
    if isinstance(run[0], np.ndarray):
        return max(1, run[0].nbytes)
    return max(1, sum(getattr(leaf, "nbytes", None) or _length(leaf) for leaf in flatten(run[0])))


def _length(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, (bytes, str)) else 8


def runs_for_local_readers(runs: list[Run]) -> Sequence[Run]:
    """Combine runs for readers in this process. Runs of arrays are not joined: that would copy their elements."""
    if len(runs) == 1 or any(isinstance(run, np.ndarray) and run.ndim > 1 for run in runs):
        return runs
    return [concat_runs(runs)]  # cheap: lists hold references, and scalars are copied for the reader in any case


class FlushTimer(threading.Thread):
    """Calls a function a fixed time after it was armed, repeatedly while the function returns True.

    Without it, elements produced just before a slow call or a slow source would be delayed until that returns. The
    thread starts when the timer is first armed.

    Args:
        name: The thread's name.
        after_s: Seconds from `arm` to the call, and between calls.
        act: The function; returns whether to call it again.
    """

    def __init__(self, name: str, after_s: float, act: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._after_s = after_s
        self._act = act
        self._armed = threading.Event()
        self._ended = threading.Event()

    def arm(self) -> None:
        """Request a call after `after_s` seconds. Must be used by one thread only."""
        if self.ident is None:
            with suppress(RuntimeError):  # no more threads can be started: frames are then closed by the pipeline only
                self.start()
        self._armed.set()

    def end(self) -> None:
        """Make no further calls, and wait for the thread to end."""
        self._ended.set()
        self._armed.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        while not self._ended.is_set():
            self._armed.wait()
            self._armed.clear()
            while not self._ended.wait(self._after_s) and self._act():
                pass


def _with_host(error: BaseException) -> BaseException:
    """The error; with a note of the host, if a file is missing there that may exist on the reader's."""
    return add_host(error) if isinstance(error, FileNotFoundError) else error

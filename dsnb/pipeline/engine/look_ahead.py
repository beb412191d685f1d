"""Pulls a stage on its own thread, a bounded number of elements ahead of the reader.

Theory of operation. One thread pulls runs and appends them to a deque; the reader takes them from the other end. All
waits use one condition and end when an element, free capacity, the end, or `cancel` comes: nothing polls and nothing
waits forever. Errors of single elements are in the deque at their places. Once the buffer was full of cheap elements,
the thread sleeps until half of it is free. Otherwise a fast producer and a fast reader would wake each other for each
element.
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter_ns
from typing import Any, Final

from dsnb.elements.structure import flatten
from dsnb.errors import CancelledError
from dsnb.pipeline.engine.run_length import AdaptiveRunLength
from dsnb.pipeline.engine.stage import Run, Stage
from dsnb.system_limits import start_thread

JOIN_SECONDS: Final = 0.5
"""How long closing waits for a thread that is in user code; after that the thread ends on its own."""
_FIRST_CAPACITY: Final = 2
_MOST_ELEMENTS: Final = 8192
_MOST_BYTES: Final = 64 << 20
_DEFAULT_LEAF_BYTES: Final = 32


def stage_thread_name(suffix: str) -> str:
    """The name of a thread of a stage, given by the thread that pulls from it: it includes the task's on a worker."""
    puller = threading.current_thread().name
    return f"{puller if puller.startswith('dsnb-') else 'dsnb'}-{suffix}"


class LookAhead:
    """A stage's elements, pulled ahead of the reader.

    Args:
        stage: The stage to pull; its owner closes it through `close_stage`.
        name: For the thread's name.
        capacity: The maximum number of ready elements; None to begin with a few and double whenever the reader had to
            wait.
        changed: The condition to wait on; several instances may share one, so that a reader can wait for any of them.
    """

    def __init__(
        self, stage: Stage, name: str, capacity: int | None = None, changed: threading.Condition | None = None
    ) -> None:
        self._stage = stage
        self._name = name
        self._adaptive = capacity is None
        self.capacity = _FIRST_CAPACITY if capacity is None else capacity
        self._changed = changed or threading.Condition()
        self._ready: deque[Run | BaseException] = deque()
        self.buffered = 0
        self.wait_ns = 0
        self._full = False
        self._resume_below = 0
        self._ended = False
        self._cancelled = False
        self._finished = False
        self._abandoned = False
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether `take` would return immediately."""
        return bool(self._ready) or self._ended or self._cancelled

    @property
    def started(self) -> bool:
        """Whether pulling has begun."""
        return self._thread is not None

    def start(self) -> None:
        """Begin to pull; a second call does nothing."""
        if self._thread is None and not self._cancelled:
            thread = threading.Thread(target=self._thread_main, name=stage_thread_name(self._name), daemon=True)
            start_thread(thread)
            self._thread = thread

    def take(self, want: int) -> Run:
        """Return at least one and at most `want` elements, or an empty run at the end; waits for them.

        Raises:
            Exception: the error of one element, in its place.
            CancelledError: `cancel` was called.
        """
        self.start()
        with self._changed:
            if not self.ready:
                self._wait_for_element()
            if self._cancelled:
                raise CancelledError("reading was stopped")
            if not self._ready:
                return []
            return self._next(want)

    def cancel(self) -> None:
        """End all waits permanently; from any thread."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        self._stage.cancel()

    def join(self) -> bool:
        """Wait up to `JOIN_SECONDS` for the thread; return whether it ended. If not, it closes the stage later."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(JOIN_SECONDS)
        with self._changed:
            self._abandoned = not self._finished
        return not self._abandoned

    def close_stage(self, unread: int) -> None:
        """Stop the thread and close the stage, now or when user code returns."""
        self.cancel()
        with self._changed:
            unread += sum(len(item) for item in self._ready if not isinstance(item, BaseException))
            self._ready.clear()
        self.buffered = 0
        if self.join():
            self._stage.close(unread)

    def _wait_for_element(self) -> None:
        began = perf_counter_ns()
        self._changed.wait_for(lambda: self.ready)
        self.wait_ns += perf_counter_ns() - began
        self.grow()

    def grow(self) -> None:
        """Double the capacity, because the reader was faster for a while. The caller holds the condition's lock."""
        if not self._adaptive or not self._ready or self.capacity >= _MOST_ELEMENTS:
            return
        run = self._ready[0]
        if isinstance(run, BaseException) or 2 * self.capacity * _bytes_of(run[0]) > _MOST_BYTES:
            return
        self.capacity *= 2
        self._full = False
        self._changed.notify_all()

    def _next(self, want: int) -> Run:
        item = self._ready.popleft()
        if isinstance(item, BaseException):
            self._note_taken(1)
            raise item
        if len(item) > want:
            self._ready.appendleft(item[want:])
            item = item[:want]
        self._note_taken(len(item))
        return item

    def _note_taken(self, count: int) -> None:
        self.buffered -= count
        if self._full and self.buffered <= self._resume_below:
            self._full = False
            self._changed.notify_all()

    def _thread_main(self) -> None:
        run_length = AdaptiveRunLength()
        try:
            while free := self._wait_for_capacity(slow=run_length.want == 1):
                began = perf_counter_ns()
                item = self._pull(min(run_length.want, free))
                run_length.note(perf_counter_ns() - began)
                self._put(item)
        finally:
            with self._changed:
                self._ended = self._finished = True
                self._changed.notify_all()
                # Both threads set or read `_abandoned` under the lock, so exactly one of them closes the stage.
                abandoned = self._abandoned
            if abandoned:
                self._stage.close()

    def _wait_for_capacity(self, *, slow: bool) -> int:
        """Wait for capacity and return how many more elements may be buffered; 0 when nothing is left to do."""
        with self._changed:
            if self.buffered >= self.capacity:
                self._full = True
                # Slow elements: refill after each one. Cheap ones: sleep until half of the buffer is free, which saves
                # wake-ups.
                self._resume_below = self.capacity - 1 if slow else self.capacity // 2
            self._changed.wait_for(lambda: not self._full or self._cancelled)
            return 0 if self._cancelled or self._ended else max(1, self.capacity - self.buffered)

    def _pull(self, want: int) -> Run | BaseException:
        try:
            return self._stage.pull(want)
        except BaseException as failure:  # noqa: BLE001 - raised again where the element is read
            return failure

    def _put(self, item: Run | BaseException) -> None:
        with self._changed:
            if isinstance(item, BaseException):
                self._ready.append(item)
                self.buffered += 1
            elif len(item):
                self._ready.append(item)
                self.buffered += len(item)
            else:
                self._ended = True
            self._changed.notify_all()


def _bytes_of(element: Any) -> int:
    return sum(map(_leaf_bytes, flatten(element)))


def _leaf_bytes(leaf: Any) -> int:
    if hasattr(leaf, "nbytes"):
        return int(leaf.nbytes)
    return len(leaf) if isinstance(leaf, (str, bytes)) else _DEFAULT_LEAF_BYTES

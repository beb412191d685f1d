"""What `iter(dataset)` gives: elements one by one out of runs, for as little as that can cost."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from operator import length_hint
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, Self

from dsnb.elements.legible import show_to_user
from dsnb.pipeline.engine.leaving import Outlet
from dsnb.pipeline.engine.pace import MOST, Pace
from dsnb.pipeline.engine.stage import Stage, StageReport, closes_slowly, reports
from dsnb.wire import forks

_CLOSE_SECONDS: Final = 1.0


class ElementIterator(Iterator[Any]):
    """One pass over a dataset.

    An error of one element stands in its place: `next` raises it, and the next `next` goes on with the element behind.
    Dropping the iterator closes it; so do its end, `close()` and leaving its `with` block.

    Args:
        stage: The pipeline; the iterator closes it.
        most: The longest run to pull at once.
        writable: Whether elements are copies that the reader may write to.

    Example:
        >>> import dsnb
        >>> with iter(dsnb.Dataset.range(3)) as elements:
        ...     print(next(elements))
        0
    """

    __slots__ = ("__weakref__", "_finalizer", "_lock", "_pending", "_run", "_source")

    def __init__(self, stage: Stage, most: int = MOST, *, writable: bool = False) -> None:
        self._source = _Source(stage, most, Outlet(writable=writable))
        self._run: Iterator[Any] = iter(())
        self._lock = threading.RLock()
        self._finalizer = weakref.finalize(self, self._source.drop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        for element in self._run:
            return element
        try:
            return self._refill()
        except BaseException as error:
            __tracebackhide__ = True  # IPython and pytest leave this frame out
            # A traceback that is kept (a notebook keeps the last one) must not keep the iterator open.
            del self
            show_to_user(error)
            raise

    def _refill(self) -> Any:
        try:
            with self._lock:
                for element in self._run:  # another thread was here first
                    return element
                if self._finalizer.alive:
                    self._run = self._source.next_run()
                    for element in self._run:
                        return element
                    self._finish()
        except BaseException:
            del self
            raise
        raise StopIteration

    @property
    def closed(self) -> bool:
        """Whether there is nothing more to come."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Stop reading and let go of threads and files; then `next` raises StopIteration. Harmless twice."""
        if self._source.inherited:
            return
        self._source.stage.cancel()
        # Another thread may be reading; it lets go as soon as user code does.
        locked = self._lock.acquire(timeout=_CLOSE_SECONDS)
        try:
            self._finish()
            self._run = iter(())
        finally:
            if locked:
                self._lock.release()

    def _finish(self) -> None:
        if self._finalizer.detach() is not None:
            self._source.close()

    def reports(self) -> tuple[StageReport, ...]:
        """What each operation did so far, the last one first."""
        return tuple(reports(self._source.stage))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Source:
    """What an iterator reads from; outlives it just long enough to be closed."""

    def __init__(self, stage: Stage, most: int, outlet: Outlet) -> None:
        self.stage = stage
        self._made = forks.generation()
        self._pace = Pace(most)
        self._outlet = outlet
        self._run: Iterator[Any] = iter(())
        self._waiting: list[Any] = []
        self._failure: Exception | None = None

    @property
    def inherited(self) -> bool:
        """Whether it came to this process by a fork."""
        return forks.forked_since(self._made)

    def next_run(self) -> Iterator[Any]:
        """The next elements; an exhausted iterator at the end.

        Raises:
            FailedPreconditionError: the iterator came to this process by a fork.
        """
        if self.inherited:
            raise forks.inherited("this iterator cannot be read here")
        self._raise_failure()
        run, self._waiting = self._waiting, []
        if not run:
            began = perf_counter_ns()
            pulled = self.stage.pull(self._pace.want)
            self._pace.note(perf_counter_ns() - began)
            if not len(pulled):
                return iter(())
            elements, self._failure, self._waiting = self._outlet.convert(pulled)
        else:
            elements, self._failure, self._waiting = self._outlet.convert(run)
        if not elements:
            self._raise_failure()
        self._run = iter(elements)
        return self._run

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """Close the pipeline, telling it what was never yielded."""
        if self.inherited:  # its threads are the parent's, and so is what they wait for
            return
        self.stage.close(length_hint(self._run) + len(self._waiting))

    def drop(self) -> None:
        """Close the pipeline of an iterator that was dropped, without holding up whoever dropped it.

        That may be a garbage collection: at any moment, in any thread, under any lock.
        """
        if self.inherited:
            _left_alone.append(self)
            return
        self.stage.cancel()
        if not closes_slowly(self.stage):
            self.close()
            return
        try:
            threading.Thread(target=self.close, name="dsnb-close", daemon=True).start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            self.close()


_left_alone: list[_Source] = []
"""Iterators from before a fork that were dropped after it: they are kept, since taking them apart may hang."""

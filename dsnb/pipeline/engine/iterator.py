"""What `iter(dataset)` gives: elements one by one out of runs, for as little as that can cost."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from copy import deepcopy
from operator import length_hint
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, Protocol, Self

from dsnb.arguments import anything, checked
from dsnb.dataclass import dataclass
from dsnb.elements.legible import show_to_user
from dsnb.errors import FailedPreconditionError, UnimplementedError, stands_in_place
from dsnb.limits import explained
from dsnb.pipeline.engine.leaving import Outlet
from dsnb.pipeline.engine.pace import MOST, Pace
from dsnb.pipeline.engine.stage import Run, Stage, StageReport, Tracking, closes_slowly, reports
from dsnb.wire import forks

_CLOSE_SECONDS: Final = 1.0
_SLOW_NS: Final = 10_000
"""From here on a user's loop takes so long for an element that it costs little to tell of each one."""
_UNTOLD_NS: Final = 1_000_000
"""For how long a faster loop may go on before it tells of what it consumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a pass an iterator is.

    Attributes:
        yielded: Elements that its reader was given, and errors in the places of some.
        failed: Whether there were such errors.
        ended: Whether its reader was told of the end.
    """

    yielded: int = 0
    failed: bool = False
    ended: bool = False


class Origin(Protocol):
    """The pass that an iterator's elements are of: builds its pipeline, makes and takes reading positions."""

    def begun(self) -> Origin:
        """The pass itself: which one it is, is decided when it begins."""
        ...

    def build(self) -> Stage:
        """The pipeline, before its first element. Building it reads nothing and joins no job."""
        ...

    def go_to(self, stage: Stage, place: Place) -> None:
        """Have a pipeline that nothing was read of go on at a place."""
        ...

    def state(self, stage: Stage | None, place: Place) -> dict[str, Any]:
        """A place as plain data; a pass that came to its end needs no pipeline for that."""
        ...

    def at(self, state: Any) -> tuple[Origin, Place]:
        """The pass and the place that a state tells; raises if it is none."""
        ...

    def make_current(self) -> None:
        """Have the next loop over the dataset be the pass after this one."""
        ...


class ElementIterator(Iterator[Any]):
    """One pass over a dataset.

    Nothing happens before the first `next` or `start()`: a dataset that a service reads joins its job then, and an
    iterator that is made and dropped costs nothing. An error of one element stands in its place: `next` raises it, and
    the next `next` goes on with the element behind. Dropping the iterator closes it; so do its end, `close()` and
    leaving its `with` block.

    Args:
        stage: The pipeline, where there is one already; the iterator closes it.
        most: The longest run to pull at once.
        writable: Whether elements are copies that the reader may write to.
        origin: Builds the pipeline, and can begin the pass again, for reading positions.

    Example:
        >>> import dsnb
        >>> with iter(dsnb.Dataset.range(3)) as elements:
        ...     print(next(elements))
        0
    """

    __slots__ = ("__weakref__", "_finalizer", "_lock", "_origin", "_run", "_source")

    def __init__(
        self,
        stage: Stage | None = None,
        most: int = MOST,
        *,
        writable: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self._source = _Source(stage, most, Outlet(writable=writable))
        self._origin = origin
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
            limit = None if hasattr(error, "__notes__") else explained(error)  # a function's own error is the user's
            if limit is not None:
                raise limit from error
            show_to_user(error)
            raise

    def _refill(self) -> Any:
        try:
            with self._lock:
                for element in self._run:  # another thread was here first
                    return element
                if self._finalizer.alive:
                    if not self._source.begun:
                        self._begin()
                    again = True
                    while again:
                        self._run = self._source.next_run()
                        for element in self._run:
                            return element
                        again = self._source.forget_withdrawn()
                    self._source.ended = True
                    self._finish()
        except BaseException:
            del self
            raise
        raise StopIteration

    @checked()
    def start(self) -> Self:
        """Begin before the first `next`: join the job, so that workers produce while this process does other things.

        A second call does nothing; nor does one after the end.

        Returns:
            The iterator.

        Raises:
            DsnbError: what the first `next` would raise, as when the service does not answer or the job has other
                parameters. The next `next` tries again.

        Example:
            >>> import dsnb
            >>> with dsnb.start(workers=1) as svc:
            ...     squares = dsnb.Dataset.range(3).map(lambda x: x * x)
            ...     elements = iter(squares.apply(dsnb.distribute("parallel_epochs", svc))).start()
            ...     [int(element) for element in elements]  # the worker has begun meanwhile
            [0, 1, 4]
        """
        with self._lock:
            if self._finalizer.alive and not self._source.begun:
                self._begin()
        return self

    def _begin(self) -> None:
        self._source.refuse_inherited()
        stage, place = self._built(), self._source.place
        stage.start()
        if place.yielded:
            self._go_to(stage, place)
        self._source.begun, self._source.loaded = True, None

    def _built(self) -> Stage:
        """The pipeline; it is built now if it was not."""
        if self._source.stage is None:
            self._origin = self._known_origin().begun()
            self._source.keep(self._origin.build())
        assert self._source.stage is not None
        return self._source.stage

    def _go_to(self, stage: Stage, place: Place) -> None:
        try:
            self._known_origin().go_to(stage, place)
        except BaseException:
            self._source.stage = None  # what was left out so far cannot be told: the next attempt builds it anew
            stage.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether there is nothing more to come."""
        return not self._finalizer.alive

    @checked()
    def state_dict(self) -> dict[str, Any]:
        """The reading position: what it takes to go on behind the element that came last, also in another process.

        Before the first `next` it is the beginning of the pass. Taking it joins no job.

        Returns:
            Plain data of text, numbers, lists and dicts, for JSON or pickle; a few hundred bytes for most pipelines.

        Raises:
            FailedPreconditionError: naming the operation whose elements could not be had again in the same order; or
                the iterator was closed before its end.
            UnavailableError: a service that is read from does not answer.

        Example:
            >>> import dsnb
            >>> ds = dsnb.Dataset.range(5).shuffle(5)
            >>> elements = iter(ds)
            >>> first, state = next(elements), elements.state_dict()
            >>> again = iter(ds)
            >>> again.load_state_dict(state)
            >>> list(again) == list(elements)
            True
        """
        with self._lock:
            place = self._source.place
            if self.closed and not place.ended:
                raise FailedPreconditionError(
                    "the iterator was closed, so its reading position is gone",
                    hint="take state_dict() first, then close it",
                )
            if self._source.loaded is not None:  # a copy: nothing was read since it was loaded
                return deepcopy(self._source.loaded)
            stage = self._source.stage if place.ended else self._built()
            return self._known_origin().state(stage, place)

    @checked(state=anything)
    def load_state_dict(self, state: Any) -> None:
        """Go to a reading position that `state_dict` gave, of this pipeline in this or another process.

        The next `next`, or `start()`, goes there. What can jump (ranges, slices, recordings, shuffles of them) does;
        other pipelines run up to there again. The next loop over the dataset will be the pass behind.

        Args:
            state: The position. With an error the iterator stays where it is.

        Raises:
            InvalidArgumentError: it is no position, or of another pipeline; the first operation that differs is named.
            FailedPreconditionError: another version of dsnb wrote it. That the service cannot go on there is raised by
                the next `next`.

        Example:
            >>> import dsnb
            >>> elements = iter(dsnb.Dataset.range(5))
            >>> elements.load_state_dict({})
            Traceback (most recent call last):
            dsnb.errors.InvalidArgumentError: `state` is no reading position of dsnb: a dict with nothing
            ...
        """
        with self._lock:
            self._source.refuse_inherited()
            origin, place = self._known_origin().at(state)
            stage = None if place.ended else origin.build()
            origin.make_current()
            self._finish()
            self._run = iter(())
            self._origin, self._source = origin, self._source.at(place, stage)
            if not place.ended:
                self._source.loaded = deepcopy(state)
                self._finalizer = weakref.finalize(self, self._source.drop)

    def _known_origin(self) -> Origin:
        if self._origin is None:
            raise UnimplementedError("this iterator is of no dataset, so it has no reading position")
        return self._origin

    @checked()
    def close(self) -> None:
        """Stop reading and let go of threads and files; then `next` raises StopIteration. Harmless twice."""
        if self._source.inherited:
            return
        self._source.cancel()
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
        stage = self._source.stage
        return () if stage is None else tuple(reports(stage))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Source:
    """What an iterator reads from; outlives it just long enough to be closed."""

    def __init__(self, stage: Stage | None, most: int, outlet: Outlet) -> None:
        self.stage = stage
        self.begun = False
        """Whether the pipeline was started, and is where it should be."""
        self.loaded: dict[str, Any] | None = None
        """The position that it is to begin at, as it was loaded."""
        self._closed = False
        self._made = forks.generation()
        self._pace = Pace(most)
        self._outlet = outlet
        self._run: Iterator[Any] = iter(())
        self._waiting: list[Any] = []
        self._failure: Exception | None = None
        self._pulled = 0
        self._failed = False
        self.ended = False
        self._tracker = _Tracker()

    def keep(self, stage: Stage) -> None:
        """Take a pipeline in; where the iterator was closed meanwhile, it is closed too."""
        self.stage = stage
        if self._closed:
            stage.close()

    def at(self, place: Place, stage: Stage | None) -> _Source:
        """A source of the same kind of elements, at a place of a pass."""
        source = _Source(stage, self._pace.most, self._outlet.again())
        source._pulled, source._failed, source.ended = place.yielded, place.failed, place.ended
        return source

    @property
    def place(self) -> Place:
        """How far its reader is."""
        held = length_hint(self._run) + len(self._waiting) + (self._failure is not None)
        return Place(yielded=self._pulled - held, failed=self._failed, ended=self.ended)

    def refuse_inherited(self) -> None:
        """Refuse to work for a process that it came to by a fork.

        Raises:
            FailedPreconditionError: it did.
        """
        if self.inherited:
            raise forks.inherited("this iterator cannot be read here")

    @property
    def inherited(self) -> bool:
        """Whether it came to this process by a fork."""
        return forks.forked_since(self._made)

    def next_run(self) -> Iterator[Any]:
        """The next elements; an exhausted iterator at the end.

        Raises:
            FailedPreconditionError: the iterator came to this process by a fork.
        """
        self.refuse_inherited()
        self._tracker.run_is_over()
        self.forget_withdrawn()
        self._raise_failure()
        run, self._waiting = self._waiting, []
        if not run:
            began = perf_counter_ns()
            pulled = self._pull()
            self._pace.note(perf_counter_ns() - began)
            if not len(pulled):
                return iter(())
            elements, self._failure, self._waiting = self._outlet.convert(pulled)
        else:
            elements, self._failure, self._waiting = self._outlet.convert(run)
        if not elements:
            self._raise_failure()
        self._run = self._tracker.hand_out(elements)
        return self._run

    def forget_withdrawn(self) -> bool:
        """Drop what was pulled and belongs to other readers by now; whether there was any."""
        left, self._tracker.withdrawn = self._tracker.withdrawn, 0
        if left:
            self._pulled -= left + len(self._waiting) + (self._failure is not None)
            self._waiting, self._failure = [], None
        return left > 0

    def _pull(self) -> Run:
        assert self.stage is not None, "the pipeline was not built"
        self._tracker.begin(self.stage)
        try:
            run = self.stage.pull(min(self._pace.want, self._tracker.most))
        except Exception as error:
            if stands_in_place(error):
                self._pulled += 1
                self._failed = True
                self._tracker.erred()
            raise
        self._pulled += len(run)
        return run

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._tracker.erred()
            raise failure

    def cancel(self) -> None:
        """Wake the thread that reads, for good."""
        self._closed = True
        stage = self.stage
        if stage is not None:
            stage.cancel()

    def close(self) -> None:
        """Close the pipeline, telling it what was never yielded."""
        if self.inherited:  # its threads are the parent's, and so is what they wait for
            return
        self._closed = True
        self._tracker.run_is_over(length_hint(self._run))
        stage = self.stage
        if stage is not None:
            stage.close(length_hint(self._run) + len(self._waiting))

    def drop(self) -> None:
        """Close the pipeline of an iterator that was dropped, without holding up whoever dropped it.

        That may be a garbage collection: at any moment, in any thread, under any lock.
        """
        if self.stage is None:
            return
        if self.inherited:
            _left_alone.append(self)
            return
        self.cancel()
        if not closes_slowly(self.stage):
            self.close()
            return
        try:
            threading.Thread(target=self.close, name="dsnb-close", daemon=True).start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            self.close()


class _Tracker:
    """Tells the source of a pipeline which elements its user has consumed, where the source wants to know.

    A service gives what a reader did not consume to another one, so it has to know up to the last element. To tell of
    each one costs a few hundred nanoseconds. So that is done in loops that take longer than `_SLOW_NS` an element; a
    faster one tells of runs, which it is done with after `_UNTOLD_NS`.
    """

    def __init__(self) -> None:
        self._tracking: Tracking | None = None
        self._asked = False
        self._handed_out = 0
        self._since = 0
        self._each = True
        self.most = MOST
        """The longest run to pull."""
        self.withdrawn = 0
        """Elements of the last run that the user does not get: they belong to other readers."""

    def begin(self, stage: Stage) -> None:
        """Ask a pipeline whether it wants to know, before it gives anything."""
        if not self._asked:
            self._asked, self._tracking = True, stage.track()

    def hand_out(self, elements: list[Any]) -> Iterator[Any]:
        """An iterator over elements that the user is about to consume."""
        if self._tracking is None:
            return iter(elements)
        self._handed_out, self._since = len(elements), perf_counter_ns()
        return _Told(elements, self._tracking, self) if self._each else iter(elements)

    def run_is_over(self, left: int = 0) -> None:
        """Learn that the user has consumed what was handed out, but for the last `left`."""
        count, self._handed_out = self._handed_out - left, 0
        if self._tracking is None or count <= 0:
            return
        each_ns = (perf_counter_ns() - self._since) // count
        if not self._each:
            self._tracking.consumed(count, 0)
        self._each = each_ns >= _SLOW_NS
        self.most = MOST if self._each else max(1, min(MOST, _UNTOLD_NS // max(1, each_ns)))

    def erred(self) -> None:
        """Learn that the user was given an error in an element's place."""
        if self._tracking is not None:
            self._tracking.consumed(0, 1)


class _Told(Iterator[Any]):
    """Elements of which each is told of when it is handed out."""

    __slots__ = ("_elements", "_tracker", "_tracking")

    def __init__(self, elements: list[Any], tracking: Tracking, tracker: _Tracker) -> None:
        self._elements = iter(elements)
        self._tracking = tracking
        self._tracker = tracker

    def __next__(self) -> Any:
        if not self._tracking.valid():
            self._tracker.withdrawn = length_hint(self._elements)
            self._elements = iter(())
        element = next(self._elements)
        self._tracking.consumed(1, 0)
        return element

    def __length_hint__(self) -> int:
        return length_hint(self._elements)


_left_alone: list[_Source] = []
"""Iterators from before a fork that were dropped after it: they are kept, since taking them apart may hang."""

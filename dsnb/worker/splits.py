"""How a DYNAMIC task gets its splits: it requests runs of splits from the dispatcher, each about 0.5 s of its work.

If runs are short, a run is requested while the one before it is read, so that the task does not wait for the answer. It
belongs to the task like any other: if the task ends before it is read, it is given to another worker with the rest.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from dsnb.errors import DsnbError
from dsnb.wire.messages import SplitGrant, SplitRange, SplitsReply, SplitsRequest

_GRANT_S = 0.5  # a request takes up to 5 ms where processors are busy
_FIRST_WANT = 1  # a split may take seconds: a slow worker must not begin with several
_MOST_WANT = 1 << 20

Ask = Callable[[SplitsRequest], SplitsReply]


class DispatcherFeed:
    """The `SplitFeed` of one task, and the count of its finished splits.

    A run of splits that was read to its end is not finished: its elements may still be inside the pipeline or in a
    frame. `mark_produced` gives an upper bound of their positions, and `done` counts the run once they are consumed.

    Args:
        task_id: The task that the splits are for.
        providers: The number of split providers of its dataset.
        ask: Sends a request to the dispatcher.
        previous_runs: Runs that were assigned already, from a saved position or an earlier incarnation; read first.
        incarnation: The task's incarnation.
        clock: Returns the seconds of a monotonic clock, by which the size of runs is chosen.
        background: Where `ask` is called ahead; None to call it when a run is needed.
    """

    def __init__(
        self,
        task_id: str,
        providers: int,
        ask: Ask,
        previous_runs: Sequence[SplitRange] = (),
        incarnation: int = 1,
        clock: Callable[[], float] = time.monotonic,
        background: Executor | None = None,
    ) -> None:
        self._task_id = task_id
        self._incarnation = incarnation
        self._clock = clock
        self._ask = ask
        self._background = background
        self._ahead: tuple[SplitsRequest, Future[SplitsReply]] | None = None
        """The request for the run after the one that is being read."""
        self._previous_grants = _by_cursor(previous_runs)
        self._repetitions = [-1] * providers
        self._open: dict[int, _SplitRunIterator] = {}
        self._read_runs: deque[tuple[int, int]] = deque()
        """Runs that were read since the last `mark_produced`: provider and number of splits."""
        self._produced_runs: deque[tuple[int, int, int]] = deque()
        """Runs whose elements all have indices below a known position: position, provider and number of splits."""
        self._done = [0] * providers
        self._run_s, self._run_bytes, self._looks_ahead = _GRANT_S, 0, False
        self._bytes = self._splits_read = 0
        self.refused = False
        """Whether the dispatcher gives this task no more splits although there are some."""

    def limit_runs(self, seconds: float, nbytes: int) -> None:
        """Request runs of about so much work, and at most about so many bytes of elements, each ahead of its use.

        Only for sources of which every repetition is read to its end.
        """
        self._run_s, self._run_bytes, self._looks_ahead = seconds, nbytes, True

    def note_bytes(self, nbytes: int) -> None:
        """Note that elements of so many bytes were produced."""
        self._bytes += nbytes

    def bytes_of(self, splits: int) -> int:
        """About how many bytes the elements of so many splits have; 0 while that is unknown."""
        return self._bytes * splits // self._splits_read if self._splits_read else 0

    def _note_read(self, provider: int, count: int) -> None:
        self._read_runs.append((provider, count))
        self._splits_read += count

    def _run_length(self, splits_per_s: float) -> int:
        """How many splits to request, given the speed of the last run."""
        length = int(splits_per_s * self._run_s)
        if self._run_bytes and (nbytes := self.bytes_of(length)):
            length = min(length, self._run_bytes * length // nbytes)
        return min(max(1, length), _MOST_WANT)

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        """Begin a repetition of a provider.

        Args:
            provider: The provider's number.
            repetition: The repetition; None for the one after the last.

        Returns:
            Its runs of splits, as (first, end).
        """
        self._give_up(provider)  # the last repetition may not have been read to its end: the longer input of a zip
        if repetition is None:
            repetition = self._repetitions[provider] + 1
        self._repetitions[provider] = repetition

        def request(cursor: int, want: int) -> SplitsRequest:
            return SplitsRequest(
                task_id=self._task_id,
                incarnation=self._incarnation,
                provider=provider,
                repetition=repetition,
                cursor=cursor,
                want=want,
            )

        def ask(cursor: int, want: int) -> SplitGrant | None:
            had = self._previous_grants.pop((provider, repetition, cursor), None)
            if had is not None:
                return had
            wanted = request(cursor, want)
            reply = self._reply_ahead(wanted) or self._ask(wanted)
            self.refused = reply.refused
            return _granted(wanted, reply)

        def look_ahead(cursor: int, want: int, last_s: float) -> None:
            # Not if runs are long: other tasks may have nothing to do while this one holds two.
            if last_s < 2 * self._run_s and (provider, repetition, cursor) not in self._previous_grants:
                self._request_ahead(request(cursor, want))

        runs = self._open[provider] = _SplitRunIterator(
            ask,
            look_ahead,
            partial(self._note_read, provider),
            self._run_length,
            self._clock,
        )
        return runs

    def _request_ahead(self, request: SplitsRequest) -> None:
        if self._background is not None and self._looks_ahead:
            with suppress(RuntimeError, DsnbError):  # the worker is stopping, or can start no more threads
                self._ahead = request, self._background.submit(self._ask, request)

    def _reply_ahead(self, request: SplitsRequest) -> SplitsReply | None:
        """The reply to a request that was sent ahead; None if there was none, or it failed."""
        if self._ahead is not None and self._ahead[0] == replace(request, want=self._ahead[0].want):
            with suppress(DsnbError):
                return self._ahead[1].result()
        return None

    def repetition(self, provider: int) -> int:
        """The number of the repetition that was begun last; -1 before the first."""
        return self._repetitions[provider]

    def mark_produced(self, position: int) -> None:
        """Note that the elements of all splits read so far are among the task's first `position` elements.

        If elements wait inside the pipeline (shuffle, prefetch), the position is a little too low.
        """
        while self._read_runs:
            provider, count = self._read_runs.popleft()
            self._produced_runs.append((position, provider, count))

    def end(self, position: int) -> None:
        """Note that the pipeline has ended, and that the task has `position` elements."""
        for provider in self._open:
            self._give_up(provider)
        self.mark_produced(position)

    def done(self, consumed: int) -> tuple[int, ...]:
        """How many splits are finished, for each provider, if the task's first `consumed` elements are consumed.

        `consumed` must not decrease from call to call.
        """
        while self._produced_runs and self._produced_runs[0][0] <= consumed:
            _, provider, count = self._produced_runs.popleft()
            self._done[provider] += count
        return tuple(self._done)

    def grants(self) -> tuple[SplitGrant, ...]:
        """The last runs of each provider, for a dispatcher that lost the record of them."""
        read = [runs.last for runs in list(self._open.values())]
        if self._ahead is not None:
            request, reply = self._ahead
            if reply.done() and reply.exception() is None:
                read.append(_granted(request, reply.result()))
        return tuple(run for run in read if run is not None)

    def _give_up(self, provider: int) -> None:
        runs = self._open.get(provider)
        if runs is not None:
            runs.mark_read()


def _granted(request: SplitsRequest, reply: SplitsReply) -> SplitGrant | None:
    """The run that a request got; None if there is none left."""
    if reply.done:
        return None
    return SplitGrant(
        provider=request.provider,
        repetition=request.repetition,
        cursor=request.cursor,
        first=reply.first,
        end=reply.end,
    )


def _by_cursor(runs: Sequence[SplitRange]) -> dict[tuple[int, int, int], SplitGrant]:
    """Index runs by (provider, repetition, cursor); the cursor counts the earlier splits of that repetition."""
    cursors: Counter[tuple[int, int]] = Counter()
    found = {}
    for run in runs:
        key = run.provider, run.repetition
        grant = SplitGrant(
            provider=run.provider, repetition=run.repetition, cursor=cursors[key], first=run.first, end=run.end
        )
        found[*key, cursors[key]] = grant
        cursors[key] += run.end - run.first
    return found


class _SplitRunIterator(Iterator[tuple[int, int]]):
    """The runs of one repetition of one provider.

    Requests are idempotent: the same cursor gets the same answer. So after an error, the next `next` repeats the
    request. (A generator would be at its end after an error, and the rest of the splits would seem to be read.)

    Args:
        ask: Requests a run, given a cursor and the number of splits wanted; returns None at the end.
        look_ahead: Called when a run begins and the length of the next one is known, with what `ask` will get for that
            one, and how many seconds the last run took.
        read: Called with the number of splits of each run that was read.
        length: Returns the length of the next run, given how many splits of the last one were read in a second.
        clock: Returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[[int, int], SplitGrant | None],
        look_ahead: Callable[[int, int, float], None],
        read: Callable[[int], None],
        length: Callable[[float], int],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._ask = ask
        self._look_ahead = look_ahead
        self._has_read = read
        self._length = length
        self._cursor = 0
        self._want = _FIRST_WANT
        self._in_hand = 0
        self._began = 0.0
        self._ended = False
        self.last: SplitGrant | None = None
        """The last run that was returned."""

    def __next__(self) -> tuple[int, int]:
        last_s: float | None = None
        if self._in_hand:
            # Size the next run by the speed of this one, but at most fourfold: a single fast run may be an exception.
            took = max(1e-6, self._clock() - self._began)
            splits_per_s = self._in_hand / took
            self._cursor += self._in_hand
            self.mark_read()
            length, most = self._length(splits_per_s), 4 * self._want
            last_s = took if length <= most else None
            self._want = min(length, most)
        if self._ended:
            raise StopIteration
        run = self._ask(self._cursor, self._want)
        if run is None:
            self._ended = True
            raise StopIteration
        self.last = run
        self._in_hand = run.end - run.first
        self._began = self._clock()
        if last_s is not None:
            self._look_ahead(self._cursor + self._in_hand, self._want, last_s)
        return run.first, run.end

    def mark_read(self) -> None:
        """Count the current run as read, to its end or as far as it will ever be."""
        if self._in_hand:
            self._has_read(self._in_hand)
            self._in_hand = 0

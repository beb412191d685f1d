"""How a DYNAMIC task gets its splits: asked of the dispatcher in runs, sized to a fifth of a second of its work."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

from dsnb.wire.messages import SplitGrant, SplitRange, SplitsReply, SplitsRequest

_GRANT_S = 0.2
_FIRST_WANT = 4
_MOST_WANT = 1 << 20

Ask = Callable[[SplitsRequest], SplitsReply]


class DispatcherFeed:
    """A `SplitFeed` of one task.

    A run of splits that was read to its end is not done: its elements are still on their way through the pipeline and
    into a frame. `mark_produced` tells where they will be at the latest, and `done` counts the run when those are consumed.

    Args:
        task_id: The task that asks.
        incarnation: Which start of it this is.
        providers: The number of split providers of its dataset.
        ask: Makes the call.
        previous_runs: Runs that the task has already, from an earlier pass; they come first.
    """

    def __init__(
        self, task_id: str, providers: int, ask: Ask, previous_runs: Sequence[SplitRange] = (), incarnation: int = 1
    ) -> None:
        self._task_id = task_id
        self._incarnation = incarnation
        self._ask = ask
        self._previous_grants = _by_cursor(previous_runs)
        self._repetitions = [-1] * providers
        self._open: dict[int, _SplitRunIterator] = {}
        self._read_runs: deque[tuple[int, int]] = deque()
        """Runs that were read and not settled: provider and number of splits."""
        self._produced_runs: deque[tuple[int, int, int]] = deque()
        """Runs with the position that their elements lie before: position, provider and number of splits."""
        self._done = [0] * providers

    def open(self, provider: int, repetition: int | None = None) -> Iterator[tuple[int, int]]:
        """Begin the next repetition of a provider, or a certain one; its runs of splits until there are no more."""
        self._give_up(provider)  # what is left of the last one, as of the longer side of a zip
        if repetition is None:
            repetition = self._repetitions[provider] + 1
        self._repetitions[provider] = repetition

        def ask(cursor: int, want: int) -> SplitGrant | None:
            had = self._previous_grants.pop((provider, repetition, cursor), None)
            if had is not None:
                return had
            reply = self._ask(
                SplitsRequest(
                    task_id=self._task_id,
                    incarnation=self._incarnation,
                    provider=provider,
                    repetition=repetition,
                    cursor=cursor,
                    want=want,
                )
            )
            run = SplitGrant(provider=provider, repetition=repetition, cursor=cursor, first=reply.first, end=reply.end)
            return None if reply.done else run

        runs = self._open[provider] = _SplitRunIterator(ask, lambda count: self._read_runs.append((provider, count)))
        return runs

    def repetition(self, provider: int) -> int:
        """The repetition that was begun last."""
        return self._repetitions[provider]

    def mark_produced(self, position: int) -> None:
        """Learn that what was made of all splits read so far is among the task's first `position` elements.

        Where elements wait inside the pipeline (shuffle, prefetch) this is a little early.
        """
        while self._read_runs:
            provider, count = self._read_runs.popleft()
            self._produced_runs.append((position, provider, count))

    def end(self, position: int) -> None:
        """Learn that the pipeline has ended and the task has `position` elements."""
        for provider in self._open:
            self._give_up(provider)
        self.mark_produced(position)

    def done(self, consumed: int) -> tuple[int, ...]:
        """Splits that are done, for each provider, when the task's first `consumed` elements are consumed."""
        while self._produced_runs and self._produced_runs[0][0] <= consumed:
            _, provider, count = self._produced_runs.popleft()
            self._done[provider] += count
        return tuple(self._done)

    def grants(self) -> tuple[SplitGrant, ...]:
        """The last run of each provider, for a dispatcher that may have forgotten it."""
        return tuple(runs.last for runs in list(self._open.values()) if runs.last is not None)

    def _give_up(self, provider: int) -> None:
        runs = self._open.get(provider)
        if runs is not None:
            runs.mark_read()


def _by_cursor(runs: Sequence[SplitRange]) -> dict[tuple[int, int, int], SplitGrant]:
    """Runs by provider, repetition, and how many splits of that the task had before."""
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
    """One repetition of one provider.

    Asking again with the same cursor gets the same answer: a call that failed is simply made again by the next `next`.
    (A generator would be at its end after an error, and the rest of the splits would seem to be read.)

    Args:
        ask: Makes the call with a cursor and a number of splits wanted; None for an end.
        read: Learns of each run that was read, with its number of splits.
    """

    def __init__(self, ask: Callable[[int, int], SplitGrant | None], read: Callable[[int], None]) -> None:
        self._ask = ask
        self._has_read = read
        self._cursor = 0
        self._want = _FIRST_WANT
        self._in_hand = 0
        self._began = 0.0
        self._ended = False
        self.last: SplitGrant | None = None
        """The last run that was given."""

    def __next__(self) -> tuple[int, int]:
        if self._in_hand:
            splits_per_s = self._in_hand / max(1e-6, time.monotonic() - self._began)
            self._want = min(max(1, int(splits_per_s * _GRANT_S)), _MOST_WANT, 4 * self._want)
            self._cursor += self._in_hand
            self.mark_read()
        if self._ended:
            raise StopIteration
        run = self._ask(self._cursor, self._want)
        if run is None:
            self._ended = True
            raise StopIteration
        self.last = run
        self._in_hand = run.end - run.first
        self._began = time.monotonic()
        return run.first, run.end

    def mark_read(self) -> None:
        """Count the run in hand as read: to its end, or as far as anybody will."""
        if self._in_hand:
            self._has_read(self._in_hand)
            self._in_hand = 0

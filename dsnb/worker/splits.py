"""How a DYNAMIC task gets its splits: asked of the dispatcher in runs, sized to a fifth of a second of its work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from dsnb.wire.messages import SplitsReply, SplitsRequest

_GRANT_S = 0.2
_FIRST_WANT = 16
_MOST_WANT = 1 << 20

Ask = Callable[[SplitsRequest], SplitsReply]


class DispatcherFeed:
    """A `SplitFeed` of one task. Asking again with the same cursor gets the same answer, so a call may be repeated.

    Args:
        task_id: The task that asks.
        providers: The number of split providers of its dataset.
        ask: Makes the call.
        position: How many elements the task has produced so far.
    """

    def __init__(self, task_id: str, providers: int, ask: Ask, position: Callable[[], int]) -> None:
        self._task_id = task_id
        self._ask = ask
        self._position = position
        self._repetitions = [0] * providers
        self._marks: list[deque[tuple[int, int]]] = [deque() for _ in range(providers)]
        self._done = [0] * providers

    def open(self, provider: int) -> Iterator[tuple[int, int]]:
        """Begin the next repetition of a provider; its runs of splits until there are no more."""
        repetition = self._repetitions[provider]
        self._repetitions[provider] += 1
        return self._runs(provider, repetition)

    def _runs(self, provider: int, repetition: int) -> Iterator[tuple[int, int]]:
        cursor, want = 0, _FIRST_WANT
        while True:
            reply = self._ask(
                SplitsRequest(task_id=self._task_id, provider=provider, repetition=repetition, cursor=cursor, want=want)
            )
            if reply.done:
                return
            count = reply.end - reply.first
            began = time.monotonic()
            yield reply.first, reply.end
            pace = count / max(1e-6, time.monotonic() - began)
            want = min(max(1, int(pace * _GRANT_S)), _MOST_WANT, 4 * want)
            cursor += count
            self._marks[provider].append((self._position(), count))

    def done(self, consumed: int) -> tuple[int, ...]:
        """Splits that are done, for each provider, when the task's first `consumed` elements are.

        A split is done when its source was read past it and all elements made until then were consumed. Where elements
        wait inside the pipeline (shuffle, prefetch) this is a little early.
        """
        for provider, marks in enumerate(self._marks):
            while marks and marks[0][0] <= consumed:
                self._done[provider] += marks.popleft()[1]
        return tuple(self._done)

"""Chooses how many threads call a function under `AUTOTUNE`, by measuring; the result may be that threads do not help.

Threads of one process help if the function waits or releases the GIL, and cost time otherwise: with less than some 100
microseconds of NumPy for each call, two threads are slower than one. So a function is first called serially. If threads
look promising, they are started; their time for one element, compared with the serial time, shows whether they help,
independently of the reader's speed. It cannot show whether they only take the processors from someone else, so workers
of one host each begin with their share of them.

A trial is short, and what else runs on the machine meanwhile can make it go wrong. If threads did not help, they are
tried again later, less and less often: a second wrong result in a row is rare, and a trial costs little. If they
helped, they are kept: threads that do not help cost less than threads that are missing.
"""

from __future__ import annotations

from math import ceil
from typing import Final

import msgspec

_TRIAL_NS: Final = 20_000_000
_LONG_TRIAL_NS: Final = 5 * _TRIAL_NS
_LEAST_CALLS: Final = 4
_MIN_THREADED_CALL_NS: Final = 100_000
_WAITING_CPU_SHARE: Final = 0.5
_TOLERATED_IDLE_CPUS: Final = 0.25
"""A function that only computes does not seem to do so all the time, because other threads interrupt it."""
_MOST_THREADS: Final = 16
_MIN_SPEEDUP: Final = 1.15
_FIRST_PAUSE_NS: Final = 1_000_000_000


class SerialTrial(msgspec.Struct):
    """The measured cost of calling the function serially.

    Attributes:
        cpus: How many processors the threads may keep busy.
        calls: Number of calls.
        wall_ns: Their elapsed time.
        cpu_ns: The processor time of the calling thread within it.
    """

    cpus: float
    calls: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0

    @property
    def is_conclusive(self) -> bool:
        """Whether enough was measured to decide: waiting shows at once, but what computes may only seem to wait."""
        time_ns = _TRIAL_NS if self._busy < _WAITING_CPU_SHARE else _LONG_TRIAL_NS
        return self.wall_ns >= time_ns and self.calls >= _LEAST_CALLS

    @property
    def _busy(self) -> float:
        """Which part of the time a processor was busy with the function."""
        return min(1.0, self.cpu_ns / max(1, self.wall_ns))

    @property
    def call_ns(self) -> float:
        """Mean elapsed time of one call, in nanoseconds."""
        return self.wall_ns / max(1, self.calls)

    @property
    def threads(self) -> int:
        """How many threads to try: as many as would keep the processors busy; 1 if threads would not pay."""
        if self.call_ns < _MIN_THREADED_CALL_NS:
            return 1
        return max(1, min(_MOST_THREADS, ceil(self.cpus / max(self._busy, 0.01) - _TOLERATED_IDLE_CPUS)))

    def gained(self, threads: int, calls: int, work_ns: int) -> bool | None:
        """Whether threads are faster, given `calls` calls in `work_ns` summed over them; None while too few.

        That they are not is only said after a longer time: at its beginning a pipeline often competes for processors
        with what starts at the same time.
        """
        if work_ns < threads * _TRIAL_NS or calls < threads * _LEAST_CALLS:
            return None
        faster = threads * self.call_ns * calls / work_ns >= _MIN_SPEEDUP
        return faster or (False if work_ns >= threads * _LONG_TRIAL_NS else None)


class TrialPauses(msgspec.Struct):
    """When threads that did not help are tried again: after one second, then after two more, four more, and so on.

    Attributes:
        next_ns: The time of the next trial, on the clock of its callers; None if there is none.
        pause_ns: The pause before the trial after that.

    Example:
        >>> pauses = TrialPauses()
        >>> pauses.begin(now_ns=0)
        >>> pauses.over(now_ns=999_999_999), pauses.over(now_ns=1_000_000_000)
        (False, True)
        >>> pauses.begin(now_ns=1_000_000_000)
        >>> pauses.over(now_ns=2_999_999_999), pauses.over(now_ns=3_000_000_000)
        (False, True)
    """

    next_ns: int | None = None
    pause_ns: int = _FIRST_PAUSE_NS

    def begin(self, now_ns: int) -> None:
        """Begin a pause, twice as long as the one before."""
        self.next_ns, self.pause_ns = now_ns + self.pause_ns, 2 * self.pause_ns

    def over(self, now_ns: int) -> bool:
        """Whether a pause has begun and ended."""
        return self.next_ns is not None and now_ns >= self.next_ns

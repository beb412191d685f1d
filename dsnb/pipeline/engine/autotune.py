"""Chooses how many threads call a function under `AUTOTUNE`, by measuring; the result may be that threads do not help.

Threads of one process help if the function waits or releases the GIL, and cost time otherwise: with less than some 100
microseconds of NumPy for each call, two threads are slower than one. So a function is first called serially. If threads
look promising, they are started; their time for one element, compared with the serial time, shows whether they help,
independently of the reader's speed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dsnb.processes import usable_cpus

_TRIAL_NS: Final = 20_000_000
_LEAST_CALLS: Final = 4
_MIN_THREADED_CALL_NS: Final = 100_000
_WAITING_CPU_SHARE: Final = 0.5
_MOST_THREADS: Final = 16
_MIN_SPEEDUP: Final = 1.15


class SerialTrial(msgspec.Struct, kw_only=True):
    """The measured cost of calling the function serially.

    Attributes:
        calls: Number of calls.
        wall_ns: Their elapsed time.
        cpu_ns: The processor time of the calling thread within it.
    """

    calls: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0

    @property
    def is_conclusive(self) -> bool:
        """Whether enough was measured to decide."""
        return self.wall_ns >= _TRIAL_NS and self.calls >= _LEAST_CALLS

    @property
    def call_ns(self) -> float:
        """Mean elapsed time of one call, in nanoseconds."""
        return self.wall_ns / max(1, self.calls)

    def threads(self, cpus: int | None = None) -> int:
        """Return how many threads to try; 1 if threads would not pay."""
        if self.call_ns < _MIN_THREADED_CALL_NS:
            return 1
        if self.cpu_ns < _WAITING_CPU_SHARE * self.wall_ns:
            # The function mostly waits: enough threads for one of them to compute at any time.
            return min(_MOST_THREADS, max(2, round(self.wall_ns / max(1, self.cpu_ns))))
        return min(_MOST_THREADS, cpus or usable_cpus())

    def gained(self, threads: int, calls: int, work_ns: int) -> bool | None:
        """Whether threads are faster, given `calls` calls in `work_ns` summed over them; None while too few."""
        if work_ns < threads * _TRIAL_NS or calls < threads * _LEAST_CALLS:
            return None
        return threads * self.call_ns * calls / work_ns >= _MIN_SPEEDUP

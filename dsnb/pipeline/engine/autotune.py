"""How many threads a function is worth; with `AUTOTUNE` that is measured, and may be none.

Threads of one interpreter gain where the function waits or lets go of the interpreter, and lose where it does neither:
for less than some 100 microseconds of NumPy two threads are slower than one. So a function is first called serially.
If it is worth a trial, threads are started; their time for one element against the serial one tells whether they help,
whatever the reader's own speed.
"""

from __future__ import annotations

from typing import Final

from dsnb.dataclass import dataclass
from dsnb.processes import usable_cpus

_TRIAL_NS: Final = 20_000_000
_LEAST_CALLS: Final = 4
_MIN_THREADED_CALL_NS: Final = 100_000
_WAITING_CPU_SHARE: Final = 0.5
_MOST_THREADS: Final = 16
_MIN_SPEEDUP: Final = 1.15


@dataclass(slots=True, kw_only=True)
class SerialTrial:
    """What calling the function serially has cost so far.

    Attributes:
        calls: Number of calls.
        wall_ns: The time that they took.
        cpu_ns: The time of it that the thread was computing.
    """

    calls: int = 0
    wall_ns: int = 0
    cpu_ns: int = 0

    @property
    def is_conclusive(self) -> bool:
        """Whether the trial can be judged."""
        return self.wall_ns >= _TRIAL_NS and self.calls >= _LEAST_CALLS

    @property
    def call_ns(self) -> float:
        """What one call takes."""
        return self.wall_ns / max(1, self.calls)

    def threads(self, cpus: int | None = None) -> int:
        """How many threads to try; 1 where none would pay."""
        if self.call_ns < _MIN_THREADED_CALL_NS:
            return 1
        if self.cpu_ns < _WAITING_CPU_SHARE * self.wall_ns:
            return min(_MOST_THREADS, max(2, round(self.wall_ns / max(1, self.cpu_ns))))
        return min(_MOST_THREADS, cpus or usable_cpus())

    def gained(self, threads: int, calls: int, work_ns: int) -> bool | None:
        """Whether threads that made `calls` calls in `work_ns`, summed over them, are faster; None while too few."""
        if work_ns < threads * _TRIAL_NS or calls < threads * _LEAST_CALLS:
            return None
        return threads * self.call_ns * calls / work_ns >= _MIN_SPEEDUP

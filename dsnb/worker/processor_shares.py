"""Divides the processors of a worker fairly among its jobs, if they want more than there are.

Theory of operation. The threads of all jobs of a worker compete for its processors and for the GIL, so without help a
job gets what its number of threads gets: with eight threads beside a job with one, eight ninths. Shares are max-min
fair instead: a job that wants less than an equal part gets what it wants, and the others divide the rest by their
weights.

A thread wants what it would use if it never waited for a processor or for the GIL. If a job uses more than its share
while another one gets less than its own, it gets a limit. Its producer is then held back between elements, so that it
makes as many per second as the limit pays for; operations that run in parallel stop when their buffers are full. A
limit leaves to the others what their threads want of the processors. How long threads wait for the GIL says less about
what they want of it, so there a limit falls by steps, and only as long as the others use more and more.

What is divided is what all jobs together used lately, and the processors that were idle, unless the GIL keeps these
idle. So limits rise until they hold nothing back, and then go.

Pure: no clock, no threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

MIN_INTERVAL_S = 0.2
"""The shortest interval between two updates: figures of shorter ones are too noisy."""
_SETTLES_S = 0.5
"""Time constant of the smoothing."""
_NEGLIGIBLE = 0.02
"""Processors; a job that uses fewer competes with nobody."""
_TOLERANCE = 0.1
"""By which part a job may get more or less than its share."""
_STEP = 2.0
"""By which factor what a job uses may grow until the next update."""
_GROWTH = 1.05
"""By which factor what all jobs use may grow until the next update, where limits hold some back."""
_REMEMBERED_S = 3.0
"""Time constant of what must not change with a single interval."""
_MOSTLY = 0.5
"""The share of the last seconds in which the GIL must have seemed to limit the jobs."""
_HELD_BACK = 0.02
"""A job counts as held back if its limit paused it for more than this share of an interval."""
_LEAST_WITH_GIL = 0.8
"""Processors; below this, nobody waits long for the GIL, since the thread that holds it keeps a processor busy."""
_MOST_WITH_GIL = 1.15
"""Processors; above this, it is not the GIL that limits the jobs: only one thread at a time runs with it."""
_LONG_GIL_WAIT = 0.5
"""The GIL limits the jobs if threads wait for it longer than this, relative to how long they may then keep it."""
_LEAST_LIMIT = 0.02
"""Processors; the least limit, so that no job stops."""
_KEPT_ELEMENTS = 0.8
"""How much of the past counts for the cost of an element, after each interval with elements."""


class JobUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one job did in an interval.

    Attributes:
        weight: The argument `weight` of `distribute`.
        ran_ns: How long its threads ran.
        wanted_ns: How long they would have run if they had never waited for a processor.
        held_back_ns: How long its limit held its producers back.
        elements: How many elements were made.
    """

    weight: float = 1.0
    ran_ns: int = 0
    wanted_ns: int = 0
    held_back_ns: int = 0
    elements: int = 0


class ProcessorShares:
    """Finds how many elements per second each job may make.

    Example:
        >>> shares = ProcessorShares()
        >>> wide = JobUse(ran_ns=1_800_000_000, wanted_ns=8_000_000_000, elements=180)
        >>> narrow = JobUse(ran_ns=200_000_000, wanted_ns=1_000_000_000, elements=20)
        >>> rates = shares.update({"wide": wide, "narrow": narrow}, seconds=0.5)
        >>> rates["narrow"] is None, round(rates["wide"])
        (True, 200)
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _JobAverage] = {}
        self._gil_wait = self._idle = 0.0
        self._by_gil = 0.0
        """In which part of the last seconds the GIL seemed to limit the jobs."""
        self._used_with_gil = 0.0
        """How many processors all jobs together used lately. It falls slowly, or limits would make each other lower."""

    def update(
        self, uses: Mapping[str, JobUse], seconds: float, idle: float = 0.0, gil_wait: float = 0.0
    ) -> dict[str, float | None]:
        """Take an interval into account.

        Args:
            uses: What each job did.
            seconds: The length of the interval.
            idle: How many processors were idle.
            gil_wait: How long a thread waited for the GIL, relative to how long it may then keep it.

        Returns:
            For each job, how many elements per second it may make; None for any number.
        """
        self._jobs = {name: self._jobs.get(name) or _JobAverage() for name in uses}
        self._gil_wait += _weight(seconds) * (gil_wait - self._gil_wait)
        self._idle += _weight(seconds) * (idle - self._idle)
        for name, use in uses.items():
            self._jobs[name].add(use, seconds)
        limits = self._limits(seconds)
        for name, job in self._jobs.items():
            job.limit = limits.get(name)
        return {name: job.elements_per_s for name, job in self._jobs.items()}

    def _limits(self, seconds: float) -> dict[str, float]:
        """The limits of jobs that need one, in processors."""
        jobs = {name: job for name, job in self._jobs.items() if job.used > _NEGLIGIBLE or job.held_back}
        if len(jobs) < 2:
            return {}
        used = sum(job.used for job in jobs.values())
        gil_wait = self._gil_wait if used > _LEAST_WITH_GIL else 0.0
        capacity = self._capacity(used, seconds, by_gil=used < _MOST_WITH_GIL and gil_wait > _LONG_GIL_WAIT)
        weights = [job.weight for job in jobs.values()]
        wants = [job.wants(gil_wait) for job in jobs.values()]
        fair = dict(zip(jobs, max_min_shares(capacity, wants, weights), strict=True))
        short = {name for name, job in jobs.items() if job.used < (1 - _TOLERANCE) * fair[name] and not job.held_back}
        over = {name for name, job in jobs.items() if job.used > (1 + _TOLERANCE) * fair[name]}
        limited = {name for name, job in jobs.items() if job.held_back} | (over if short else set())
        # How long a thread waits for the GIL says little about what it would do with it, so go there by steps.
        next_wants = [
            want if name in limited else min(want, max(job.wants(0.0), _STEP * job.used + _NEGLIGIBLE))
            for (name, job), want in zip(jobs.items(), wants, strict=True)
        ]
        room = capacity if short else capacity * _GROWTH
        limits = dict(zip(jobs, max_min_shares(room, next_wants, weights), strict=True))
        return {name: max(_LEAST_LIMIT, limits[name]) for name in limited}

    def _capacity(self, used: float, seconds: float, *, by_gil: bool) -> float:
        """How many processors all jobs together can use. Where the GIL limits them, idle processors are of no use."""
        self._by_gil += _weight(seconds, _REMEMBERED_S) * (by_gil - self._by_gil)
        falls = used < self._used_with_gil
        self._used_with_gil += _weight(seconds, _REMEMBERED_S if falls else _SETTLES_S) * (used - self._used_with_gil)
        return self._used_with_gil if self._by_gil > _MOSTLY else used + self._idle


class _JobAverage:
    """The smoothed figures of one job, and its limit."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.used = 0.0
        self.limit: float | None = None
        self.held_back = False
        self._wanted = 0.0
        self._ran_ns = self._elements = 0.0
        self._fresh = True

    def add(self, use: JobUse, seconds: float) -> None:
        weight = 1.0 if self._fresh else _weight(seconds)
        self._fresh = False
        self.weight = use.weight
        self.used += weight * (use.ran_ns / 1e9 / seconds - self.used)
        self._wanted += weight * (use.wanted_ns / 1e9 / seconds - self._wanted)
        self.held_back = self.limit is not None and use.held_back_ns / 1e9 > _HELD_BACK * seconds
        kept = _KEPT_ELEMENTS if use.elements else 1.0
        self._ran_ns = kept * self._ran_ns + use.ran_ns
        self._elements = kept * self._elements + use.elements

    def wants(self, gil_wait: float) -> float:
        """How many processors it wants, as far as is known."""
        return math.inf if self.held_back else max(self.used, self._wanted) * (1 + gil_wait)

    @property
    def elements_per_s(self) -> float | None:
        """How many elements its limit pays for; None without a limit, or before its first element."""
        if self.limit is None or not self._elements or not self._ran_ns:
            return None
        return self.limit * self._elements / (self._ran_ns / 1e9)


def _weight(seconds: float, settles_s: float = _SETTLES_S) -> float:
    """The weight of an interval in an average."""
    return 1.0 - math.exp(-seconds / settles_s)


def max_min_shares(total: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Divide an amount: who wants less than its part gets that, and the others divide the rest by their weights.

    Example:
        >>> max_min_shares(2.0, [math.inf, 0.4, math.inf], [1.0, 1.0, 3.0])
        [0.4, 0.4, 1.2000000000000002]
    """
    shares, left = [0.0] * len(wants), total
    order = sorted(range(len(wants)), key=lambda at: wants[at] / weights[at])
    for place, at in enumerate(order):
        # Summed anew: a very small weight would be lost in the difference of sums, and leave zero to divide by.
        part = weights[at] / sum(weights[other] for other in order[place:])
        shares[at] = min(wants[at], left * part)
        left = max(0.0, left - shares[at])
    return shares


_CREDIT_S = 0.1
"""For how long elements that were not made in time may be made later."""
_RUN_S = 0.02
"""The most elements to make at once, in seconds of the pace."""


class JobPace:
    """Spaces the elements of one job in time, if they have a limit; all of its tasks share it. Times are in seconds.

    One thread changes the pace while others obey it, so each method reads `per_s` once.

    Attributes:
        per_s: How many elements may be made in a second; None for any number.

    Example:
        >>> pace = JobPace()
        >>> pace.change(10.0, now=100.0)
        >>> pace.note(3, now=100.0)
        >>> round(pace.pause(now=100.0), 3), round(pace.pause(now=100.15), 3), round(pace.pause(now=100.25), 3)
        (0.2, 0.05, 0.0)
    """

    def __init__(self) -> None:
        self.per_s: float | None = None
        self._due = 0.0
        """When the next element may be made."""

    def change(self, per_s: float | None, now: float) -> None:
        """Set how many elements may be made in a second. A higher pace also shortens the present pause."""
        if self.per_s is not None and per_s is not None and per_s > self.per_s:
            self._due = now + (self._due - now) * self.per_s / per_s
        if per_s is None:
            self._due = 0.0
        self.per_s = per_s

    def note(self, elements: int, now: float) -> None:
        """Note that elements were made."""
        per_s = self.per_s
        if per_s is not None:
            self._due = max(self._due, now - _CREDIT_S) + elements / per_s

    def pause(self, now: float) -> float:
        """For how long to make no element; 0 for not at all."""
        return 0.0 if self.per_s is None else max(0.0, self._due - now)

    def run_length(self, most: int) -> int:
        """How many elements to make at once, at most `most`: many at once would be followed by a long pause."""
        per_s = self.per_s
        return most if per_s is None else max(1, min(most, int(per_s * _RUN_S)))

"""Reports of a task: its pipeline's operations, its trainers or consumers, and where it can be resumed."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec.structs import replace

from dsnb.pipeline.engine.resume_point import ResumePoint, needs_released_splits, to_text
from dsnb.pipeline.engine.stage import Stage, repeated_seconds, reports
from dsnb.wire.messages import FinishedSplits, ResumePosition, StageReport, TrainerReport
from dsnb.worker.element_log import ElementLog

_SETTLES_S = 2.0
"""Time constant of the smoothing: after this long, a rate shows about two thirds of a change."""
_NOW_S = 0.01


class RateMeter:
    """Rates of counters that only grow, smoothed over a few seconds.

    Example:
        >>> rates = RateMeter()
        >>> for second in range(60):
        ...     rates.update("a", 10 * second, now=float(second))
        >>> round(rates.rate("a"), 3)
        10.0
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def update(self, name: str, count: int, now: float) -> None:
        """Record a counter's value. An update within 50 ms of the last one is ignored.

        Args:
            name: The counter.
            count: Its value.
            now: Seconds of a monotonic clock.
        """
        at, before = self._last.get(name, (now, count))
        gone = now - at
        if gone < 0.05 and name in self._last:
            return
        self._last[name] = (now, count)
        if gone > 0:
            weight = 1.0 - math.exp(-gone / _SETTLES_S) if name in self._rates else 1.0
            self._rates[name] = (1 - weight) * self._rates.get(name, 0.0) + weight * (count - before) / gone

    def rate(self, name: str) -> float:
        """A counter's growth per second; 0 before its second update."""
        return self._rates.get(name, 0.0)


def seconds_until_eviction(margin: float, drift: float) -> float:
    """Seconds until a trainer that falls back reaches the end of the window; 0 if it does not fall back.

    Args:
        margin: How many elements it can fall back before it loses some.
        drift: How many elements per second it falls back.

    Example:
        >>> seconds_until_eviction(30, 10.0), seconds_until_eviction(-5, 10.0), seconds_until_eviction(30, 0.0)
        (3.0, 0.01, 0.0)
    """
    return max(_NOW_S, margin / drift) if drift > 0 else 0.0


_PRODUCER = "\0head"
"""The counter name of the producer in a `RateMeter`; no trainer can have this name."""


def update_rates(rates: RateMeter, log: ElementLog, now: float) -> None:
    """Record how far the producer and all trainers or consumers are now."""
    rates.update(_PRODUCER, log.head, now)
    for name, consumed in log.consumed_counts().items():
        rates.update(name, consumed, now)


def trainer_reports(log: ElementLog, rates: RateMeter, flight_ns: Callable[[str], int]) -> tuple[TrainerReport, ...]:
    """Reports of all trainers, or of the consumers of a coordinated read.

    Args:
        log: The task's log.
        rates: The rates of the producer and the trainers.
        flight_ns: Returns for how long, by a trainer's name, elements were sent to it and not consumed.
    """
    return tuple(
        replace(
            log.trainer_report(name),
            rate=rates.rate(name),
            eviction_in_s=_eviction_in_s(log, rates, name),
            in_flight_ns=flight_ns(name),
        )
        for name in log.consumed_counts()
    )


def stage_reports(stage: Stage | None) -> tuple[StageReport, ...]:
    """Reports of the pipeline's operations; none before the pipeline has started."""
    return tuple(reports(stage)) if stage is not None else ()


class ResumeReporter:
    """Finds the position from which another worker can continue a task. Positions never go back."""

    def __init__(self) -> None:
        self._last: tuple[ResumePoint, ResumePosition] | None = None

    def report(self, index: int, stage: Stage, elements_before: int) -> ResumePosition:
        """The resume position: at the first element that a trainer still needs, or a little before.

        Args:
            index: The first element that a trainer still needs.
            stage: The task's pipeline.
            elements_before: How many elements the pipeline made before that one, since its stage was built.
        """
        point = stage.resume_point(elements_before)
        if self._last is not None and needs_released_splits(point, self._last[0]):
            return self._last[1]  # this point needs splits that the dispatcher has already forgotten
        splits = tuple(
            FinishedSplits(provider=source.provider, repetition=source.repetition, count=source.finished_splits)
            for source in point.sources()
        )
        repeated_ms = int(1000 * repeated_seconds(stage, point))
        resume = ResumePosition(index=index, pipeline_position=to_text(point), splits=splits, repeated_ms=repeated_ms)
        self._last = point, resume
        return resume


def _eviction_in_s(log: ElementLog, rates: RateMeter, name: str) -> float:
    """Estimated seconds until a trainer that skips loses elements, at the present rates; 0 if it will not."""
    margin = log.elements_before_eviction(name)
    # The producer runs ahead of the fastest trainer in bursts, but in the long run it is not faster.
    pace = min(rates.rate(_PRODUCER), max(map(rates.rate, log.consumed_counts()), default=0.0))
    return 0.0 if margin is None else seconds_until_eviction(margin, pace - rates.rate(name))

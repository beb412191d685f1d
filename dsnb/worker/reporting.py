"""What a task tells of its pipeline and of those who read it: each trainer, or consumer of a coordinated read."""

from __future__ import annotations

from collections.abc import Callable

from dsnb.pipeline.engine.resume_point import ResumePoint, needs_released_splits, to_text
from dsnb.pipeline.engine.stage import Stage, repeated_seconds, reports
from dsnb.wire.messages import FinishedSplits, IndexRange, ResumePosition, StageReport, TrainerReport
from dsnb.worker.pace import RateMeter, seconds_until_eviction
from dsnb.worker.round_log import RoundLog
from dsnb.worker.shared_log import SharedLog

_PRODUCER = "\0head"
"""The name of the pipeline's own pace, which no trainer has."""


def update_rates(rates: RateMeter, log: SharedLog | RoundLog, now: float) -> None:
    """Learn how far the pipeline and its readers are now."""
    rates.update(_PRODUCER, log.head, now)
    for name, state in (log.trainers if isinstance(log, SharedLog) else log.consumer_states).items():
        rates.update(name, state.consumed, now)


def trainer_reports(
    log: SharedLog | RoundLog, rates: RateMeter, flight_ns: Callable[[str], int]
) -> tuple[TrainerReport, ...]:
    """One for each place in a task's sequence.

    Args:
        log: The sequence.
        rates: How fast everybody is.
        flight_ns: The time that something had been sent to a trainer that it had not consumed.
    """
    if isinstance(log, SharedLog):
        return tuple(_trainer_report(log, rates, name, flight_ns(name)) for name in log.trainers)
    return tuple(
        TrainerReport(
            trainer_id=name,
            clients=int(bool(consumer.client)),
            consumed=consumer.consumed,
            offset=log.offset(name),
            lag_bytes=consumer.unconsumed_bytes,
            rate=rates.rate(name),
            in_flight_ns=flight_ns(name),
        )
        for name, consumer in log.consumer_states.items()
    )


def stage_reports(stage: Stage | None) -> tuple[StageReport, ...]:
    """One for each operation of a task's pipeline, if it has begun."""
    return tuple(
        StageReport(
            name=r.name,
            depth=r.depth,
            elements=r.elements,
            busy_ns=r.busy_ns,
            wait_ns=r.wait_ns,
            buffered=r.buffered,
            capacity=r.capacity,
            threads=r.threads,
        )
        for r in (reports(stage) if stage is not None else ())
    )


class ResumeReporter:
    """Tells where another worker can take a task over; never a place before one that was told."""

    def __init__(self) -> None:
        self._last: tuple[ResumePoint, ResumePosition] | None = None

    def report(self, log: SharedLog, stage: Stage, elements_before: int) -> ResumePosition:
        """At the first element that some trainer still needs, or a little before; one that is away may come back.

        Args:
            log: The task's elements.
            stage: Its pipeline.
            elements_before: How many elements of the pipeline's came before the window's first one, since the stage was built.
        """
        index = min(map(log.offset, log.trainers), default=log.head)
        point = stage.resume_point(index - log.first + elements_before)
        if self._last is not None and needs_released_splits(point, self._last[0]):
            return self._last[1]  # the dispatcher has forgotten splits that this point needs
        splits = tuple(
            FinishedSplits(provider=source.provider, repetition=source.repetition, count=source.finished_splits)
            for source in point.sources()
        )
        repeated_ms = int(1000 * repeated_seconds(stage, point))
        resume = ResumePosition(index=index, pipeline_position=to_text(point), splits=splits, repeated_ms=repeated_ms)
        self._last = point, resume
        return resume


def _trainer_report(log: SharedLog, rates: RateMeter, name: str, flight_ns: int) -> TrainerReport:
    trainer, offset = log.trainers[name], log.offset(name)
    return TrainerReport(
        trainer_id=name,
        clients=len(trainer.readers),
        consumed=trainer.consumed,
        offset=offset,
        hits=trainer.hits,
        misses=trainer.misses,
        skipped=trainer.skipped,
        spilled=trainer.spilled,
        lag_bytes=log.frames.bytes_between(offset, log.head),
        on_lag=(trainer.cache_policy.on_lag or "skip") if log.keep else "",
        rate=rates.rate(name),
        eviction_in_s=_eviction_in_s(log, rates, name),
        in_flight_ns=flight_ns,
        consumed_beyond=tuple(
            IndexRange(first=first, end=end)
            for first, end in trainer.consumed_ranges.within(offset, trainer.consumed_ranges.end)
        ),
    )


def _eviction_in_s(log: SharedLog, rates: RateMeter, name: str) -> float:
    """Seconds until a trainer that skips misses something, at the present pace."""
    if not log.keep or log.finished or log.trainers[name].needs_retention or log.head == log.tail:
        return 0.0
    free = (log.capacity - log.nbytes) * (log.head - log.tail) / max(1, log.nbytes)
    drift = rates.rate(_PRODUCER) - rates.rate(name)
    return seconds_until_eviction(log.offset(name) - log.tail + free, drift)

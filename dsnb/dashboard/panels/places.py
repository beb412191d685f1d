"""Where each trainer stands in the cross-trainer cache, as numbers and words: what `strip` draws.

Each worker's task has a window of its own, so a trainer stands somewhere in each; shown is one task, or each trainer at
the place where it has least room left. The scale fits the slowest trainer and steps in round numbers, or every frame
would make the picture breathe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsnb.dashboard.rates import TrainerRates, trainer_rates
from dsnb.dashboard.view import WORST, View, colour
from dsnb.dashboard.words import by_number, count, duration
from dsnb.monitor.snapshot import JobStatus, PlaceStatus, TaskStatus, TrainerStatus

CLOSE = 0.8
"""From four fifths of the way to the cliff a trainer should be looked at."""

_SOON_S = 60.0
_LEAST_SCALE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One trainer on the strip.

    Attributes:
        at: How far behind the newest it is drawn: its lag, but within the window while nothing is lost.
        cliff: Lag at which elements of its task leave the window; None while that is not known.
        level: "good", "warn" (close to the cliff) or "bad" (losing data).
        words: Where it stands, in words.
    """

    trainer_id: str
    colour: str
    task_id: str
    worker: str
    lag: int
    at: int
    offset: int
    cliff: int | None
    level: str
    words: str

    @property
    def buffered(self) -> bool:
        """Whether it reads elements that have left the window, but lie in its own buffer already."""
        return self.level != "bad" and self.cliff is not None and self.lag > self.cliff


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """All lanes and the scale they share: from 0 (newest, right) to `scale` elements behind (left)."""

    scale: int
    lanes: tuple[Lane, ...]

    @property
    def cliff(self) -> int | None:
        """The farthest cliff of all lanes."""
        return max((lane.cliff for lane in self.lanes if lane.cliff is not None), default=None)


def layout(view: View, job: JobStatus) -> Strip:
    """Where every trainer of a job stands."""
    tasks = {task.task_id: task for task in job.tasks}
    lanes = tuple(lane for t in job.trainers if (lane := _lane(view, job, t, tasks)) is not None)
    cliff = max((lane.cliff for lane in lanes if lane.cliff is not None), default=0)
    return Strip(scale=_scale(cliff, _furthest(view, job)), lanes=lanes)


def cliff_of(task: TaskStatus | None) -> int | None:
    """The lag at which elements of a task leave memory, from what an element weighs in its window."""
    held = task.head - task.tail if task else 0
    if task is None or not held:
        return None
    if not task.window_bytes or not task.capacity_bytes:
        return held if task.evicted else None
    return max(held, round(held * task.capacity_bytes / task.window_bytes))


def round_up(number: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50 and so on."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= number:
                return step * factor
        step *= 10


def newest_tasks(job: JobStatus) -> list[TaskStatus]:
    """One task of each worker, that of its newest iteration."""
    newest = {task.worker: task for task in sorted(job.tasks, key=lambda task: task.iteration)}
    return [newest[worker] for worker in sorted(newest, key=by_number)]


def _lane(view: View, job: JobStatus, trainer: TrainerStatus, tasks: Mapping[str, TaskStatus]) -> Lane | None:
    place = _place(trainer.places, tasks, view.choice.task)
    if place is None:
        return None
    cliff = cliff_of(tasks.get(place.task_id))
    rates = trainer_rates(view.job_rates, trainer.trainer_id)
    losing = rates.skipped > 0
    return Lane(
        trainer_id=trainer.trainer_id,
        colour=colour(job, trainer.trainer_id),
        task_id=place.task_id,
        worker=place.worker,
        lag=place.lag,
        at=_within(place.lag, cliff),
        offset=place.offset,
        cliff=cliff,
        level="bad" if losing else "warn" if _is_close(place.lag, cliff) else "good",
        words=f"LOSING DATA, skipped {count(trainer.skipped)}" if losing else _words(place, cliff, trainer, rates),
    )


def _place(places: Iterable[PlaceStatus], tasks: Mapping[str, TaskStatus], picked: str) -> PlaceStatus | None:
    """The picked task's place, else the one with least room before its cliff."""
    if picked != WORST and picked in tasks:
        return next((place for place in places if place.task_id == picked), None)
    return min(places, key=lambda place: _room(place, tasks), default=None)


def _room(place: PlaceStatus, tasks: Mapping[str, TaskStatus]) -> int:
    cliff = cliff_of(tasks.get(place.task_id))
    return -place.lag if cliff is None else cliff - place.lag


def _within(lag: int, cliff: int | None) -> int:
    """Where to draw a trainer: one that is farther than the window reaches has the rest in its own buffer already."""
    return lag if cliff is None else min(lag, cliff)


def _is_close(lag: int, cliff: int | None) -> bool:
    return cliff is not None and CLOSE * cliff < lag <= cliff


def _words(place: PlaceStatus, cliff: int | None, trainer: TrainerStatus, rates: TrainerRates) -> str:
    parts = ["up to date" if place.lag <= 0 else f"{count(place.lag)} behind"]
    drift = rates.drift.get(place.task_id, 0.0)
    if cliff is not None and place.lag > cliff:
        parts.append("read from its own buffer")
    # Near the newest element each frame looks like a drift: only who has used up a third of the room is falling.
    if cliff is not None and drift > 0 and cliff < 3 * place.lag < 3 * cliff and (cliff - place.lag) / drift < _SOON_S:
        parts.append(f"falls off in {duration(max(1.0, (cliff - place.lag) / drift))}")
    if trainer.skipped:
        parts.append(f"skipped {count(trainer.skipped)} before")
    return " · ".join(parts)


def _furthest(view: View, job: JobStatus) -> int:
    """The farthest place of the last seconds: one late frame must not change the scale twice."""
    jobs: Sequence[JobStatus] = [past for m in view.recent if (past := m.snapshot.job(job.name)) is not None]
    cliffs = {task.task_id: cliff_of(task) for task in job.tasks}
    places = (place for past in (*jobs, job) for trainer in past.trainers for place in trainer.places)
    return max((_within(place.lag, cliffs.get(place.task_id)) for place in places), default=0)


def _scale(cliff: int, furthest: int) -> int:
    fitting = round_up(max(2.5 * furthest, _LEAST_SCALE))
    return round(cliff * 1.12) if cliff and cliff <= 2 * fitting else fitting

"""Where each trainer stands in the cross-trainer cache, as numbers and words: what `strip` draws.

Each worker's task has a window of its own, so a trainer stands somewhere in each; shown is one task, or each trainer at
the place where it has least room left. The scale fits the slowest trainer and steps in round numbers, or every frame
would make the picture breathe. Beyond the cliff lies only what is kept on disk: there the scale is squeezed, so that a
trainer that is ten windows behind still has a place, and the window keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsnb.dashboard.view import WORST, View, colour
from dsnb.dataclass import dataclass
from dsnb.monitor.snapshot import JobStatus, PlaceStatus, TaskStatus, TrainerStatus
from dsnb.monitor.words import by_number, count, duration, rate

CLOSE = 0.8
"""From four fifths of the way to the cliff a trainer should be looked at."""

_SOON_S = 120.0
_LEAST_SCALE = 16
_WINDOW_PART = 0.74
"""How much of the strip the window has when something beyond it is on disk."""

_STEADY = 0.01
"""A drift below this part of the room in a second is the sawtooth of frames, not a direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One trainer on the strip.

    Attributes:
        at: How far behind the newest it is drawn: its lag, but within the window unless the rest is on disk.
        cliff: Lag at which elements of its task leave the window; None while that is not known.
        drift: How fast it falls behind, in elements per second; negative when it catches up.
        spills: Whether what leaves the window is kept on disk for it.
        level: "good", "warn" (close to the cliff) or "bad" (losing data).
        words: Where it stands, in words.
        outlook: Where that leads.
    """

    trainer_id: str
    colour: str
    task_id: str
    worker: str
    lag: int
    at: int
    offset: int
    cliff: int | None
    drift: float
    spills: bool
    level: str
    words: str
    outlook: str

    @property
    def buffered(self) -> bool:
        """Whether it reads elements that have left the window, but lie in its own buffer already."""
        return self.level != "bad" and not self.spills and self.beyond

    @property
    def beyond(self) -> bool:
        """Whether it stands on the far side of the cliff."""
        return self.cliff is not None and self.lag > self.cliff

    @property
    def direction(self) -> str:
        """Which way it moves on the strip: "left", "right", or "" while it keeps its place."""
        room = self.cliff or max(self.lag, _LEAST_SCALE)
        if self.lag <= 0.03 * room or abs(self.drift) < _STEADY * room:
            return ""
        return "left" if self.drift > 0 else "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """All lanes and the scale they share: from 0 (newest, right) to `scale` elements behind (left)."""

    scale: int
    lanes: tuple[Lane, ...]

    @property
    def cliff(self) -> int | None:
        """The farthest cliff of all lanes."""
        return max((lane.cliff for lane in self.lanes if lane.cliff is not None), default=None)

    @property
    def deep(self) -> bool:
        """Whether somebody stands beyond the cliff and reads from disk."""
        return any(lane.spills and lane.beyond for lane in self.lanes)

    def part(self, lag: float) -> float:
        """How far left of the newest a lag is drawn, as a part of the strip's width."""
        if not self.deep or not self.cliff:
            return min(lag / self.scale, 1.0)
        if lag <= self.cliff:
            return _WINDOW_PART * lag / self.cliff
        return _WINDOW_PART + (0.98 - _WINDOW_PART) * (1 - self.cliff / lag)


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
    lost = _lost(view, job, trainer)
    drift = slope(_lags(view, job, trainer.trainer_id, place.task_id))
    spills = trainer.on_lag == "spill"
    losing = lost > 0
    return Lane(
        trainer_id=trainer.trainer_id,
        colour=colour(job, trainer.trainer_id),
        task_id=place.task_id,
        worker=place.worker,
        lag=place.lag,
        at=place.lag if spills else _within(place.lag, cliff),
        offset=place.offset,
        cliff=cliff,
        drift=drift,
        spills=spills,
        level="bad" if losing else "warn" if not spills and _is_close(place.lag, cliff) else "good",
        words=f"LOSING DATA, skipped {count(trainer.skipped)}" if losing else _words(place),
        outlook=_loss(place, lost) if losing else _outlook(place, cliff, trainer, drift),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How fast a number grew, by the straight line that fits its points (time, number) best."""
    if len(points) < 2:
        return 0.0
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(number for _, number in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (number - mean) for at, number in points) / spread if spread else 0.0


def _lost(view: View, job: JobStatus, trainer: TrainerStatus) -> float:
    """Elements a second that it skipped over the last seconds: it skips a buffer's worth at a time, and then none."""
    past = [(m.snapshot.time, then) for m in view.recent if (then := m.snapshot.job(job.name)) is not None]
    known = [(at, was.skipped) for at, then in past if (was := then.trainer(trainer.trainer_id)) is not None]
    if view.health.stale or len(known) < 2 or known[-1][0] <= known[0][0]:
        return 0.0
    return max(0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _lags(view: View, job: JobStatus, trainer_id: str, task_id: str) -> list[tuple[float, float]]:
    """A trainer's lag in one task over the last seconds; none of a service that is silent."""
    if view.health.stale:
        return []
    past = ((m.snapshot.time, m.snapshot.job(job.name)) for m in view.recent)
    trainers = ((at, then.trainer(trainer_id)) for at, then in past if then is not None)
    return [(at, float(p.lag)) for at, t in trainers if t is not None for p in t.places if p.task_id == task_id]


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


def _words(place: PlaceStatus) -> str:
    return "up to date" if place.lag <= 0 else f"{count(place.lag)} behind"


def _loss(place: PlaceStatus, lost: float) -> str:
    return f"{rate(lost)} lost · {count(place.lag)} behind"


def _outlook(place: PlaceStatus, cliff: int | None, trainer: TrainerStatus, drift: float) -> str:
    parts = [_course(place, cliff, trainer, drift)]
    if trainer.skipped:
        parts.append(f"skipped {count(trainer.skipped)} before")
    return " · ".join(filter(None, parts))


def _course(place: PlaceStatus, cliff: int | None, trainer: TrainerStatus, drift: float) -> str:
    """Where it is heading, and when it gets there."""
    if cliff is not None and place.lag > cliff:
        spilt = f"{count(place.lag - cliff)} of them on disk"
        return spilt if trainer.on_lag == "spill" else "reads from its own buffer"
    if cliff is None or abs(drift) < _STEADY * cliff or place.lag < 0.05 * cliff:
        return "keeps up" if place.lag else ""
    if drift < 0:
        return f"catching up, {rate(-drift)}"
    return _fall((cliff - place.lag) / drift, trainer.on_lag) or f"falling behind, {rate(drift)}"


def _fall(seconds: float, on_lag: str) -> str:
    """What happens at the cliff, and when; nothing while that is far away."""
    if seconds > _SOON_S:
        return ""
    soon = duration(max(1.0, seconds))
    return {"wait": f"others wait for it in {soon}", "spill": f"goes to disk in {soon}"}.get(
        on_lag, f"falls off in {soon}"
    )


def _furthest(view: View, job: JobStatus) -> int:
    """The farthest place of the last seconds: one late frame must not change the scale twice."""
    jobs: Sequence[JobStatus] = [past for m in view.recent if (past := m.snapshot.job(job.name)) is not None]
    cliffs = {task.task_id: cliff_of(task) for task in job.tasks}
    places = (place for past in (*jobs, job) for trainer in past.trainers for place in trainer.places)
    return max((_within(place.lag, cliffs.get(place.task_id)) for place in places), default=0)


def _scale(cliff: int, furthest: int) -> int:
    fitting = round_up(max(2.5 * furthest, _LEAST_SCALE))
    return round(cliff * 1.12) if cliff and cliff <= 2 * fitting else fitting

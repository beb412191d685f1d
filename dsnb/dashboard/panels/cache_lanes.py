"""Where each trainer stands in the cross-trainer cache, as numbers and words: what `strip` draws.

Each worker's task has a window of its own, so a trainer stands somewhere in each; shown is one task, or each trainer at
the place where it has least room left. The scale fits the slowest trainer and steps in round numbers, or every frame
would make the picture breathe. Beyond the cliff lies only what is kept on disk: there the scale is squeezed, so that a
trainer that is ten windows behind still has a place, and the window keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsnb.dashboard.view import WORST_TASK, View, colour_class
from dsnb.dataclass import dataclass
from dsnb.monitor.formatting import format_count, format_duration, format_rate, natural_sort_key
from dsnb.monitor.snapshot import CursorStatus, JobStatus, TaskStatus, TrainerStatus

NEAR_EVICTION = 0.8
"""From four fifths of the way to the cliff a trainer should be looked at."""

_WARN_BEFORE_EVICTION_S = 120.0
_MIN_SCALE = 16
_WINDOW_PART = 0.74
"""How much of the strip the window has when something beyond it is on disk."""

_NEGLIGIBLE_DRIFT = 0.01
"""A drift below this part of the room in a second is the sawtooth of frames, not a direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLane:
    """One trainer on the strip.

    Attributes:
        drawn_lag: How far behind the newest it is drawn: its lag, but within the window unless the rest is on disk.
        eviction_lag: Lag at which elements of its task leave the window; None while that is not known.
        drift: How fast it falls behind, in elements per second; negative when it catches up.
        spills: Whether what leaves the window is kept on disk for it.
        level: "good", "warn" (close to the cliff) or "bad" (losing data).
        status_text: Where it stands, in words.
        forecast: Where that leads.
    """

    trainer_id: str
    colour: str
    task_id: str
    worker: str
    lag: int
    drawn_lag: int
    offset: int
    eviction_lag: int | None
    drift: float
    spills: bool
    level: str
    status_text: str
    forecast: str

    @property
    def reads_own_buffer(self) -> bool:
        """Whether it reads elements that have left the window, but lie in its own buffer already."""
        return self.level != "bad" and not self.spills and self.past_eviction

    @property
    def past_eviction(self) -> bool:
        """Whether it stands on the far side of the cliff."""
        return self.eviction_lag is not None and self.lag > self.eviction_lag

    @property
    def direction(self) -> str:
        """Which way it moves on the strip: "left", "right", or "" while it keeps its place."""
        room = self.eviction_lag or max(self.lag, _MIN_SCALE)
        if self.lag <= 0.03 * room or abs(self.drift) < _NEGLIGIBLE_DRIFT * room:
            return ""
        return "left" if self.drift > 0 else "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStrip:
    """All lanes and the scale they share: from 0 (newest, right) to `scale` elements behind (left)."""

    scale: int
    lanes: tuple[TrainerLane, ...]

    @property
    def eviction_lag(self) -> int | None:
        """The farthest cliff of all lanes."""
        return max((lane.eviction_lag for lane in self.lanes if lane.eviction_lag is not None), default=None)

    @property
    def shows_disk(self) -> bool:
        """Whether somebody stands beyond the cliff and reads from disk."""
        return any(lane.spills and lane.past_eviction for lane in self.lanes)

    def distance(self, lag: float) -> float:
        """How far left of the newest a lag is drawn, as a part of the strip's width."""
        if not self.shows_disk or not self.eviction_lag:
            return min(lag / self.scale, 1.0)
        if lag <= self.eviction_lag:
            return _WINDOW_PART * lag / self.eviction_lag
        return _WINDOW_PART + (0.98 - _WINDOW_PART) * (1 - self.eviction_lag / lag)


def layout(view: View, job: JobStatus) -> CacheStrip:
    """Where every trainer of a job stands."""
    tasks = {task.task_id: task for task in job.tasks}
    lanes = tuple(lane for t in job.trainers if (lane := _lane(view, job, t, tasks)) is not None)
    cliff = max((lane.eviction_lag for lane in lanes if lane.eviction_lag is not None), default=0)
    return CacheStrip(scale=_scale(cliff, _max_lag(view, job)), lanes=lanes)


def eviction_lag_of(task: TaskStatus | None) -> int | None:
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
    return [newest[worker] for worker in sorted(newest, key=natural_sort_key)]


def _lane(view: View, job: JobStatus, trainer: TrainerStatus, tasks: Mapping[str, TaskStatus]) -> TrainerLane | None:
    cursor = _shown_cursor(trainer.cursors, tasks, view.selection.task)
    if cursor is None:
        return None
    eviction_lag = eviction_lag_of(tasks.get(cursor.task_id))
    lost = _skipped_per_s(view, job, trainer)
    drift = slope(_recent_lags(view, job, trainer.trainer_id, cursor.task_id))
    spills = trainer.on_lag == "spill"
    losing = lost > 0
    return TrainerLane(
        trainer_id=trainer.trainer_id,
        colour=colour_class(job, trainer.trainer_id),
        task_id=cursor.task_id,
        worker=cursor.worker,
        lag=cursor.lag,
        drawn_lag=cursor.lag if spills else _clamp_to_window(cursor.lag, eviction_lag),
        offset=cursor.offset,
        eviction_lag=eviction_lag,
        drift=drift,
        spills=spills,
        level="bad" if losing else "warn" if not spills and _is_close(cursor.lag, eviction_lag) else "good",
        status_text=f"LOSING DATA, skipped {format_count(trainer.skipped)}" if losing else _lag_text(cursor),
        forecast=_loss_text(cursor, lost) if losing else _forecast(cursor, eviction_lag, trainer, drift),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How fast a number grew, by the straight line that fits its points (time, number) best."""
    if len(points) < 2:
        return 0.0
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(number for _, number in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (number - mean) for at, number in points) / spread if spread else 0.0


def _skipped_per_s(view: View, job: JobStatus, trainer: TrainerStatus) -> float:
    """Elements a second that it skipped over the last seconds: it skips a buffer's worth at a time, and then none."""
    past = [(m.snapshot.time, then) for m in view.recent if (then := m.snapshot.job(job.name)) is not None]
    known = [(at, was.skipped) for at, then in past if (was := then.trainer(trainer.trainer_id)) is not None]
    if view.health.stale or len(known) < 2 or known[-1][0] <= known[0][0]:
        return 0.0
    return max(0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _recent_lags(view: View, job: JobStatus, trainer_id: str, task_id: str) -> list[tuple[float, float]]:
    """A trainer's lag in one task over the last seconds; none of a service that is silent."""
    if view.health.stale:
        return []
    past = ((m.snapshot.time, m.snapshot.job(job.name)) for m in view.recent)
    trainers = ((at, then.trainer(trainer_id)) for at, then in past if then is not None)
    return [(at, float(p.lag)) for at, t in trainers if t is not None for p in t.cursors if p.task_id == task_id]


def _shown_cursor(cursors: Iterable[CursorStatus], tasks: Mapping[str, TaskStatus], picked: str) -> CursorStatus | None:
    """The picked task's place, else the one with least room before its cliff."""
    if picked != WORST_TASK and picked in tasks:
        return next((cursor for cursor in cursors if cursor.task_id == picked), None)
    return min(cursors, key=lambda place: _margin(place, tasks), default=None)


def _margin(cursor: CursorStatus, tasks: Mapping[str, TaskStatus]) -> int:
    cliff = eviction_lag_of(tasks.get(cursor.task_id))
    return -cursor.lag if cliff is None else cliff - cursor.lag


def _clamp_to_window(lag: int, eviction_lag: int | None) -> int:
    """Where to draw a trainer: one that is farther than the window reaches has the rest in its own buffer already."""
    return lag if eviction_lag is None else min(lag, eviction_lag)


def _is_close(lag: int, eviction_lag: int | None) -> bool:
    return eviction_lag is not None and NEAR_EVICTION * eviction_lag < lag <= eviction_lag


def _lag_text(cursor: CursorStatus) -> str:
    return "up to date" if cursor.lag <= 0 else f"{format_count(cursor.lag)} behind"


def _loss_text(cursor: CursorStatus, lost: float) -> str:
    return f"{format_rate(lost)} lost · {format_count(cursor.lag)} behind"


def _forecast(cursor: CursorStatus, eviction_lag: int | None, trainer: TrainerStatus, drift: float) -> str:
    parts = [_trend_text(cursor, eviction_lag, trainer, drift)]
    if trainer.skipped:
        parts.append(f"skipped {format_count(trainer.skipped)} before")
    return " · ".join(filter(None, parts))


def _trend_text(cursor: CursorStatus, eviction_lag: int | None, trainer: TrainerStatus, drift: float) -> str:
    """Where it is heading, and when it gets there."""
    if eviction_lag is not None and cursor.lag > eviction_lag:
        spilt = f"{format_count(cursor.lag - eviction_lag)} of them on disk"
        return spilt if trainer.on_lag == "spill" else "reads from its own buffer"
    if eviction_lag is None or abs(drift) < _NEGLIGIBLE_DRIFT * eviction_lag or cursor.lag < 0.05 * eviction_lag:
        return "keeps up" if cursor.lag else ""
    if drift < 0:
        return f"catching up, {format_rate(-drift)}"
    return (
        _eviction_text((eviction_lag - cursor.lag) / drift, trainer.on_lag) or f"falling behind, {format_rate(drift)}"
    )


def _eviction_text(seconds: float, on_lag: str) -> str:
    """What happens at the cliff, and when; nothing while that is far away."""
    if seconds > _WARN_BEFORE_EVICTION_S:
        return ""
    soon = format_duration(max(1.0, seconds))
    return {"wait": f"others wait for it in {soon}", "spill": f"goes to disk in {soon}"}.get(
        on_lag, f"falls off in {soon}"
    )


def _max_lag(view: View, job: JobStatus) -> int:
    """The farthest place of the last seconds: one late frame must not change the scale twice."""
    jobs: Sequence[JobStatus] = [past for m in view.recent if (past := m.snapshot.job(job.name)) is not None]
    eviction_lags = {task.task_id: eviction_lag_of(task) for task in job.tasks}
    cursors = (cursor for past in (*jobs, job) for trainer in past.trainers for cursor in trainer.cursors)
    return max((_clamp_to_window(place.lag, eviction_lags.get(place.task_id)) for place in cursors), default=0)


def _scale(eviction_lag: int, furthest: int) -> int:
    fitting = round_up(max(2.5 * furthest, _MIN_SCALE))
    return round(eviction_lag * 1.12) if eviction_lag and eviction_lag <= 2 * fitting else fitting

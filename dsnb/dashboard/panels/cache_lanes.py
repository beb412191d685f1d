"""Where each trainer stands in the cross-trainer cache, as numbers and text; `strip` draws them.

Each worker's task has its own window, so a trainer has an offset in each. The strip shows one task, or for each trainer
the task in which it is closest to eviction. The scale fits the slowest trainer and changes in round steps, so that it
does not change with every frame. Positions past eviction exist only on disk; there the scale is compressed, so that a
trainer ten windows behind is still visible and the window keeps its share of the strip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dsnb.dashboard.view import WORST_TASK, View
from dsnb.monitor.formatting import format_count, format_duration, format_rate, natural_sort_key
from dsnb.monitor.snapshot import CursorStatus, JobStatus, TaskStatus, TrainerStatus
from dsnb.monitor.tables import listed_trainers

NEAR_EVICTION = 0.8
"""The fraction of the eviction lag from which a trainer counts as close to eviction."""

_WARN_BEFORE_EVICTION_S = 120.0
_MIN_SCALE = 16
_WINDOW_PART = 0.74
"""The share of the strip's width that the window gets when a trainer past eviction reads from disk."""

_NEGLIGIBLE_DRIFT = 0.01
"""The fraction of the window per second below which drift counts as zero: the lag moves in steps of whole frames."""


class TrainerLane(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer on the strip.

    Attributes:
        trainer_id: The trainer.
        colour: The CSS class of its colour.
        task_id: The task that is shown.
        worker: The worker of that task.
        lag: The trainer's lag in the task, in elements.
        drawn_lag: The lag at which it is drawn: limited to the window, unless older elements are on disk for it.
        offset: The index of its next element.
        eviction_lag: The lag at which elements leave the window; None if not known yet.
        drift: How fast the lag grows, in elements per second; negative when the trainer catches up.
        spills: Whether elements that leave the window are kept on disk for it.
        level: "good", "warn" (close to eviction) or "bad" (losing data).
        status_text: Its current lag or loss, as text.
        forecast: What will happen next, as text.
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
        """Whether its next elements have left the window, but are already in its own buffer."""
        return self.level != "bad" and not self.spills and self.past_eviction

    @property
    def past_eviction(self) -> bool:
        """Whether its lag exceeds the eviction lag."""
        return self.eviction_lag is not None and self.lag > self.eviction_lag

    @property
    def direction(self) -> str:
        """The direction in which it moves on the strip: "left", "right", or "" if it keeps its position."""
        room = self.eviction_lag or max(self.lag, _MIN_SCALE)
        if self.lag <= 0.03 * room or abs(self.drift) < _NEGLIGIBLE_DRIFT * room:
            return ""
        return "left" if self.drift > 0 else "right"


class CacheStrip(msgspec.Struct, frozen=True, kw_only=True):
    """All lanes and their common scale: from lag 0 (newest, right) to lag `scale` (left)."""

    scale: int
    lanes: tuple[TrainerLane, ...]

    @property
    def eviction_lag(self) -> int | None:
        """The largest eviction lag of all lanes; None if none is known."""
        return max((lane.eviction_lag for lane in self.lanes if lane.eviction_lag is not None), default=None)

    @property
    def shows_disk(self) -> bool:
        """Whether a trainer is past eviction and reads from disk."""
        return any(lane.spills and lane.past_eviction for lane in self.lanes)

    def distance(self, lag: float) -> float:
        """Where a lag is drawn: the distance from the right end, as a fraction of the strip's width."""
        if not self.shows_disk or not self.eviction_lag:
            return min(lag / self.scale, 1.0)
        if lag <= self.eviction_lag:
            return _WINDOW_PART * lag / self.eviction_lag
        return _WINDOW_PART + (0.98 - _WINDOW_PART) * (1 - self.eviction_lag / lag)


def layout(view: View, job: JobStatus) -> CacheStrip:
    """Lay out the lanes of all trainers of a job."""
    tasks = {task.task_id: task for task in job.tasks}
    lanes = tuple(lane for t in listed_trainers(job) if (lane := _lane(view, job, t, tasks)) is not None)
    cliff = max((lane.eviction_lag for lane in lanes if lane.eviction_lag is not None), default=0)
    return CacheStrip(scale=_scale(cliff, _max_lag(view, job)), lanes=lanes)


def eviction_lag_of(task: TaskStatus | None) -> int | None:
    """The lag at which a task's elements leave memory, estimated from the mean size of the elements in its window."""
    held = task.head - task.tail if task else 0
    if task is None or not held:
        return None
    if not task.window_bytes or not task.capacity_bytes:
        return held if task.evicted else None
    return max(held, round(held * task.capacity_bytes / task.window_bytes))


def round_up(number: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is not below `number`."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= number:
                return step * factor
        step *= 10


def newest_tasks(job: JobStatus) -> list[TaskStatus]:
    """One task of each worker: that of the newest iteration."""
    newest = {task.worker: task for task in sorted(job.tasks, key=lambda task: task.iteration)}
    return [newest[worker] for worker in sorted(newest, key=natural_sort_key)]


def _lane(view: View, job: JobStatus, trainer: TrainerStatus, tasks: Mapping[str, TaskStatus]) -> TrainerLane | None:
    cursor = _shown_cursor(trainer.cursors, tasks, view.selection.task)
    if cursor is None:
        return None
    eviction_lag = eviction_lag_of(tasks.get(cursor.task_id))
    lost = _skipped_per_s(view, job, trainer)
    drift = slope(_recent_lags(view, job, trainer.trainer_id, cursor.task_id)) if trainer.clients else 0.0
    spills = trainer.on_lag == "spill"
    losing = lost > 0 and not trainer.evicted_by
    return TrainerLane(
        trainer_id=trainer.trainer_id,
        colour=view.colour_class(trainer.trainer_id),
        task_id=cursor.task_id,
        worker=cursor.worker,
        lag=cursor.lag,
        drawn_lag=cursor.lag if spills else _clamp_to_window(cursor.lag, eviction_lag),
        offset=cursor.offset,
        eviction_lag=eviction_lag,
        drift=drift,
        spills=spills,
        level="bad" if losing else "warn" if not spills and _is_close(cursor.lag, eviction_lag) else "good",
        status_text=_status_text(cursor, trainer, losing=losing),
        forecast=_loss_text(cursor, trainer, lost) if losing else _forecast(cursor, eviction_lag, trainer, drift),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The growth rate of a number: the slope of the least-squares line through its points (time, number)."""
    if len(points) < 2:
        return 0.0
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(number for _, number in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (number - mean) for at, number in points) / spread if spread else 0.0


def _skipped_per_s(view: View, job: JobStatus, trainer: TrainerStatus) -> float:
    """Elements skipped per second, averaged over the last seconds, since a trainer skips many elements at a time."""
    past = [(m.snapshot.time, then) for m in view.recent if (then := m.snapshot.job(job.name)) is not None]
    known = [(at, was.skipped) for at, then in past if (was := then.trainer(trainer.trainer_id)) is not None]
    if view.health.stale or len(known) < 2 or known[-1][0] <= known[0][0]:
        return 0.0
    return max(0, known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def _recent_lags(view: View, job: JobStatus, trainer_id: str, task_id: str) -> list[tuple[float, float]]:
    """A trainer's lag in one task over the last seconds, as (time, lag); empty if the service is silent."""
    if view.health.stale:
        return []
    past = ((m.snapshot.time, m.snapshot.job(job.name)) for m in view.recent)
    trainers = ((at, then.trainer(trainer_id)) for at, then in past if then is not None)
    return [(at, float(p.lag)) for at, t in trainers if t is not None for p in t.cursors if p.task_id == task_id]


def _shown_cursor(cursors: Iterable[CursorStatus], tasks: Mapping[str, TaskStatus], picked: str) -> CursorStatus | None:
    """The cursor in the picked task, else the one that is closest to eviction."""
    if picked != WORST_TASK and picked in tasks:
        return next((cursor for cursor in cursors if cursor.task_id == picked), None)
    return min(cursors, key=lambda place: _margin(place, tasks), default=None)


def _margin(cursor: CursorStatus, tasks: Mapping[str, TaskStatus]) -> tuple[bool, int]:
    """How many elements it is from eviction; a task whose window is still empty or unknown comes after all others."""
    cliff = eviction_lag_of(tasks.get(cursor.task_id))
    return cliff is None, (cliff or 0) - cursor.lag


def _clamp_to_window(lag: int, eviction_lag: int | None) -> int:
    """The lag at which to draw a trainer that does not spill: elements past the window are already in its buffer."""
    return lag if eviction_lag is None else min(lag, eviction_lag)


def _is_close(lag: int, eviction_lag: int | None) -> bool:
    return eviction_lag is not None and NEAR_EVICTION * eviction_lag < lag <= eviction_lag


def _lag_text(cursor: CursorStatus, trainer: TrainerStatus) -> str:
    """A trainer's lag in one task; with the worker and the sum, which tables show, if it has other tasks."""
    if cursor.lag <= 0:
        return "up to date"
    where = f" on {cursor.worker}, {format_count(trainer.lag)} in all" if len(trainer.cursors) > 1 else ""
    return f"{format_count(cursor.lag)} behind{where}"


def _status_text(cursor: CursorStatus, trainer: TrainerStatus, *, losing: bool) -> str:
    if trainer.evicted_by:
        return f"evicted by {trainer.evicted_by}"
    return f"LOSING DATA, skipped {format_count(trainer.skipped)}" if losing else _lag_text(cursor, trainer)


def _loss_text(cursor: CursorStatus, trainer: TrainerStatus, lost: float) -> str:
    return f"{format_rate(lost)} lost · {_lag_text(cursor, trainer)}"


def _forecast(cursor: CursorStatus, eviction_lag: int | None, trainer: TrainerStatus, drift: float) -> str:
    parts = ["" if trainer.evicted_by else _trend_text(cursor, eviction_lag, trainer, drift)]
    if trainer.skipped:
        parts.append(f"skipped {format_count(trainer.skipped)} before")
    return " · ".join(filter(None, parts))


def _trend_text(cursor: CursorStatus, eviction_lag: int | None, trainer: TrainerStatus, drift: float) -> str:
    """Where its lag is heading, and when it reaches eviction."""
    if eviction_lag is not None and cursor.lag > eviction_lag:
        spilt = f"{format_count(cursor.lag - eviction_lag)} of them on disk"
        return spilt if trainer.on_lag == "spill" else "reads from its own buffer"
    if not trainer.clients:
        return ""
    if eviction_lag is None or abs(drift) < _NEGLIGIBLE_DRIFT * eviction_lag or cursor.lag < 0.05 * eviction_lag:
        return "keeps up" if cursor.lag else ""
    if drift < 0:
        return f"catching up, {format_rate(-drift)}"
    return (
        _eviction_text((eviction_lag - cursor.lag) / drift, trainer.on_lag) or f"falling behind, {format_rate(drift)}"
    )


def _eviction_text(seconds: float, on_lag: str) -> str:
    """What happens at eviction, and when; empty if that is far in the future."""
    if seconds > _WARN_BEFORE_EVICTION_S:
        return ""
    soon = format_duration(max(1.0, seconds))
    return {"wait": f"others wait for it in {soon}", "spill": f"goes to disk in {soon}"}.get(
        on_lag, f"loses data in {soon}"
    )


def _max_lag(view: View, job: JobStatus) -> int:
    """The largest drawn lag of the last seconds, so that one late frame does not change the scale twice."""
    jobs: Sequence[JobStatus] = [past for m in view.recent if (past := m.snapshot.job(job.name)) is not None]
    eviction_lags = {task.task_id: eviction_lag_of(task) for task in job.tasks}
    cursors = (cursor for past in (*jobs, job) for trainer in past.trainers for cursor in trainer.cursors)
    return max((_clamp_to_window(place.lag, eviction_lags.get(place.task_id)) for place in cursors), default=0)


def _scale(eviction_lag: int, furthest: int) -> int:
    fitting = round_up(max(2.5 * furthest, _MIN_SCALE))
    return round(eviction_lag * 1.12) if eviction_lag and eviction_lag <= 2 * fitting else fitting

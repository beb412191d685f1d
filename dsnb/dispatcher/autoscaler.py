"""`Autoscaler`: decides how many workers a service should have, from its snapshots.

Theory of operation. Every two seconds the autoscaler gets a snapshot. It compares it with one of a few seconds ago:
`monitor.demand` says how many workers the jobs need. If that number has just changed by more than a quarter (a trainer
changed its pace), only the newest seconds count, once two intervals in a row agree.

* *Up*: if a reader waits and more workers help, it goes to the needed number in one jump, at most four times the
  present one, and not beyond the processors that are idle, or what the launcher can place. When the new workers have
  run for ten seconds, the jobs must consume at least 7 % more, or their readers must have stopped waiting. Otherwise
  the autoscaler goes back, and does not try again until the need changes by half.
* *Down*: if one worker less was enough for 30 seconds, and no reader waits, one worker leaves; further ones follow
  every ten seconds. If readers wait afterwards, that number is not tried again until the need changes by a quarter.
* *Neither*: in the first ten seconds of a job, while new workers start, while no two intervals agree, and where the
  verdict names a cause that more workers do not change (the network, the reader, the GIL). It then says why, also of a
  reader that is slow but does not wait; once for each job and cause until the number of workers changes.

Pure: no threads, sockets, files or clock.
"""

from __future__ import annotations

from collections import deque

import msgspec

from dsnb.monitor.demand import JobDemand, job_demands, workers_needed
from dsnb.monitor.formatting import format_rate, format_share, plural, wait_level
from dsnb.monitor.processors import cpu_capacity
from dsnb.monitor.rates import rates, same_run
from dsnb.monitor.snapshot import Snapshot

INTERVAL_S = 2.0
"""How often the autoscaler gets a snapshot."""
_SLACK_S = 0.25 * INTERVAL_S
"""By how much a snapshot may be newer than a span asks for."""
_WINDOW_S = 10.0
_SHORT_WINDOW_S = 4.0
_CHANGED_SHARE = 0.25
"""Two needs that differ by more than this share of the smaller one are different."""
_TOLERANCE = 0.02
"""The share of its demand that a job may lack after a step down."""
_SETTLE_S = 10.0
_JOIN_TIMEOUT_S = 60.0
_MIN_GAIN = 1.07
_RETRY_CHANGE_SHARE = 0.5
_MAX_FACTOR = 4
_FIRST_STEP_DOWN_S = 30.0
_NEXT_STEP_DOWN_S = 10.0
_REGRET_S = 300.0
"""If readers wait this soon after a step down, the step was wrong."""
_CAUSES_THAT_WORKERS_CHANGE = ("workers", "operation", "no workers")
_PROCESSORS = "processors"
"""The processors of this host are busy; workers elsewhere help."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now.

    Attributes:
        workers: How many workers there should be; None if their number should stay as it is.
        text: Why, with numbers; for the events.
    """

    workers: int | None
    text: str


class _Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A jump up whose effect is not known yet."""

    size_before: int
    consumed_before: float
    need: float


class _Need(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs need: each, and as a number of workers that need not be whole."""

    demands: tuple[JobDemand, ...]
    workers: float
    before: Snapshot

    @property
    def consumed(self) -> float:
        return sum(one.consumed for one in self.demands)

    @property
    def waiting(self) -> list[JobDemand]:
        return [one for one in self.demands if one.waits]


class Autoscaler:
    """Decides on the number of workers between two limits.

    Args:
        minimum: The least number of workers.
        maximum: The greatest number of workers.

    Attributes:
        wanted: The number that the jobs need at present, within the limits.
        reason: The last decision, in words.
    """

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.wanted = minimum
        self.reason = ""
        self._snapshots: deque[tuple[float, Snapshot]] = deque()
        self._running = -1
        self._changed_at = 0.0
        """When the number of running workers changed last."""
        self._first_read_at: dict[str, float] = {}
        self._unsteady_since: float | None = None
        self._trial: _Trial | None = None
        self._refused_need: float | None = None
        """The need for which more workers had no effect."""
        self._surplus_since: float | None = None
        self._stepping_down = False
        self._stepped_down: tuple[float, float] | None = None
        """When the last step down was, and the need at that time."""
        self._floor: tuple[int, float] | None = None
        """A number of workers that must not be reduced, and the need for which that was found."""
        self._explained: set[tuple[str, str]] = set()
        """For each job that is read, the reasons that were given since the number of workers changed."""

    def decide(self, now: float, snapshot: Snapshot, *, size: int, capacity: int | None = None) -> Decision | None:
        """The decision at this moment; None if there is nothing to do and nothing to say.

        Args:
            now: Seconds of a monotonic clock.
            snapshot: The present state of the service.
            size: The number of workers that were started, without those that are leaving.
            capacity: How many more workers the launcher could place elsewhere; None if they share these hosts.
        """
        self._note(now, snapshot)
        if not self.minimum <= size <= self.maximum:
            target = min(max(size, self.minimum), self.maximum)
            return self._scale(now, size, target, f"the limits are {self.minimum} to {self.maximum}")
        if self._running < size and now - self._changed_at < _JOIN_TIMEOUT_S:
            return None  # workers are starting
        need = self._need(now)
        if need is None:
            return None
        self.wanted = min(max(workers_needed(need.demands), self.minimum), self.maximum)
        if self._trial is not None:
            return self._check_trial(now, size, need, self._trial, capacity)
        if need.waiting:
            self._surplus_since, self._stepping_down = None, False
            return self._go_up(now, size, need, capacity)
        return self._go_down(now, size, need) or self._explain_slow_reader(need)

    # ---- what is known

    def _note(self, now: float, snapshot: Snapshot) -> None:
        if self._snapshots and not same_run(self._snapshots[-1][1], snapshot):
            self._snapshots.clear()
        self._snapshots.append((now, snapshot))
        while len(self._snapshots) > 2 and self._snapshots[1][0] <= now - _WINDOW_S:
            self._snapshots.popleft()
        running = sum(worker.state == "running" for worker in snapshot.workers)
        if running != self._running:
            self._running, self._changed_at = running, now
        read = {job.name for job in snapshot.jobs if job.clients and not job.paused_by}
        self._first_read_at = {name: self._first_read_at.get(name, now) for name in read}
        self._explained = {(job, reason) for job, reason in self._explained if job in read}

    def _need(self, now: float) -> _Need | None:
        """What the jobs need at present; None if that cannot be known yet."""
        if not self._first_read_at:
            return self._need_over(now, 0.0)
        if any(now - began < _SETTLE_S for began in self._first_read_at.values()):
            return None
        recent = self._need_over(now, _SHORT_WINDOW_S)
        if recent is None:
            return None
        whole, newest = self._need_over(now, _WINDOW_S), self._need_over(now, INTERVAL_S)
        if whole is None or newest is None or not _differ(whole.workers, recent.workers, _CHANGED_SHARE):
            self._unsteady_since = None
            return whole or recent
        if not _differ(newest.workers, recent.workers, _CHANGED_SHARE):
            self._unsteady_since = None
            return recent
        if self._unsteady_since is None:
            self._unsteady_since = now
        return whole if now - self._unsteady_since > _WINDOW_S else None

    def _need_over(self, now: float, span: float) -> _Need | None:
        """What the jobs need over the last `span` seconds, or a little more, if the same workers ran all the time.

        The snapshots may be further apart than usual: where the GIL or the processors are busy, the
        autoscaler's thread waits for them too.
        """
        least = 0.0 if span == 0.0 else min(span, _SHORT_WINDOW_S)
        usable = [pair for pair in self._snapshots if pair[0] >= self._changed_at - _SLACK_S]
        first, before = next((pair for pair in reversed(usable) if now - pair[0] >= span - _SLACK_S), usable[0])
        if now - first < least - _SLACK_S:
            return None
        demands = tuple(job_demands(before, self._snapshots[-1][1]))
        return _Need(demands=demands, workers=sum(one.workers for one in demands), before=before)

    # ---- up

    def _go_up(self, now: float, size: int, need: _Need, capacity: int | None) -> Decision | None:
        helped = [one for one in need.waiting if self._workers_help(one, capacity)]
        if not helped:
            return self._explain(need.waiting[0])
        if self._refused_need is not None:
            if not _differ(self._refused_need, need.workers, _RETRY_CHANGE_SHARE):
                return None
            self._refused_need = None
        wanted = min(workers_needed(need.demands), self.maximum, _MAX_FACTOR * max(1, size))
        target = min(wanted, size + self._room(need, capacity))
        if target <= size:
            return self._explain_limit(size, wanted, helped[0], capacity)
        if self._stepped_down is not None:
            at, then = self._stepped_down
            if now - at < _REGRET_S and not _differ(then, need.workers, _CHANGED_SHARE):
                self._floor = target, need.workers
        self._trial = _Trial(size_before=size, consumed_before=need.consumed, need=need.workers)
        return self._scale(now, size, target, _need_text(helped[0]))

    @staticmethod
    def _workers_help(one: JobDemand, capacity: int | None) -> bool:
        cause = one.verdict.cause if one.verdict is not None else ""
        return cause in _CAUSES_THAT_WORKERS_CHANGE or (cause == _PROCESSORS and bool(capacity))

    def _room(self, need: _Need, capacity: int | None) -> int:
        """How many more workers can run: those that the launcher can place, or that the idle processors can run."""
        if capacity is not None:
            return capacity
        snapshot = self._snapshots[-1][1]
        room = cpu_capacity(snapshot.workers, rates(need.before, snapshot)).max_new_workers
        return self.maximum if room is None else room

    def _check_trial(self, now: float, size: int, need: _Need, trial: _Trial, capacity: int | None) -> Decision | None:
        """Ten seconds after new workers joined: keep them if they had an effect, else go back."""
        if now - self._changed_at < _SETTLE_S:
            return None
        self._trial = None
        if not need.waiting or need.consumed >= _MIN_GAIN * trial.consumed_before or size <= trial.size_before:
            return None
        self._refused_need = trial.need  # as it will be again; useless workers slow each other down, and raise the need
        effect = (
            f"{plural(size - trial.size_before, 'more worker')} had no effect: the readers consume "
            f"{format_rate(need.consumed)} instead of {format_rate(trial.consumed_before)}"
        )
        causes = [one.verdict.text for one in need.waiting if one.verdict and not self._workers_help(one, capacity)]
        return self._scale(now, size, trial.size_before, ". ".join([effect, *causes[:1]]))

    # ---- down

    def _go_down(self, now: float, size: int, need: _Need) -> Decision | None:
        if self._floor is not None and _differ(self._floor[1], need.workers, _CHANGED_SHARE):
            self._floor = None
        least = max(self.minimum, self._floor[0] if self._floor is not None else 0)
        if size - 1 < least or need.workers > (1 + _TOLERANCE) * (size - 1):
            self._surplus_since, self._stepping_down = None, False
            return None
        if self._surplus_since is None:
            self._surplus_since = now
        patience = _NEXT_STEP_DOWN_S if self._stepping_down else _FIRST_STEP_DOWN_S
        if now - self._surplus_since < patience:
            return None
        self._surplus_since, self._stepping_down = now, True
        self._stepped_down = now, need.workers
        return self._scale(now, size, size - 1, f"no reader has waited for {patience:g} s, and {_surplus_text(need)}")

    # ---- decisions

    def _scale(self, now: float, size: int, target: int, why: str) -> Decision:
        self._changed_at = now
        self._explained.clear()
        return self._decision(target, f"autoscaling from {size} to {plural(target, 'worker')}: {why}")

    def _explain(self, one: JobDemand) -> Decision | None:
        """Say once why more workers would not help a job."""
        if one.verdict is None:
            return None
        return self._say_once(one.job, one.verdict.cause, f"they would not help: {one.verdict.text}")

    def _explain_slow_reader(self, need: _Need) -> Decision | None:
        """Say once that a reader that does not wait is slow all the same, as the verdict says too."""
        slow = next((one for one in need.demands if one.verdict is not None and one.verdict.level != "good"), None)
        return None if slow is None else self._explain(slow)

    def _explain_limit(self, size: int, wanted: int, one: JobDemand, capacity: int | None) -> Decision | None:
        """Say once which limit keeps the service from having the workers that it needs."""
        if size >= self.maximum:
            limit = f"{self.maximum} is the maximum"
        elif wanted <= size:
            if wait_level(one.wait_share) != "bad" or not one.worker_rate:
                return None  # such short waits come and go
            limit = f"{plural(size, 'worker')} could make enough"
        else:
            limit = "no processor is idle" if capacity is None else "the launcher has no room for more"
        return self._say_once(one.job, limit, f"{limit}: {_need_text(one)}")

    def _say_once(self, job: str, reason: str, text: str) -> Decision | None:
        if (job, reason) in self._explained:
            return None
        self._explained.add((job, reason))
        return self._decision(None, f"autoscaling adds no workers, because {text}")

    def _decision(self, workers: int | None, text: str) -> Decision:
        self.reason = text
        return Decision(workers=workers, text=text)


def _differ(one: float, other: float, share: float) -> bool:
    """Whether two numbers differ by more than a share of the smaller one."""
    return abs(one - other) > share * min(one, other)


def _surplus_text(need: _Need) -> str:
    if not need.demands:
        return "no job is read"
    if not any(
        one.worker_rate for one in need.demands
    ):  # as at the end of an epoch, when its rest is produced and the readers go on
        return "the workers had nothing to produce"
    return f"{need.workers:.1f} of them are needed" if need.workers >= 0.05 else "less than 0.1 of them is needed"


def _need_text(one: JobDemand) -> str:
    return (
        f"the readers of job {one.job!r} wait {format_share(one.wait_share)} of their time; they could consume "
        f"{format_rate(one.demand)}, and one worker makes {format_rate(one.worker_rate)}"
    )

"""Where one consumer of a coordinated read is, and which element it takes next. A pure core.

Theory of operation. The dispatcher's part is told in `dispatcher/rounds`, the worker's in `worker/round_robin`. Here is
one consumer's: it takes round after round; the lineup says which task gives a round, and with which of its turns. Turns
arrive task by task, in order, and lie here until their rounds come. `at` is the next round.

A turn may be taken when it is whole, as its worker says; or, without asking the worker, who may be gone, when a later
lineup is known: rounds before the newest lineup are settled, because the dispatcher has made that out of what all
consumers have received. If such a round is not here although its task gives none any more, it is this consumer that has
missed it (it came anew, and others had taken it already): it is passed over and counted, so that all stay in step.

In a halt nothing is taken. A consumer that comes anew is halted from the beginning. It answers the dispatcher's halt
when each worker has told it what it still has, and begins with the lineup that was made at a halt which it answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Any

from dsnb.dataclass import dataclass
from dsnb.wire.lineup import ConsumerReport, HeldTurns, Lineup, RoundsUpdate, lineup_of, turn_of


@dataclass(slots=True)
class Turns:
    """What is here of one task: the turns before `received`, from `consumed` on."""

    whole: int = 0
    base: int = 0
    received: int = 0
    consumed: int = 0
    heard: bool = False
    """Whether its worker has said what it has."""
    items: deque[tuple[int, Any, int]] = field(default_factory=deque)
    """Turn, item and bytes."""
    nbytes: int = 0

    def let_go(self, before: int) -> None:
        """Forget the turns before one."""
        while self.items and self.items[0][0] < before:
            self.nbytes -= self.items.popleft()[2]
        self.consumed = max(self.consumed, before)


class Rounds:
    """One consumer's."""

    def __init__(self) -> None:
        self.at = 0
        self.begun = False
        self.missed = 0
        """Rounds that were passed over."""
        self.dropped = 0
        """Rounds that no consumer gets, since this one has come."""
        self._halt = 0
        self._halted = True
        self._answered = 0
        """The last halt that it has answered."""
        self._dropped_before: int | None = None
        self._lineups: Sequence[Lineup] = ()
        self._tasks: dict[str, Turns] = {}
        self._alive: set[str] = set()

    # ---- what is heard

    def follow(self, tasks: Collection[str]) -> None:
        """Learn which tasks there are now."""
        self._alive = set(tasks)
        for task in tasks:
            self._tasks.setdefault(task, Turns())
        self._tidy()

    def hear(self, update: RoundsUpdate) -> None:
        """Learn how the dispatcher sees the rounds."""
        self._lineups = update.lineups
        if self._dropped_before is None:
            self._dropped_before = update.dropped
        self.dropped = update.dropped - self._dropped_before
        newest = self._newest
        if not self.begun and newest is not None and newest.halt >= self._answered > 0:
            self.begun = True
            self.at = min(lineup.first for lineup in self._lineups if lineup.halt == newest.halt)
        self._halted = bool(update.halt) or not self.begun
        self._halt = update.halt
        self._tidy()

    def deliver(self, task: str, turn: int, item: Any, nbytes: int) -> None:
        """Take in a turn that has arrived."""
        turns = self._tasks.setdefault(task, Turns())
        turns.received = turn + 1
        if turn >= turns.consumed:
            turns.items.append((turn, item, nbytes))
            turns.nbytes += nbytes

    def progress(self, task: str, whole: int, base: int) -> None:
        """Learn what a worker says of its task."""
        turns = self._tasks.setdefault(task, Turns())
        turns.heard = True
        turns.whole, turns.base = max(turns.whole, whole), max(turns.base, base)
        turns.received = max(turns.received, base)
        turns.let_go(base)

    def clear(self) -> None:
        """Let go of all turns that are here."""
        for turns in self._tasks.values():
            turns.items.clear()
            turns.nbytes = 0

    # ---- what is told

    @property
    def _answers(self) -> bool:
        """Whether it can say where it is."""
        return self.begun or all(self._tasks[task].heard for task in self._alive)

    def report(self) -> ConsumerReport:
        """Where this consumer is; a halt is answered by its number."""
        halt = self._halt if self._answers else 0
        self._answered = max(self._answered, halt)
        return ConsumerReport(
            round=self.at,
            begun=self.begun,
            halt=halt,
            held=tuple(
                HeldTurns(task_id=task, received=turns.received, base=turns.base) for task, turns in self._tasks.items()
            ),
        )

    def turns(self, task: str) -> Turns:
        """What is here of a task."""
        return self._tasks.get(task) or Turns()

    def waits_for(self, task: str) -> bool:
        """Whether it cannot go on without this task."""
        if task not in self._alive:
            return False
        found = self._due()
        return found[0] == task if found is not None else not self.begun and not self._tasks[task].heard

    # ---- what is taken

    @property
    def ready(self) -> bool:
        """Whether the next round can be taken."""
        found = self._due()
        if found is None:
            return False
        task, turn, settled = found
        turns = self._tasks.get(task)
        here = turns is not None and bool(turns.items) and turns.items[0][0] == turn
        return here and (settled or turn < self._tasks[task].whole)

    def take(self) -> Any:
        """The element of the next round; only if that is `ready`."""
        found = self._due()
        assert found is not None, "the next round is not ready"
        task, turn, _ = found
        item = self._tasks[task].items[0][1]
        self._tasks[task].let_go(turn + 1)
        self.at += 1
        self._tidy()
        return item

    def pass_over(self) -> int:
        """Go on behind rounds that will not come to this consumer; returns how many there were."""
        missed = 0
        while (found := self._due()) is not None and not self.ready:
            task, turn, settled = found
            if (
                not settled
                or task in self._alive
                or (task in self._tasks and turn in map(_turn, self._tasks[task].items))
            ):
                break
            self.at += 1
            missed += 1
        self.missed += missed
        return missed

    @property
    def _newest(self) -> Lineup | None:
        return self._lineups[-1] if self._lineups else None

    def _due(self) -> tuple[str, int, bool] | None:
        """The task and turn of the next round, and whether it is settled; None in a halt."""
        newest = self._newest
        if self._halted or newest is None:
            return None
        lineup = lineup_of(self._lineups, self.at)
        if lineup is None:
            return None
        task, turn = turn_of(lineup, self.at)
        return task, turn, self.at < newest.first

    def _tidy(self) -> None:
        """Let go of turns that no round needs, and of tasks that give no more."""
        newest = self._newest
        if newest is None or not self.begun:
            return
        for task, turn in zip(newest.tasks, newest.turns, strict=True):
            if self.at >= newest.first and task in self._tasks:
                self._tasks[task].let_go(turn)
        needed = {task for lineup in self._lineups if self._needs(lineup) for task in lineup.tasks}
        for task in [task for task in self._tasks if task not in self._alive and task not in needed]:
            del self._tasks[task]

    def _needs(self, lineup: Lineup) -> bool:
        """Whether rounds of a lineup are still to come."""
        after = next((other.first for other in self._lineups if other.first > lineup.first), None)
        return after is None or self.at < after


def _turn(item: tuple[int, Any, int]) -> int:
    return item[0]

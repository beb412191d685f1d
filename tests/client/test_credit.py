"""How a reader's allowance is shared, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnb.client.credit import IDLE_S, Account, to_recall, top_up

STEP_S = 0.01
ANSWER_S = 0.02
"""How long a recall takes to be answered."""


@dataclass
class SimTask:
    """A worker's side: `ready` elements from `begins_at` on, then the end."""

    ready: int
    begins_at: float
    account: Account = field(default_factory=Account)
    sent: int = 0
    granted: int = 0
    answer_at: float | None = None

    def work(self, now: float) -> int:
        """Send what may be sent; returns how much."""
        count = min(self.granted, self.ready) - self.sent if now >= self.begins_at else 0
        self.sent += count
        return count

    def at_end(self, now: float) -> bool:
        return self.sent == self.ready and now >= self.begins_at


class Reader:
    """A reader of several tasks that consumes `pace` elements a step."""

    def __init__(self, tasks: list[SimTask], limit: int | None, pace: int) -> None:
        self.tasks = tasks
        self.limit = limit
        self.pace = pace
        self.now = 0.0
        self.buffer: list[SimTask] = []

    def step(self) -> None:
        self.now += STEP_S
        for task in self.tasks:
            self._hear(task)
        for task in self.buffer[: self.pace]:
            task.account.taken += 1
        del self.buffer[: self.pace]
        top_up([task.account for task in self.tasks], self.limit, self.now)
        for task in self.tasks:
            if not task.account.recalling:
                task.granted = max(task.granted, task.account.granted)
        recalled = to_recall([task.account for task in self.tasks], self.now)
        for task in self.tasks:
            if task.account is recalled:
                task.account.recalling = True
                task.answer_at = self.now + ANSWER_S

    def _hear(self, task: SimTask) -> None:
        account = task.account
        if task.answer_at is not None and self.now >= task.answer_at:
            task.granted, task.answer_at = task.sent, None
            account.granted, account.recalling = max(task.sent, account.received), False
        count = task.work(self.now)
        if count:
            account.received += count
            account.active_at = self.now
            self.buffer += [task] * count
        account.ended = task.at_end(self.now)

    @property
    def outstanding(self) -> int:
        return sum(task.account.outstanding for task in self.tasks)

    @property
    def promised(self) -> int:
        """What the workers may send, by what they were told."""
        return sum(max(0, task.granted - task.account.taken) for task in self.tasks if not task.account.ended)

    @property
    def over(self) -> bool:
        return not self.buffer and all(task.account.ended for task in self.tasks)


@settings(max_examples=150, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    begin=st.lists(st.integers(0, 60), min_size=6, max_size=6),
    limit=st.integers(1, 9),
    pace=st.integers(1, 5),
)
def test_the_limit_is_never_exceeded_and_each_task_comes_to_its_end(
    sizes: list[int], begin: list[int], limit: int, pace: int
) -> None:
    reader = Reader([SimTask(size, at * STEP_S) for size, at in zip(sizes, begin, strict=False)], limit, pace)
    for _ in range(3000):
        reader.step()
        assert reader.outstanding <= limit
        assert (
            sum(max(0, task.granted - task.account.taken) for task in reader.tasks if not task.account.ended) <= limit
        )
        if reader.over:
            break
    assert [task.account.taken for task in reader.tasks] == [task.ready for task in reader.tasks]


def test_each_task_is_topped_up_to_an_even_share() -> None:
    accounts = [Account() for _ in range(3)]
    assert top_up(accounts, 9, 0.0) == accounts
    assert [account.granted for account in accounts] == [3, 3, 3]
    assert top_up(accounts, 9, 1.0) == []


def test_small_change_costs_no_message() -> None:
    [account] = accounts = [Account(granted=10, received=10, taken=4)]
    assert top_up(accounts, 10, 0.0) == []
    account.taken = 5
    assert top_up(accounts, 10, 0.0) == accounts
    assert account.granted == 15


def test_a_task_without_any_credit_gets_some_at_once() -> None:
    accounts = [Account(granted=1, received=1, taken=1), Account(granted=9)]
    assert top_up(accounts, 10, 0.0) == [accounts[0]]


def test_with_fewer_credits_than_tasks_the_one_that_waited_longest_is_first() -> None:
    accounts = [Account(active_at=3.0), Account(active_at=1.0), Account(active_at=2.0)]
    assert top_up(accounts, 2, 5.0) == [accounts[1], accounts[2]]


def test_what_an_ended_task_delivered_counts_until_it_is_consumed_and_its_unused_credit_does_not() -> None:
    ended = Account(granted=10, received=4, taken=1, ended=True)
    assert (ended.outstanding, ended.unused) == (3, 0)
    other = Account()
    top_up([ended, other], 10, 0.0)
    assert other.granted == 7


def test_credit_that_is_being_recalled_is_not_raised_and_still_counts() -> None:
    recalled, other = Account(granted=2, recalling=True), Account()
    assert top_up([recalled, other], 3, 0.0) == [other]
    assert (recalled.granted, other.granted) == (2, 1)


def test_without_a_limit_credit_never_runs_out() -> None:
    [account] = accounts = [Account()]
    assert top_up(accounts, None, 0.0) == accounts
    granted = account.granted
    assert top_up(accounts, None, 0.0) == []
    account.received = account.taken = granted - 1000
    assert top_up(accounts, None, 0.0) == accounts
    assert account.granted > granted + 1_000_000


def test_no_task_is_no_trouble() -> None:
    assert top_up([], 5, 0.0) == []
    assert to_recall([], 0.0) is None


# ---- recalls


def test_credit_that_lies_unused_moves_to_a_task_that_has_none() -> None:
    idle, hungry = Account(granted=1), Account()
    assert to_recall([idle, hungry], IDLE_S - 0.001) is None
    assert to_recall([idle, hungry], IDLE_S) is idle


def test_the_one_that_has_been_idle_longest_gives_first() -> None:
    accounts = [Account(granted=1, active_at=0.2), Account(granted=1, active_at=0.1), Account()]
    assert to_recall(accounts, 1.0) is accounts[1]


@pytest.mark.parametrize(
    "accounts",
    [
        [Account(granted=1), Account(granted=1)],
        [Account(granted=1, received=1), Account()],
        [Account(granted=1), Account(ended=True)],
        [Account(granted=1), Account(granted=1, recalling=True), Account()],
    ],
    ids=["all have some", "what it had was used", "the other has ended", "one recall is on its way"],
)
def test_nothing_is_recalled_without_need(accounts: list[Account]) -> None:
    assert to_recall(accounts, 100.0) is None


def test_a_task_whose_connection_broke_lets_its_credit_go_and_gets_none_until_it_is_open_again() -> None:
    broken, other = Account(granted=5, received=2, taken=1, recalling=True), Account()
    broken.let_go()
    broken.away = True
    assert (broken.outstanding, broken.unused, broken.recalling) == (1, 0, False)
    assert top_up([broken, other], 5, 0.0) == [other]
    assert other.granted == 4
    assert to_recall([broken, Account(granted=1)], 100.0) is None
    broken.away = False
    other.received = other.taken = 4
    assert broken in top_up([broken, other], 5, 0.0)

"""How a reader's allowance is shared, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnb.client.flow_control import IDLE_CREDIT_S, CreditAccount, choose_recalls, top_up

STEP_S = 0.01
ANSWER_S = 0.02
"""How long a recall takes to be answered."""


@dataclass
class SimTask:
    """A worker's side: `ready` elements from `begins_at` on, then the end.

    At `returned_at`, when it has ended perhaps, it gets `returned` elements more: another client did not consume them.
    """

    ready: int
    begins_at: float
    returned: int = 0
    returned_at: float = 0.0
    account: CreditAccount = field(default_factory=CreditAccount)
    sent: int = 0
    granted: int = 0
    answer_at: float | None = None

    def work(self, now: float) -> int:
        """Send what may be sent; returns how much."""
        if now >= self.returned_at:
            self.ready, self.returned = self.ready + self.returned, 0
        count = min(self.granted, self.ready) - self.sent if now >= self.begins_at else 0
        self.sent += count
        return count

    def at_end(self, now: float) -> bool:
        return self.sent == self.ready and now >= self.begins_at


class Reader:
    """A reader of several tasks that consumes `pace` elements a step."""

    def __init__(self, tasks: list[SimTask], limit: int, pace: int) -> None:
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
            task.account.dequeued += 1
        del self.buffer[: self.pace]
        top_up([task.account for task in self.tasks], self.limit, self.now)
        for task in self.tasks:
            if not task.account.recalling:
                task.granted = max(task.granted, task.account.granted)
        recalled = choose_recalls([task.account for task in self.tasks], self.limit, self.now)
        for task in self.tasks:
            if task.account in recalled:
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
        """What the workers may send, by what they were told, and what is buffered."""
        return sum(max(task.granted, task.sent) - task.account.dequeued for task in self.tasks)

    @property
    def over(self) -> bool:
        return not self.buffer and all(task.account.ended and not task.returned for task in self.tasks)


@settings(max_examples=150, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    begin=st.lists(st.integers(0, 60), min_size=6, max_size=6),
    returned=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), min_size=6, max_size=6),
    limit=st.integers(1, 9),
    pace=st.integers(1, 5),
)
def test_the_limit_is_never_exceeded_and_each_task_comes_to_its_end(
    sizes: list[int], begin: list[int], returned: list[tuple[int, int]], limit: int, pace: int
) -> None:
    tasks = [
        SimTask(size, at * STEP_S, back, back_at * STEP_S)
        for size, at, (back, back_at) in zip(sizes, begin, returned, strict=False)
    ]
    reader = Reader(tasks, limit, pace)
    for _ in range(3000):
        reader.step()
        assert reader.outstanding <= limit
        assert reader.promised <= limit
        if reader.over:
            break
    assert reader.over
    assert [task.account.dequeued for task in reader.tasks] == [task.ready for task in reader.tasks]


def test_each_task_is_topped_up_to_an_even_share() -> None:
    accounts = [CreditAccount() for _ in range(3)]
    assert top_up(accounts, 9, 0.0) == accounts
    assert [account.granted for account in accounts] == [3, 3, 3]
    assert top_up(accounts, 9, 1.0) == []


def test_small_change_costs_no_message() -> None:
    [account] = accounts = [CreditAccount(granted=10, received=10, dequeued=4)]
    assert top_up(accounts, 10, 0.0) == []
    account.dequeued = 5
    assert top_up(accounts, 10, 0.0) == accounts
    assert account.granted == 15


def test_a_task_without_any_credit_gets_some_at_once() -> None:
    accounts = [CreditAccount(granted=1, received=1, dequeued=1), CreditAccount(granted=9)]
    assert top_up(accounts, 10, 0.0) == [accounts[0]]


def test_with_fewer_credits_than_tasks_the_one_that_waited_longest_is_first() -> None:
    accounts = [CreditAccount(active_at=3.0), CreditAccount(active_at=1.0), CreditAccount(active_at=2.0)]
    assert top_up(accounts, 2, 5.0) == [accounts[1], accounts[2]]


def test_the_unused_credit_of_an_ended_task_counts_until_it_is_recalled() -> None:
    ended, other = CreditAccount(granted=10, received=4, dequeued=1, ended=True), CreditAccount()
    assert (ended.outstanding, ended.unused) == (9, 6)
    assert top_up([ended, other], 10, 0.0) == [other]
    assert other.granted == 1
    assert choose_recalls([ended, other], 10, 0.0) == [ended]
    ended.granted = 4
    other.received = other.dequeued = 1
    assert top_up([ended, other], 10, 0.0) == [other]
    assert (ended.outstanding, other.outstanding) == (3, 7)


def test_an_ended_task_keeps_credit_for_an_element_that_another_client_returns() -> None:
    ended, other = CreditAccount(granted=5, received=4, dequeued=4, ended=True), CreditAccount()
    assert top_up([ended, other], 10, 0.0) == [other]
    assert (ended.unused, other.granted) == (1, 9)
    assert choose_recalls([ended, other], 10, 100.0) == []


def test_an_ended_task_keeps_no_credit_that_an_open_one_needs() -> None:
    ended, other = CreditAccount(granted=1, ended=True), CreditAccount()
    assert top_up([ended, other], 1, 0.0) == []
    assert choose_recalls([ended, other], 1, 0.0) == [ended]


def test_once_all_tasks_have_ended_they_share_the_credit_for_elements_that_another_client_returns() -> None:
    used_up, unused = (CreditAccount(granted=n, received=4, dequeued=4, ended=True) for n in (4, 6))
    assert top_up([used_up, unused], 4, 0.0) == [used_up]
    assert (used_up.granted, unused.granted) == (6, 6)
    assert top_up([used_up, unused], 4, 0.0) == []


@pytest.mark.parametrize("limit", [1, 2])
def test_ended_tasks_that_are_opened_again_have_no_more_credit_than_there_is(limit: int) -> None:
    accounts = [CreditAccount(ended=True) for _ in range(3)]
    top_up(accounts, limit, 0.0)
    for account in accounts:
        account.ended = False
    assert sum(account.outstanding for account in accounts) == limit


def test_credit_rotates_among_ended_tasks_if_it_is_scarce() -> None:
    """Any of them may be the one that has got an element back."""
    accounts = [CreditAccount(granted=1, ended=True), CreditAccount(ended=True)]
    assert choose_recalls(accounts, 1, IDLE_CREDIT_S) == [accounts[0]]


def test_a_task_that_is_not_connected_gets_no_credit() -> None:
    waits, other = CreditAccount(disconnected=True), CreditAccount()
    assert top_up([waits, other], 1, 0.0) == [other]
    assert choose_recalls([waits, other], 1, 100.0) == []


def test_credit_that_is_being_recalled_is_not_raised_and_still_counts() -> None:
    recalled, other = CreditAccount(granted=2, recalling=True), CreditAccount()
    assert top_up([recalled, other], 3, 0.0) == [other]
    assert (recalled.granted, other.granted) == (2, 1)


def test_without_a_limit_credit_never_runs_out() -> None:
    [account] = accounts = [CreditAccount()]
    assert top_up(accounts, None, 0.0) == accounts
    granted = account.granted
    assert top_up(accounts, None, 0.0) == []
    account.received = account.dequeued = granted - 1000
    assert top_up(accounts, None, 0.0) == accounts
    assert account.granted > granted + 1_000_000


def test_no_task_is_no_trouble() -> None:
    assert top_up([], 5, 0.0) == []
    assert choose_recalls([], 5, 0.0) == []


# ---- recalls


def test_credit_that_lies_unused_moves_to_a_task_that_has_none() -> None:
    idle, hungry = CreditAccount(granted=1), CreditAccount()
    assert choose_recalls([idle, hungry], 1, IDLE_CREDIT_S - 0.001) == []
    assert choose_recalls([idle, hungry], 1, IDLE_CREDIT_S) == [idle]


def test_the_one_that_has_been_idle_longest_gives_first() -> None:
    accounts = [CreditAccount(granted=1, active_at=0.2), CreditAccount(granted=1, active_at=0.1), CreditAccount()]
    assert choose_recalls(accounts, 2, 1.0) == [accounts[1]]


@pytest.mark.parametrize(
    "accounts",
    [
        [CreditAccount(granted=1), CreditAccount(granted=1)],
        [CreditAccount(granted=1, received=1), CreditAccount()],
        [CreditAccount(granted=1), CreditAccount(ended=True)],
        [CreditAccount(granted=1), CreditAccount(granted=1, recalling=True), CreditAccount()],
    ],
    ids=["all have some", "what it had was used", "the other has ended", "one recall is on its way"],
)
def test_nothing_is_recalled_without_need(accounts: list[CreditAccount]) -> None:
    assert choose_recalls(accounts, 2, 100.0) == []


def test_a_task_whose_connection_broke_lets_its_credit_go_and_gets_none_until_it_is_open_again() -> None:
    broken, other = CreditAccount(granted=5, received=2, dequeued=1, recalling=True), CreditAccount()
    broken.disconnect()
    assert (broken.outstanding, broken.unused, broken.recalling) == (1, 0, False)
    assert top_up([broken, other], 5, 0.0) == [other]
    assert other.granted == 4
    assert choose_recalls([broken, CreditAccount(granted=1)], 5, 100.0) == []
    broken.disconnected = False
    other.received = other.dequeued = 4
    assert broken in top_up([broken, other], 5, 0.0)

"""The allowance of a reader is kept, shared evenly, and moves to where it is of use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.client.credit import IDLE_S, Account, to_recall, top_up


def test_each_task_gets_an_even_share() -> None:
    accounts = [Account(), Account(), Account()]
    top_up(accounts, 12, 0.0)
    assert [account.granted for account in accounts] == [4, 4, 4]


def test_with_fewer_credits_than_tasks_some_wait() -> None:
    accounts = [Account(), Account(), Account()]
    top_up(accounts, 2, 0.0)
    assert sorted(account.granted for account in accounts) == [0, 1, 1]


def test_what_was_consumed_is_granted_again_in_steps_of_half_a_share() -> None:
    (account,) = accounts = [Account()]
    top_up(accounts, 10, 0.0)
    account.received, account.consumed = 10, 4
    assert top_up(accounts, 10, 1.0) == [], "four of ten are not worth a message"
    account.consumed = 5
    assert top_up(accounts, 10, 1.0) == [account]
    assert account.granted == 15


def test_without_a_limit_a_grant_is_renewed_long_before_it_is_used_up() -> None:
    (account,) = accounts = [Account()]
    assert top_up(accounts, None, 0.0) == [account]
    first = account.granted
    assert top_up(accounts, None, 0.0) == []
    account.received = account.consumed = first // 2 + 1
    assert top_up(accounts, None, 0.0) == [account]
    assert account.granted > first


def test_idle_credit_is_recalled_for_a_task_that_has_none() -> None:
    idle, starving = accounts = [Account(), Account()]
    top_up(accounts, 1, 0.0)
    assert (idle.granted, starving.granted) == (1, 0)
    assert to_recall(accounts, IDLE_S / 2) is None, "it may still be used"
    assert to_recall(accounts, IDLE_S) is idle


def test_credit_is_not_recalled_while_every_task_has_some() -> None:
    accounts = [Account(), Account()]
    top_up(accounts, 4, 0.0)
    assert to_recall(accounts, 10.0) is None


def test_recalled_credit_goes_to_the_task_that_has_waited_longest() -> None:
    idle, starving, later = accounts = [Account(), Account(), Account(active_at=1.0)]
    top_up(accounts, 1, 2.0)
    assert idle.granted == 1
    idle.granted, idle.recalling = 0, False  # as the answer to a recall leaves it
    assert top_up(accounts, 1, 3.0) == [starving]
    assert later.granted == 0


def test_what_an_ended_task_had_is_free_for_the_others() -> None:
    ended, other = accounts = [Account(), Account()]
    top_up(accounts, 4, 0.0)
    ended.ended = True
    top_up(accounts, 4, 1.0)
    assert other.granted == 4


@pytest.mark.parametrize("limit", [1, 2, 5, 64])
@given(data=st.data())
def test_the_limit_holds_whatever_happens(limit: int, data: st.DataObject) -> None:
    accounts = [Account() for _ in range(data.draw(st.integers(1, 6)))]
    now = 0.0
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.floats(0, 0.1))
        account = data.draw(st.sampled_from(accounts))
        event = data.draw(st.sampled_from(["deliver", "consume", "end", "recall"]))
        if event == "deliver" and not account.ended:
            account.received += data.draw(st.integers(0, account.granted - account.received))
        elif event == "consume":
            account.consumed += data.draw(st.integers(0, account.received - account.consumed))
        elif event == "end":
            account.ended = True
        elif (idle := to_recall(accounts, now)) is not None:
            idle.granted = idle.received
        top_up(accounts, limit, now)
        assert sum(account.outstanding for account in accounts) <= limit
        assert all(account.consumed <= account.received <= account.granted for account in accounts)

"""Flow control: divides a reader's credit over its tasks. A pure core: counters and a time in, grants and recalls out.

Theory of operation. `max_outstanding_requests` bounds the elements that are granted, in flight or buffered, over all
tasks together. Each task is granted an even share. If there is less credit than tasks, credit moves: credit that stays
unused for `IDLE_CREDIT_S` is recalled and granted to the task that has waited longest.

A task that has ended gets no credit. But until the iteration ends, it may still get elements that another client
returns or loses, and a task whose credit is used up could not deliver them. So once all tasks have ended, each gets
credit for its share again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

IDLE_CREDIT_S = 0.05
"""How long credit may stay unused while another task has none."""

_UNLIMITED = 1 << 30


class CreditAccount(msgspec.Struct):
    """Counters of one task, in elements of this read. They are cumulative, so late or repeated messages do no harm."""

    granted: int = 0
    received: int = 0
    dequeued: int = 0
    """Elements that left this reader's buffer; operations downstream may still hold some of them."""
    consumed: int = 0
    ended: bool = False
    recalling: bool = False
    disconnected: bool = False
    """Whether the connection broke and was not reopened yet."""
    active_at: float = 0.0
    """Time of the last delivery or grant, in seconds."""

    @property
    def outstanding(self) -> int:
        """Elements that count against `max_outstanding_requests`."""
        return (self.received if self.ended else self.granted) - self.dequeued

    @property
    def unused(self) -> int:
        """Credit that the worker has not used, as far as is known here."""
        return 0 if self.ended else self.granted - self.received

    def reclaim_unused(self) -> None:
        """Take back all unused credit at once: the connection is gone, so nothing can use it or answer a recall."""
        self.granted = self.received
        self.recalling = False


def top_up(accounts: Sequence[CreditAccount], limit: int | None, now: float) -> list[CreditAccount]:
    """Grant as much credit as the limit allows; returns the accounts whose grant grew.

    Args:
        accounts: The accounts of all tasks; changed in place.
        limit: `max_outstanding_requests`; None for unlimited.
        now: The present time in seconds.
    """
    open_ones = [account for account in accounts if not (account.ended or account.recalling or account.disconnected)]
    if limit is None:
        low = [account for account in open_ones if account.granted - account.dequeued < _UNLIMITED // 2]
        for account in low:
            account.granted = account.dequeued + _UNLIMITED
        return low
    if all(account.ended for account in accounts):
        return _grant_after_end(accounts, limit)
    free = limit - sum(account.outstanding for account in accounts)
    share = max(1, limit // max(1, len(open_ones)))
    grown = []
    # Tasks without credit come first, the longest waiting before the others: credit rotates if it is scarce.
    for account in sorted(open_ones, key=lambda account: (account.outstanding > 0, account.active_at)):
        more = min(free, share - account.outstanding)
        # In steps of half a share, so that not every element costs a message.
        if more > 0 and (account.outstanding == 0 or 2 * more >= share):
            free -= more
            account.granted += more
            account.active_at = now
            grown.append(account)
    return grown


def _grant_after_end(accounts: Sequence[CreditAccount], limit: int) -> list[CreditAccount]:
    """Grant each ended task a share beyond what arrived; returns the accounts whose grant grew."""
    ended = [account for account in accounts if account.ended]
    share = max(1, limit // max(1, len(ended)))
    grown = [account for account in ended if account.granted < account.received + share]
    for account in grown:
        account.granted = account.received + share
    return grown


def choose_recall(accounts: Iterable[CreditAccount], now: float) -> CreditAccount | None:
    """Return the account whose unused credit should move to a task that has none; None if no credit needs to move."""
    open_ones = [account for account in accounts if not (account.ended or account.disconnected)]
    if any(account.recalling for account in open_ones) or all(account.outstanding for account in open_ones):
        return None
    idle = [account for account in open_ones if account.unused and now - account.active_at >= IDLE_CREDIT_S]
    return min(idle, key=lambda account: account.active_at, default=None)

"""Flow control: divides a reader's credit over its tasks. A pure core: counters and a time in, grants and recalls out.

Theory of operation. `max_outstanding_requests` bounds the elements that are granted, in flight or buffered, over all
tasks together. Only `top_up` grants, and never more than is free. What is granted is free again when an element leaves
the buffer, when the connection is gone, or when the worker has answered a recall: until then it may send elements. That
a task has ended does not change its credit, for until the iteration ends, another client may return or lose elements
that the task then delivers.

Each open task is granted an even share. If there is less credit than tasks, credit moves: credit that stays unused for
`IDLE_CREDIT_S` is recalled and granted to the task that has waited longest.

A task that has ended gives its unused credit to the open ones, by a recall. It keeps one element if there is enough
credit for all: a task without credit could not deliver what another client returns. While no task is open, the ended
ones share the credit as open ones do.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

IDLE_CREDIT_S = 0.05
"""How long credit may stay unused while another task has none."""

_UNLIMITED = 1 << 30


class CreditAccount(msgspec.Struct, eq=False):
    """Counters of one task, in elements of this read. They are cumulative, so late or repeated messages do no harm."""

    granted: int = 0
    received: int = 0
    dequeued: int = 0
    """Elements that left this reader's buffer; operations downstream may still hold some of them."""
    consumed: int = 0
    ended: bool = False
    recalling: bool = False
    disconnected: bool = False
    """Whether the task is not being read: its connection broke, or it waits for a worker."""
    active_at: float = 0.0
    """Time of the last delivery or grant, in seconds."""

    @property
    def outstanding(self) -> int:
        """Elements that count against `max_outstanding_requests`."""
        return self.granted - self.dequeued

    @property
    def unused(self) -> int:
        """Credit that the worker has not used, as far as is known here."""
        return self.granted - self.received

    def disconnect(self) -> None:
        """Take back all unused credit at once: the connection is gone, so nothing can use it or answer a recall."""
        self.granted = self.received
        self.recalling, self.disconnected = False, True


def top_up(accounts: Sequence[CreditAccount], limit: int | None, now: float) -> list[CreditAccount]:
    """Grant as much credit as the limit allows; returns the accounts whose grant grew.

    Args:
        accounts: The accounts of all tasks; changed in place.
        limit: `max_outstanding_requests`; None for unlimited.
        now: The present time in seconds.
    """
    shares = _shares(accounts, limit)
    takers = [(account, share) for account, share in shares if share and not account.recalling]
    if limit is None:
        low = [account for account, _ in takers if account.outstanding < _UNLIMITED // 2]
        for account in low:
            account.granted = account.dequeued + _UNLIMITED
        return low
    free = limit - sum(account.outstanding for account in accounts)
    grown = []
    # Tasks without credit come first, the longest waiting before the others: credit rotates if it is scarce.
    for account, share in sorted(takers, key=lambda taker: (taker[0].outstanding > 0, taker[0].active_at)):
        more = min(free, share - account.outstanding)
        # In steps of half a share, so that not every element costs a message.
        if more > 0 and (account.outstanding == 0 or 2 * more >= share):
            free -= more
            account.granted += more
            account.active_at = now
            grown.append(account)
    return grown


def choose_recalls(accounts: Sequence[CreditAccount], limit: int, now: float) -> list[CreditAccount]:
    """Return the accounts whose unused credit should move to others: of ended tasks, and at most one other."""
    takers = _takers(accounts)
    excess = [
        account
        for account, share in _shares(accounts, limit)
        if account.ended != takers[0].ended and account.unused > share
    ]
    recalls = [account for account in excess if not account.recalling]
    if any(account.recalling for account in takers) or not is_starving(accounts):
        return recalls
    idle = [account for account in takers if account.unused and now - account.active_at >= IDLE_CREDIT_S]
    return recalls + sorted(idle, key=lambda account: account.active_at)[:1]


def is_starving(accounts: Sequence[CreditAccount]) -> bool:
    """Whether a task that should have credit has none."""
    return any(account.outstanding == 0 for account in _takers(accounts))


def _takers(accounts: Sequence[CreditAccount]) -> list[CreditAccount]:
    """The accounts among which credit moves: those of open tasks; while there is none, those of ended tasks."""
    connected = [account for account in accounts if not account.disconnected]
    return [account for account in connected if not account.ended] or connected


def _shares(accounts: Sequence[CreditAccount], limit: int | None) -> list[tuple[CreditAccount, int]]:
    """The share of each connected task, in elements."""
    limit = _UNLIMITED if limit is None else limit
    connected = [account for account in accounts if not account.disconnected]
    takers = _takers(connected)
    others = len(connected) - len(takers)
    kept = int(len(connected) <= limit and 2 * others <= limit)
    share = max(1, (limit - kept * others) // max(1, len(takers)))
    return [(account, share if account.ended == takers[0].ended else kept) for account in connected]

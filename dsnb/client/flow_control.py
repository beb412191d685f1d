"""How a reader's allowance is shared over its tasks. A pure core: counters and a time in, grants and recalls out.

`max_outstanding_requests` bounds what is granted, on its way or buffered, over all tasks together. Each task is topped
up to an even share. With fewer credits than tasks the credit moves: one that lies unused at a task for a while is
recalled, and given to the task that has waited longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsnb.dataclass import dataclass

IDLE_CREDIT_S = 0.05
"""How long a credit may lie unused while another task has none."""

_UNLIMITED = 1 << 30


@dataclass(slots=True)
class CreditAccount:
    """One task's counters, in elements of this reading; cumulative."""

    granted: int = 0
    received: int = 0
    dequeued: int = 0
    """Those that left this reader's buffer; its operations may hold some of them."""
    consumed: int = 0
    ended: bool = False
    recalling: bool = False
    disconnected: bool = False
    """Its connection broke, and it is not open again."""
    active_at: float = 0.0
    """When it last delivered or was granted something."""

    @property
    def outstanding(self) -> int:
        """Elements that count against the allowance."""
        return (self.received if self.ended else self.granted) - self.dequeued

    @property
    def unused(self) -> int:
        """Credit that the worker has not used, as far as is known here."""
        return 0 if self.ended else self.granted - self.received

    def reclaim_unused(self) -> None:
        """Take all unused credit back at once: nobody is there who could use it, or answer a recall."""
        self.granted = self.received
        self.recalling = False


def top_up(accounts: Sequence[CreditAccount], limit: int | None, now: float) -> list[CreditAccount]:
    """Grant what the limit allows; returns the accounts whose grant has grown.

    Args:
        accounts: All tasks' accounts; changed in place.
        limit: The allowance over all of them; None for as much as they like.
        now: The present time in seconds.
    """
    open_ones = [account for account in accounts if not (account.ended or account.recalling or account.disconnected)]
    if limit is None:
        low = [account for account in open_ones if account.granted - account.dequeued < _UNLIMITED // 2]
        for account in low:
            account.granted = account.dequeued + _UNLIMITED
        return low
    free = limit - sum(account.outstanding for account in accounts)
    share = max(1, limit // max(1, len(open_ones)))
    grown = []
    # The one that has waited longest first: so credit goes round when there is less of it than tasks.
    for account in sorted(open_ones, key=lambda account: (account.outstanding > 0, account.active_at)):
        more = min(free, share - account.outstanding)
        # In steps of half a share, so that not each element costs a message.
        if more > 0 and (account.outstanding == 0 or 2 * more >= share):
            free -= more
            account.granted += more
            account.active_at = now
            grown.append(account)
    return grown


def choose_recall(accounts: Iterable[CreditAccount], now: float) -> CreditAccount | None:
    """The account whose unused credit should move to a task that has none; None where all is well."""
    open_ones = [account for account in accounts if not (account.ended or account.disconnected)]
    if any(account.recalling for account in open_ones) or all(account.outstanding for account in open_ones):
        return None
    idle = [account for account in open_ones if account.unused and now - account.active_at >= IDLE_CREDIT_S]
    return min(idle, key=lambda account: account.active_at, default=None)

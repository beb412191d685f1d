"""The tasks of one reader: opened as the dispatcher names them, given credit, closed when they are gone.

One whose connection breaks is opened again with what it had.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsnb import errors
from dsnb.client import notices
from dsnb.client.credit import IDLE_S, to_recall, top_up
from dsnb.client.inbox import Hold, Inbox, TaskSink
from dsnb.client.options import ReadOptions
from dsnb.client.transfers import not_available, transfer_protocol, way_to
from dsnb.elements.compression import installed
from dsnb.errors import (
    DataLossError,
    DataLossWarning,
    DeadlineExceededError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.monitor.words import plural
from dsnb.wire.channel import Key
from dsnb.wire.messages import ClientUpdate, EndedTask, Loss, TaskHolding, TaskInfo
from dsnb.wire.transfer import local
from dsnb.wire.transfer.handover import FIRST_GRANT, Opening, Reading
from dsnb.wire.transfer.shared_memory.line import SharedMemoryRefused

BUFFER_BYTES = 16 << 20
"""Bytes on their way or unconsumed, over all tasks of one reader."""

_TELL_BYTES = 4 << 20
"""Consumed bytes that a worker on this host is told of together. More would save messages, but what is not told of
takes slabs, and the fewer there are, the more of them stay in the processor's cache."""

ATTEMPTS = 30
"""How often to try a worker that the dispatcher names and that was never heard of here; half a minute."""

_REFUSED_ATTEMPTS = 7
"""How often to try shared memory that was asked for and is not there: for 3 s, in which a dead worker is missed."""

_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)

_MOST_DAMAGED = 5
"""Messages in a row that may arrive damaged before a task is given up: then the connection is not to blame."""


class TaskTable:
    """Holds on all tasks of one iteration that this reader knows. Used by the reader's thread alone.

    Args:
        inbox: Where the tasks deliver.
        client_id: This reader.
        options: What was asked for.
        token: For the workers.
        instance: The service's, of which workers must be.
        before: What this reader consumed before it was given up and came back.
        client_before: Who it was then.
    """

    def __init__(
        self,
        inbox: Inbox,
        client_id: str,
        options: ReadOptions,
        token: str,
        instance: str = "",
        before: tuple[TaskHolding, ...] = (),
        client_before: str = "",
    ) -> None:
        self._before = {holding.task_id: holding for holding in before}
        self._client_before = client_before
        self.lost = 0
        self.last_loss = ""
        self._inbox = inbox
        self._client_id = client_id
        self._options = options
        self._token = token
        self._instance = instance
        self._holds: dict[str, Hold] = {}
        self._dropped: list[Hold] = []
        """Those of tasks that were given up while this reader had elements of them, which nobody else has."""
        self._sinks: dict[str, TaskSink] = {}
        self._closed = False
        self._finished = False
        transfer_protocol("data_transfer_protocol", options.protocol)  # the dataset may come from another system

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def any_open(self) -> bool:
        """Whether any task is being read."""
        return any(hold.reading is not None for hold in self._holds.values())

    @property
    def all_ended(self) -> bool:
        """Whether each known task has delivered everything; where none is known, whether the pass is over."""
        return (bool(self._holds) or self._finished) and all(hold.account.ended for hold in self._holds.values())

    @property
    def any_worker(self) -> bool:
        """Whether any task has a worker at present."""
        return any(not hold.info.halted for hold in self._holds.values())

    @property
    def any_given_up(self) -> bool:
        """Whether something will not come that others may still read."""
        return any(hold.given_up for hold in self._holds.values())

    def channels(self) -> set[Key]:
        """The connections over which workers are read."""
        infos = [hold.info for hold in self._holds.values() if hold.transfer == "grpc"]
        return {(info.address, self._token, info.worker_uid) for info in infos}

    def ended_tasks(self) -> tuple[EndedTask, ...]:
        """The tasks that told this reader of their end."""
        return tuple(
            EndedTask(task_id=task_id, incarnation=hold.info.incarnation, received=hold.account.received)
            for task_id, hold in self._holds.items()
            if hold.account.ended and not hold.given_up
        )

    def consumed_counts(self) -> dict[str, int]:
        """How many elements of each task this reader consumed."""
        return {hold.info.task_id: hold.account.consumed for hold in self._holds.values()}

    def consumed_holdings(self, looked_up: Mapping[str, int] | None = None) -> tuple[TaskHolding, ...]:
        """What this reader consumed of each task.

        Args:
            looked_up: How many elements of each its worker knows of, where it can look that up.
        """
        with self._inbox.lock:
            return tuple(self._consumed_of(hold, looked_up or {}) for hold in self._holds.values())

    def held_alone(self) -> tuple[TaskHolding, ...]:
        """What it has and did not consume of tasks that were given up: nobody else gets it."""
        with self._inbox.lock:
            dropped = [hold.holding() for hold in self._dropped if hold.unconsumed]
        return tuple(replace(holding, consumed=(), untold=0) for holding in dropped)

    @staticmethod
    def _consumed_of(hold: Hold, looked_up: Mapping[str, int]) -> TaskHolding:
        holding, consumed = hold.holding(), hold.account.consumed
        late = consumed - looked_up.get(holding.task_id, consumed)
        return replace(holding, received=consumed, held=(), untold=max(holding.untold, late))

    def buffered(self) -> int:
        """Elements that this reader has and did not consume, of tasks that others read as well."""
        return sum(hold.unconsumed for hold in self._holds.values())

    def buffered_alone(self) -> int:
        """Elements that it has and did not consume, of tasks that were given up: nobody else gets them."""
        return sum(hold.unconsumed for hold in self._dropped)

    def fence(self, halted: Sequence[TaskInfo]) -> tuple[TaskHolding, ...]:
        """Take nothing more of tasks that are being reassigned; what this reader has of each. From any thread.

        Once the table is closed there is nothing to report: the reader's last report says what it consumed, and one
        that is sent before it must not say that this reader has nothing.
        """
        holdings = []
        with self._inbox.lock:
            for info in () if self._closed else halted:
                hold, sink = self._holds.get(info.task_id), self._sinks.get(info.task_id)
                if sink is not None:
                    sink.current = False
                known = hold.holding() if hold is not None else TaskHolding(task_id=info.task_id)
                holdings.append(replace(known, incarnation=info.incarnation))
        return tuple(holdings)

    def received_of_ended(self) -> dict[str, int]:
        """How many elements came of each task that told this reader of its end. From any thread."""
        holds = [hold for hold in list(self._holds.values()) if hold.account.ended and not hold.given_up]
        return {hold.info.task_id: hold.account.received for hold in holds}

    # ---- what the dispatcher says

    def follow(self, updates: Sequence[ClientUpdate]) -> None:
        """Take news in: new tasks are opened, gone ones closed, losses announced.

        The announcements come last: where warnings are errors, they must not keep the rest from happening.
        """
        held = set(self._holds)
        for update in updates:
            if update.state:
                self.set_tasks(update.tasks, finished=update.finished)
        losses = [loss for update in updates for loss in update.losses if self._concerns(loss, held)]
        self.lost += sum(loss.elements if loss.elements >= 0 else loss.splits for loss in losses)
        for loss in losses:
            self._announce(loss)
        if any(update.losing for update in updates):
            notices.warn_losing(self._options)

    def _concerns(self, loss: Loss, held: set[str]) -> bool:
        """Whether this reader is one of those that elements did not reach."""
        if loss.trainer_id not in ("", self._options.trainer_id):
            return False
        return not self._options.local or loss.task_id in held or loss.task_id in self._holds

    def set_tasks(self, tasks: tuple[TaskInfo, ...], *, finished: bool = False) -> None:
        """Read these tasks and no others; of them only local workers' where that was asked for.

        Args:
            tasks: All that the pass has now.
            finished: Whether the pass is over; the tasks of workers that left since are not among `tasks`.
        """
        self._finished = finished
        named = {task.task_id: task for task in tasks if self._may_read(task)}
        for task_id in self._holds.keys() - named.keys():
            self._close(task_id)
        share = BUFFER_BYTES // max(1, len(named))
        for task_id, info in named.items():
            hold = self._holds.get(task_id)
            if hold is None:
                self._holds[task_id] = Hold(self._inbox, info, share)
            elif hold.info.incarnation != info.incarnation or hold.info.worker_uid != info.worker_uid:
                self._disconnect(hold)
                if hold.info.sequence != info.sequence:
                    hold.received.clear()
                hold.info = info
                hold.attempts, hold.retry_at, hold.refused = 0, 0.0, ""
                hold.account.ended = hold.given_up = False  # what comes now is another worker's
        self._inbox.follow(list(self._holds.values()))

    def _may_read(self, task: TaskInfo) -> bool:
        """Whether a worker has it that this reader reads from, or will perhaps."""
        waits = task.halted and task.task_id in self._holds
        return not self._options.local or waits or local.find(task.worker_uid) is not None

    def _announce(self, loss: Loss) -> None:
        if loss.elements > 0:
            what = f"{plural(loss.elements, 'element')} of its part did not arrive and will not come"
        elif loss.splits and loss.elements:
            what = f"{plural(loss.splits, 'split')} did not arrive whole and will not come"
        else:
            what = "" if loss.again else "the rest of its part will not come"
        if loss.again:
            what = f"{what}; its part begins again".removeprefix("; ")
        job = f" (job {self._options.job_name!r})" if self._options.job_name else ""
        self.last_loss = f"worker {loss.worker} {loss.reason}{job}: {what}"
        self.warn(f"{self.last_loss}; reading goes on with the others")

    def warn(self, text: str) -> None:
        """Announce what is lost."""
        errors.warn(text, DataLossWarning)

    # ---- housekeeping, whenever the reader waits

    def tend(self, now: float) -> float:
        """Open what should be open, move credit; returns when to look again at the latest."""
        due = now + 1.0
        for hold in self._holds.values():
            if hold.reading is None and not hold.account.ended and not hold.info.halted:
                if hold.retry_at <= now:
                    self._open(hold, now)
                due = min(due, hold.retry_at or due)
        return min(due, self._move_credit(now))

    def _open(self, hold: Hold, now: float) -> None:
        hold.account.away = False
        self._top_up(now, quietly=hold)
        sink = self._sinks[hold.info.task_id] = hold.sink()
        try:
            hold.reading = self._begin(hold, sink)
        except (UnavailableError, NotFoundError) as error:
            lasting = self._broken(hold, error)
            if lasting is not None:
                raise lasting from None
            if not hold.retry_at:  # there is another way, to be taken at once
                self._open(hold, now)

    def _begin(self, hold: Hold, sink: TaskSink) -> Reading:
        account = hold.account
        protocol = self._options.protocol
        checked = self._options.checksum
        refused = hold.refused or ("checksum=True: only messages of gRPC carry checksums" if checked else "")
        endpoint, link = way_to(hold.info, protocol, self._token, before=hold.transfer, refused=refused)
        if checked and link.transfer == "local":
            link.why += "; checksum=True has nothing to check: references are passed"
        hold.transfer = link.transfer
        before = self._before.pop(hold.info.task_id, TaskHolding())
        opening = Opening(
            task_id=hold.info.task_id,
            client_id=self._client_id,
            trainer_id=self._options.trainer_id,
            manner=self._options.manner,
            max_bytes=hold.max_bytes,
            granted=account.granted,
            received=account.received,
            consumed=account.consumed,
            instance=self._instance,
            compression=self._options.compression,
            codecs=installed(),
            checksum=self._options.checksum,
            had=tuple(number for part in before.consumed for number in (part.first, part.end)),
            had_count=before.received,
            client_before=self._client_before,
            incarnation=hold.info.incarnation,
            link=link,
        )
        reading = endpoint.open(opening, sink)
        hold.consumed_cell = reading.consumed_cell
        if hold.consumed_cell is not None:
            hold.consumed_cell[0] = account.consumed
        return reading

    def broken(self, sink: TaskSink, error: Exception) -> Exception | None:
        """A reading broke: try again later if it may heal. Else the error that the reader's user must hear of."""
        if self._sinks.get(sink.hold.info.task_id) is not sink:
            return None  # another reading has taken its place since
        return self._broken(sink.hold, error)

    def _broken(self, hold: Hold, error: Exception) -> Exception | None:
        hold.reading = hold.consumed_cell = None
        with self._inbox.lock:
            hold.account.let_go()
            hold.account.away = True
        if isinstance(error, ResourceExhaustedError | DeadlineExceededError):
            hold.retry_at = math.inf  # it may heal, but nobody knows when
            return error
        if isinstance(error, DataLossError) and hold.damaged < _MOST_DAMAGED:
            hold.damaged += 1  # the worker still has what did not arrive
            hold.retry_at = 0.0
            return None
        if isinstance(error, SharedMemoryRefused):
            if not self._options.protocol:
                hold.refused, hold.retry_at = error.what, 0.0
                return None
            if hold.attempts >= _REFUSED_ATTEMPTS and not hold.account.received:  # it never worked
                return self._give_up(hold, not_available("shared_memory", error.what))
        hold.attempts += 1
        if not isinstance(error, (UnavailableError, NotFoundError)):
            return self._give_up(hold, error)
        if hold.attempts >= ATTEMPTS and not hold.account.received:
            return self._give_up(hold, _unreachable(hold, error))
        hold.retry_at = time.monotonic() + _RETRY_S[min(hold.attempts, len(_RETRY_S)) - 1]
        return None

    def _give_up(self, hold: Hold, error: Exception) -> Exception:
        hold.account.ended = hold.given_up = True
        return error

    def try_refused(self) -> None:
        """Ask again where this reader was refused: its user has heard of it and wants more all the same."""
        for hold in self._holds.values():
            if hold.retry_at == math.inf:
                hold.retry_at = 0.0

    def _move_credit(self, now: float) -> float:
        with self._inbox.lock:
            accounts = [hold.account for hold in self._holds.values()]
            recall = to_recall(accounts, now) if self._options.max_outstanding_requests else None
            if recall is not None:
                recall.recalling = True
        for hold in self._holds.values():
            if hold.account is recall and hold.reading is not None:
                hold.reading.recall()
        starving = any(account.outstanding == 0 and not account.ended for account in accounts)
        return now + (IDLE_S if starving and self._options.max_outstanding_requests else 1.0)

    def _top_up(self, now: float, quietly: Hold | None = None) -> None:
        with self._inbox.lock:
            grown = top_up([hold.account for hold in self._holds.values()], self._options.max_outstanding_requests, now)
        for hold in self._holds.values():
            if hold is not quietly and hold.account in grown and hold.reading is not None:
                self._tell(hold)

    # ---- what the reader consumed

    def consumed(self, hold: Hold, count: int) -> None:
        """Count elements as consumed: they do not come again if this process dies."""
        hold.account.consumed += count
        cell = hold.consumed_cell
        if cell is not None:
            cell[0] = hold.account.consumed

    def taken(self, hold: Hold, count: int, nbytes: int) -> None:
        """Count elements that left the buffer, and tell the worker once they add up to enough bytes."""
        hold.account.taken += count
        hold.untold_bytes += nbytes
        if hold.untold_bytes >= self._bearable(hold):
            self._tell(hold)

    def _bearable(self, hold: Hold) -> int:
        """Bytes that may be consumed without the worker's knowing; it may send more as long as they are not all."""
        return min(hold.max_bytes // 2, _TELL_BYTES) if self._may_wait_for(hold) else hold.max_bytes // 4

    def _may_wait_for(self, hold: Hold) -> bool:
        limited = self._options.max_outstanding_requests or self._options.trainer_id
        return hold.transfer == "shared_memory" and not limited and not self._at_fair_share(hold)

    @staticmethod
    def _at_fair_share(hold: Hold) -> bool:
        """Whether the worker may hold elements back until it learns what was consumed; see `worker.window`."""
        return hold.account.received - hold.told_taken >= FIRST_GRANT + hold.told_taken

    def settle(self, now: float) -> None:
        """Grant what has become free and tell all workers what was consumed."""
        self._top_up(now)
        self.tell_consumed()

    @property
    def may_wait(self) -> bool:
        """Whether more comes although workers do not know yet what was consumed, and each word to them costs a waking.

        A worker that shares a cache, or was granted a few elements, may wait for just that.
        """
        return all(map(self._may_wait_for, self._holds.values()))

    def starving(self) -> None:
        """The reader has nothing left and waits: let tasks have more on their way that had all they may."""
        for hold in self._holds.values():
            if hold.was_full:
                hold.was_full = False
                hold.max_bytes = min(self._most_bytes(hold), 2 * hold.max_bytes)

    def _most_bytes(self, hold: Hold) -> int:
        """A task's share; over a stream that nothing else fills, enough for a second large element to be on its way."""
        alone = len(self._holds) == 1 and hold.transfer == "grpc"
        return max(hold.share_bytes, hold.newest_bytes + 1) if alone else hold.share_bytes

    def tell_consumed(self, *, timely: bool = False) -> None:
        """Tell all workers what was consumed. From any thread: the counters only grow.

        Args:
            timely: Whether to leave out those that look it up themselves if this process dies.
        """
        for hold in list(self._holds.values()):
            untold = hold.told < hold.account.consumed and not (timely and hold.consumed_cell is not None)
            # What operations hold is not consumed, and a worker that does not know of it would not fill a large batch.
            held = hold.told_taken < hold.account.taken and not timely
            if untold or held:
                self._tell(hold, grant=False)

    def _tell(self, hold: Hold, *, grant: bool = True) -> None:
        account = hold.account
        hold.told, hold.told_taken = account.consumed, account.taken
        freed, hold.untold_bytes = hold.untold_bytes, 0
        with self._inbox.lock:
            hold.buffered_bytes -= freed
        if hold.reading is not None:
            # Not while credit is on its way back: what is granted only grows there, and would be given out again.
            granted = account.granted if grant and not account.recalling else 0
            hold.reading.credit(granted, account.consumed, hold.max_bytes, account.received, account.taken)

    # ---- the end

    def close(self) -> None:
        """Leave all tasks."""
        with self._inbox.lock:
            self._closed = True
        for task_id in list(self._holds):
            self._close(task_id)

    def _close(self, task_id: str) -> None:
        hold = self._holds.pop(task_id)
        self._disconnect(hold)
        if hold.unconsumed:
            self._dropped.append(hold)

    def _disconnect(self, hold: Hold) -> None:
        with self._inbox.lock:
            sink = self._sinks.pop(hold.info.task_id, None)
            if sink is not None:
                sink.current = False
            hold.account.let_go()
        reading, hold.reading, hold.consumed_cell = hold.reading, None, None
        if reading is not None:
            reading.leave(hold.account.consumed)


def _unreachable(hold: Hold, error: Exception) -> UnavailableError:
    return UnavailableError(
        f"worker {hold.info.worker} cannot be reached at {hold.info.address} ({error})",
        did=f"it was tried {hold.attempts} times; its part of the data will not come",
        hint="the dispatcher hears from it, so it runs: is the address that it tells (worker_address) right from here?",
    )

"""All tasks of one reader: opens them as the dispatcher lists them, grants credit, sends acknowledgements, closes them.

A task whose connection breaks is reopened and continues after the elements that had arrived.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from dsnb import errors
from dsnb.client import notices
from dsnb.client.flow_control import IDLE_CREDIT_S, CreditAccount, choose_recalls, is_starving, top_up
from dsnb.client.inbox import Inbox, TaskRead, TaskSink
from dsnb.client.options import ReadOptions
from dsnb.elements.compression import installed_codecs
from dsnb.errors import (
    DataLossError,
    DataLossWarning,
    DeadlineExceededError,
    DsnbError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.monitor.formatting import plural
from dsnb.processes import host_id
from dsnb.storage.failpoints import Failpoint
from dsnb.transfer import local
from dsnb.transfer.protocol import FIRST_GRANT, ReadHandle, TransferRefused
from dsnb.transfer.selection import choose_transfer, transfer_protocol, transfer_unavailable
from dsnb.wire.channel import ChannelKey, open_channel
from dsnb.wire.messages import ClientUpdate, Empty, EndedTask, Loss, ReadRequest, TaskHolding, TaskInfo
from dsnb.wire.methods import PING

BUFFER_BYTES = 16 << 20
"""Limit of bytes in flight or unconsumed, over all tasks of one reader."""

_ACK_BYTES = 4 << 20
"""Most consumed bytes per acknowledgement to a worker on this host. A larger value saves messages, but unacknowledged
elements occupy slabs, and the fewer slabs are in use, the more of them stay in the processor's cache."""

ATTEMPTS = 30
"""Connection attempts to a worker that the dispatcher lists and that this reader never reached: about half a minute.
Then the dispatcher says whether the worker runs; if it is dead, another one gets its tasks."""

_LEAVE_S = 2.0
"""Seconds that workers may take to end reads that this reader has left; then it breaks the connections."""

_PING_TIMEOUT_S = 2.0
_CREDIT = Failpoint("credit send", error=None)

_MAX_REFUSED_ATTEMPTS = 7
"""Attempts to use a transfer that was requested and that the worker refuses or does not offer: about 3 s or more,
enough for the dispatcher to notice that a worker died."""

_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)

_MOST_DAMAGED = 5
"""Consecutive damaged messages after which a read is abandoned: the connection alone does not explain so many."""


class TaskTable:
    """This reader's reads of all tasks of one iteration.

    Methods that open or close tasks are called by one thread at a time: `ReadStage` guards them with a lock, and
    `CoordinatedStage` calls them in its maintenance thread. Methods that say so may be called from any thread.

    Args:
        inbox: Receives what the tasks deliver.
        client_id: Id of this client.
        options: The options of the read.
        token: The token that workers require.
        instance: Id of the service's instance; workers of another instance refuse the read.
        previous_holdings: What this reader consumed before the dispatcher dropped it and it rejoined.
        previous_client_id: Its client id before it rejoined.
        deployment_mode: That of the service.
    """

    def __init__(
        self,
        inbox: Inbox,
        client_id: str,
        options: ReadOptions,
        token: str,
        instance: str = "",
        previous_holdings: tuple[TaskHolding, ...] = (),
        previous_client_id: str = "",
        deployment_mode: str = "",
    ) -> None:
        self.choice = options.worker_choice(deployment_mode)
        """Which workers this reader reads."""
        self._left_out: set[str] = set()
        """Tasks that other readers read, on workers that this reader leaves out."""
        self._taken_in: set[str] = set()
        """Those that it reads nevertheless, because nothing else is left."""
        self._previous_holdings = {holding.task_id: holding for holding in previous_holdings}
        self._previous_client_id = previous_client_id
        self.lost = self.lost_parts = 0
        self.last_loss = ""
        self._inbox = inbox
        self._client_id = client_id
        self._options = options
        self._token = token
        self._instance = instance
        # Never changed in place: the user's thread walks over it while the acknowledgement thread adds and drops tasks.
        self._task_reads: Mapping[str, TaskRead] = {}
        self._dropped_reads: list[TaskRead] = []
        """Reads of tasks that were abandoned while this reader held unconsumed elements of them. No other reader gets
        those."""
        self._sinks: dict[str, TaskSink] = {}
        self._openings = 0
        """How many times a task was opened. A worker ignores an opening that it handles after a later one."""
        self._closed = False
        self._finished = False
        # Checked again: the dataset may have been made on another system.
        transfer_protocol("data_transfer_protocol", options.protocol)

    def __len__(self) -> int:
        return len(self._task_reads)

    @property
    def reads(self) -> Mapping[str, TaskRead]:
        """The reads of all tasks, by task id."""
        return MappingProxyType(self._task_reads)

    @property
    def any_open(self) -> bool:
        """Whether a worker answered on a connection that stands: of a task that has not ended, unless all have.

        An attempt to connect does not count, however long it lasts. From any thread.
        """
        reads, ended = list(self._task_reads.values()), self.all_ended
        return any(hold.is_open and hold.account.ended == ended for hold in reads)

    def worker_answers(self) -> bool:
        """Ask one of the workers that serve this reader; returns whether it answers."""
        serving = [hold.info for hold in self._task_reads.values() if hold.is_open]
        if not serving:
            return False
        asked = random.choice(serving)
        channel = open_channel(asked.address, self._token, asked.worker_uid)
        try:
            channel.call(PING, Empty(), timeout=_PING_TIMEOUT_S)
        except DsnbError:
            return False
        finally:
            channel.close()
        return True

    @property
    def all_ended(self) -> bool:
        """Whether each known task has delivered everything; if no task is known, whether the iteration is over."""
        reads = list(self._task_reads.values())
        return (bool(reads) or self._finished) and all(hold.account.ended for hold in reads)

    @property
    def any_worker(self) -> bool:
        """Whether any task is assigned to a worker."""
        return any(not hold.info.unassigned for hold in self._task_reads.values())

    @property
    def missing_workers(self) -> str:
        """What is missing if there is no worker to read, in the words of an error."""
        if self.choice.local_only:
            return "worker in this process"
        return "worker, other than those tagged COLOCATED," if self._left_out else "worker"

    @property
    def any_given_up(self) -> bool:
        """Whether this reader has abandoned a task that others may still read."""
        return any(hold.given_up for hold in self._task_reads.values())

    def channel_keys(self) -> set[ChannelKey]:
        """The keys of the gRPC channels that reads share."""
        reads = self._task_reads.values()
        infos = [hold.info for hold in reads if hold.transfer is not None and hold.transfer.uses_channel]
        return {(info.address, self._token, info.worker_uid) for info in infos}

    def ended_tasks(self) -> tuple[EndedTask, ...]:
        """The tasks that signalled their end to this reader."""
        return tuple(
            EndedTask(task_id=task_id, incarnation=hold.info.incarnation, received=hold.account.received)
            for task_id, hold in self._task_reads.items()
            if hold.account.ended and not hold.given_up
        )

    def consumed_counts(self) -> dict[str, int]:
        """How many elements of each task this reader has consumed."""
        return {hold.info.task_id: hold.account.consumed for hold in self._task_reads.values()}

    def consumed_holdings(
        self, known_to_workers: Mapping[str, int] | None = None, *, leaving: bool = False
    ) -> tuple[TaskHolding, ...]:
        """What this reader has consumed of each task.

        Args:
            known_to_workers: For each task whose worker can read the count from the shared page: the count that it
                read.
            leaving: Whether to add what this reader holds of tasks without a worker. Such a task may be given up
                already, and then no other reader gets that.
        """
        with self._inbox.lock:
            return tuple(
                self._consumed_holding(hold, known_to_workers or {}, keeps_held=leaving and hold.info.unassigned)
                for hold in self._task_reads.values()
            )

    def orphaned_holdings(self) -> tuple[TaskHolding, ...]:
        """Unconsumed elements of abandoned tasks. No other reader gets them."""
        with self._inbox.lock:
            dropped = [hold.holding() for hold in self._dropped_reads if hold.unconsumed]
        return tuple(replace(holding, consumed=(), unacked=0) for holding in dropped)

    @staticmethod
    def _consumed_holding(task_read: TaskRead, known_to_workers: Mapping[str, int], *, keeps_held: bool) -> TaskHolding:
        holding, consumed = task_read.holding(), task_read.account.consumed
        late = consumed - known_to_workers.get(holding.task_id, consumed)
        held = holding.held if keeps_held else ()
        return replace(holding, received=consumed, held=held, unacked=max(holding.unacked, late))

    def buffered_count(self) -> int:
        """Unconsumed elements in this reader's buffer, of tasks that other readers read as well."""
        return sum(hold.unconsumed for hold in self._task_reads.values())

    def orphaned_count(self) -> int:
        """The number of unconsumed elements of abandoned tasks. No other reader gets them."""
        return sum(hold.unconsumed for hold in self._dropped_reads)

    def fence(self, halted: Sequence[TaskInfo]) -> tuple[TaskHolding, ...]:
        """Stop taking elements of tasks that are being reassigned; return what this reader has of each.

        From any thread.

        A closed table returns nothing. The reader's final report says what it consumed, and an earlier report must not
        say that this reader holds nothing.
        """
        holdings = []
        with self._inbox.lock:
            for info in () if self._closed else halted:
                hold, sink = self._task_reads.get(info.task_id), self._sinks.get(info.task_id)
                if sink is not None:
                    sink.current = False
                known = hold.holding() if hold is not None else TaskHolding(task_id=info.task_id)
                holdings.append(replace(known, incarnation=info.incarnation))
        return tuple(holdings)

    def received_of_ended(self) -> dict[str, int]:
        """How many elements arrived of each task that signalled its end to this reader. From any thread."""
        holds = [hold for hold in list(self._task_reads.values()) if hold.account.ended and not hold.given_up]
        return {hold.info.task_id: hold.account.received for hold in holds}

    # ---- updates from the dispatcher

    def apply_updates(self, updates: Sequence[ClientUpdate]) -> list[DataLossError]:
        """Apply the dispatcher's updates: open new tasks, close removed ones, warn of losses.

        Warnings come last: if warnings are turned into errors, the rest must already be done.

        Returns:
            The errors for losses that `on_worker_loss` does not allow; empty if losses only warn.
        """
        held = set(self._task_reads)
        for update in updates:
            if update.has_state:
                self.set_tasks(update.tasks, finished=update.finished)
        losses = [loss for update in updates for loss in update.losses if self._concerns(loss, held)]
        self.lost += sum(loss.elements if loss.elements >= 0 else loss.splits for loss in losses)
        self.lost_parts += sum(loss.elements < 0 and not loss.splits for loss in losses)
        told = [self._loss_text(loss) for loss in losses]
        if told:
            self.last_loss = told[-1]
        for text in () if self._options.raises_losses else told:
            self.warn(f"{text}; reading continues with the others")
        for update in updates:
            if update.evicted_by:
                notices.warn_trainer_evicted(self._options, update.evicted_by)
            elif update.skipping:
                notices.warn_trainer_loses_data(self._options)
        return [notices.lost_with_worker(text, self._options) for text in told] if self._options.raises_losses else []

    def _concerns(self, loss: Loss, held: set[str]) -> bool:
        """Whether elements of this loss would have come to this reader."""
        if loss.trainer_id not in ("", self._options.trainer_id):
            return False
        known = loss.task_id in held or loss.task_id in self._task_reads
        return known or not (self.choice.local_only or loss.task_id in self._left_out)

    def set_tasks(self, tasks: tuple[TaskInfo, ...], *, finished: bool = False) -> None:
        """Read exactly these tasks, but none of the workers that `choice` leaves out.

        Args:
            tasks: All present tasks of the iteration.
            finished: Whether the iteration is over. Tasks of workers that left since then are not in `tasks`.
        """
        self._finished = finished
        named = {task.task_id: task for task in tasks if self._may_read(task)}
        self._left_out = (self._left_out | {task.task_id for task in tasks}) - named.keys()
        self._close(self._task_reads.keys() - named.keys(), keep=True)
        share = BUFFER_BYTES // max(1, len(named))
        for task_id, info in named.items():
            hold = self._task_reads.get(task_id)
            if hold is None:
                self._task_reads = {**self._task_reads, task_id: TaskRead(self._inbox, info, share)}
            elif hold.info.incarnation != info.incarnation or hold.info.worker_uid != info.worker_uid:
                self._wait_until_left(self._leave([hold], keep=True))
                if hold.info.sequence_incarnation != info.sequence_incarnation:
                    # A new sequence: the elements are numbered from 0 again.
                    hold.received_ranges.clear()
                hold.info = info
                hold.reset_attempts()
                hold.retry_at = 0.0
                hold.refusals.clear()
                # Another worker, or a restarted one, runs the task now.
                hold.account.ended = hold.given_up = False
        self._inbox.set_task_reads(list(self._task_reads.values()))

    def _may_read(self, task: TaskInfo) -> bool:
        """Whether this reader reads the task's worker.

        With `target_workers="LOCAL"`, a task that it reads may return to a local worker, so it stays until it is
        assigned to another one. An update may still name the stopped worker if the dispatcher wrote it before the
        worker stopped.
        """
        known = self._task_reads.get(task.task_id)
        if self.choice.local_only:
            stays = known is not None and (task.unassigned or task.worker_uid == known.info.worker_uid)
        else:  # A task that this reader has begun is read on any worker: other readers may not be sent the rest.
            stays = known is not None or task.task_id in self._previous_holdings or task.task_id in self._taken_in
        if stays or (task.unassigned and task.task_id in self._left_out):
            return stays
        return self.choice.allows(task.worker_tags, here=local.find(task.worker_uid) is not None)

    def take_in_rest(self, tasks: Sequence[TaskInfo]) -> bool:
        """Read tasks that were left out and hold splits, since nothing else is left; whether there are any."""
        rest = {task.task_id for task in tasks if task.begun and not task.ended} & self._left_out
        if self.choice.local_only or not rest:
            return False
        self._taken_in |= rest
        self.set_tasks(tuple(tasks))
        return True

    def _loss_text(self, loss: Loss) -> str:
        if loss.elements > 0:
            what = f"{plural(loss.elements, 'element')} of its part did not arrive and will not come"
        elif loss.splits and loss.elements:
            what = f"{plural(loss.splits, 'split')} did not arrive whole and will not come"
        elif loss.elements:
            what = "an unknown number of elements of its part did not arrive and will not come"
        else:
            what = "" if loss.restarts else "the rest of its part will not come"
        if loss.restarts:
            what = f"{what}; its part begins again".removeprefix("; ")
        job = f" (job {self._options.job_name!r})" if self._options.job_name else ""
        return f"worker {loss.worker} {loss.reason}{job}: {what}"

    def warn(self, text: str) -> None:
        """Emit a warning of lost data."""
        errors.warn(text, DataLossWarning)

    # ---- connections and credit, maintained while the reader waits

    def maintain(self, now: float) -> float:
        """Open tasks that should be open and move unused credit; returns the latest time for the next call."""
        due = now + 1.0
        closed = [
            hold
            for hold in self._task_reads.values()
            if hold.connection is None and not hold.account.ended and not hold.info.unassigned
        ]
        opening = [hold for hold in closed if hold.retry_at <= now]
        for hold in opening:
            hold.account.disconnected = False  # before any of them is granted credit, so that each gets a share
        for hold in opening:
            self._open(hold, now)
        due = min([due, *(hold.retry_at for hold in closed if hold.retry_at)])
        return min(due, self._move_credit(now))

    def _open(self, task_read: TaskRead, now: float) -> None:
        task_read.account.disconnected = task_read.accepted = False
        self._top_up(now, opening=task_read)
        sink = self._sinks[task_read.info.task_id] = task_read.sink()
        granted = task_read.account.granted
        try:
            task_read.connection = self._connect(task_read, sink)
            if task_read.account.granted > granted:  # the user's thread granted more, which the request may lack
                self._send_credit(task_read)
        except (UnavailableError, NotFoundError) as error:
            final_error = self._handle_broken(task_read, error)
            if final_error is not None:
                raise final_error from None
            if not task_read.retry_at:  # retry at once, over another transfer
                self._open(task_read, now)

    def _connect(self, task_read: TaskRead, sink: TaskSink) -> ReadHandle:
        account = task_read.account
        endpoint, why = choose_transfer(
            task_read.info,
            self._options.protocol,
            self._token,
            checksum=self._options.checksum,
            previous=task_read.transfer,
            refusals=task_read.refusals,
        )
        task_read.transfer = endpoint.transfer
        before = self._consumed_earlier(task_read)
        self._openings += 1
        request = ReadRequest(
            task_id=task_read.info.task_id,
            client_id=self._client_id,
            trainer_id=self._options.trainer_id,
            cache_policy=self._options.cache_policy,
            max_bytes=task_read.max_bytes,
            granted=account.granted,
            received=account.received,
            consumed=account.consumed,
            instance=self._instance,
            compression=self._options.compression,
            codecs=installed_codecs(),
            host_id=host_id(),
            checksum=self._options.checksum,
            consumed_before=tuple(number for part in before.consumed for number in (part.first, part.end)),
            consumed_before_count=before.received,
            previous_client_id=self._previous_client_id,
            incarnation=task_read.info.incarnation,
            opening=self._openings,
            why=why,
            want_files=self._inbox.opened_files is not None,
        )
        reading = endpoint.open(request, sink)
        task_read.consumed_cell = reading.consumed_cell
        if task_read.consumed_cell is not None:
            task_read.consumed_cell[0] = account.consumed
        return reading

    def _consumed_earlier(self, task_read: TaskRead) -> TaskHolding:
        """What this reader consumed of the task's sequence before it rejoined.

        Sent with each request until an element arrives, because a failed request may not have reached the worker.
        """
        before = self._previous_holdings.get(task_read.info.task_id)
        if before is None or task_read.account.received or before.incarnation < task_read.info.sequence_incarnation:
            return TaskHolding()
        return before

    def handle_broken(self, sink: TaskSink, error: Exception) -> Exception | None:
        """Handle a broken connection: schedule a retry, or return the error to raise in the user's thread."""
        if self._sinks.get(sink.task_read.info.task_id) is not sink:
            return None  # replaced by a newer connection
        return self._handle_broken(sink.task_read, error)

    def _handle_broken(self, task_read: TaskRead, error: Exception) -> Exception | None:
        task_read.connection = task_read.consumed_cell = None
        with self._inbox.lock:
            task_read.account.disconnect()
        if isinstance(error, ResourceExhaustedError | DeadlineExceededError):
            task_read.retry_at = math.inf  # may succeed later: retried once the user calls `next` again
            return error
        if isinstance(error, DataLossError) and task_read.damaged_in_a_row < _MOST_DAMAGED:
            task_read.damaged_in_a_row += 1  # nothing is lost: the worker keeps elements until they are consumed
            task_read.retry_at = 0.0
            return None
        if isinstance(error, TransferRefused) and task_read.transfer is not None and not self._options.protocol:
            task_read.refusals[task_read.transfer.name] = error.what
            task_read.retry_at = 0.0
            return None
        task_read.attempts += 1
        if not isinstance(error, (UnavailableError, NotFoundError)):
            return self._give_up(task_read, error)
        if not task_read.account.received:  # a connection that has delivered elements may come back
            task_read.unreachable_error = self._unreachable_error(task_read, error)
        task_read.retry_at = self._inbox.clock() + _RETRY_S[min(task_read.attempts, len(_RETRY_S)) - 1]
        return None

    def _unreachable_error(self, task_read: TaskRead, error: Exception) -> Exception | None:
        """The error to raise if a worker runs that does not answer; None if it was not tried often enough."""
        if isinstance(error, TransferRefused):
            refused = transfer_unavailable(self._options.protocol or "", error.what)
            return refused if task_read.attempts > _MAX_REFUSED_ATTEMPTS else None
        return _unreachable(task_read, error) if task_read.attempts >= ATTEMPTS else None

    @property
    def unreachable_workers(self) -> tuple[str, ...]:
        """The workers that this reader tries in vain. The dispatcher says which of them run. From any thread."""
        return tuple(dict.fromkeys(hold.info.worker_uid for hold, _ in self._unreachable_reads()))

    def give_up_unreachable(self, updates: Sequence[ClientUpdate]) -> dict[str, Exception]:
        """Give up the tasks of workers that run and do not answer this reader; returns the errors, by task id."""
        running = {uid for update in updates for uid in update.running_workers}
        unreachable = [(hold, error) for hold, error in self._unreachable_reads() if hold.info.worker_uid in running]
        return {hold.info.task_id: self._give_up(hold, error) for hold, error in unreachable}

    def _unreachable_reads(self) -> list[tuple[TaskRead, Exception]]:
        reads = [hold for hold in list(self._task_reads.values()) if not hold.is_open and not hold.account.received]
        return [(hold, hold.unreachable_error) for hold in reads if hold.unreachable_error is not None]

    def _give_up(self, task_read: TaskRead, error: Exception) -> Exception:
        task_read.account.ended, task_read.given_up, task_read.unreachable_error = True, True, None
        return error

    def try_refused(self) -> None:
        """Retry tasks whose worker refused this reader. Called when the error is raised, for the user may read on."""
        for hold in self._task_reads.values():
            if hold.retry_at == math.inf:
                hold.retry_at = 0.0

    def reopen_ended(self) -> None:
        """Open tasks again whose connections broke after their end. Called when the iteration turns out not to be over.

        Another client may have lost elements since, which their worker can send only to this reader.
        """
        for hold in self._task_reads.values():
            if hold.account.ended and hold.connection is None and not hold.given_up:
                hold.account.ended, hold.retry_at = False, 0.0

    @property
    def outstanding(self) -> int:
        """Elements that count against `max_outstanding_requests`: granted, in flight or buffered."""
        with self._inbox.lock:
            return sum(account.outstanding for account in self._accounts())

    def _accounts(self) -> list[CreditAccount]:
        """The accounts of all tasks, and of abandoned ones: elements of theirs may be in the buffer."""
        return [hold.account for hold in (*self._task_reads.values(), *self._dropped_reads)]

    def _move_credit(self, now: float) -> float:
        limit = self._options.max_outstanding_requests
        if limit is None:
            return now + 1.0
        with self._inbox.lock:
            accounts = self._accounts()
            recalls = choose_recalls(accounts, limit, now)
            for account in recalls:
                account.recalling = True
        for hold in self._task_reads.values():
            if hold.account in recalls and hold.connection is not None:
                hold.connection.recall()
        return now + (IDLE_CREDIT_S if is_starving(accounts) else 1.0)

    def _top_up(self, now: float, opening: TaskRead | None = None) -> None:
        with self._inbox.lock:
            grown = top_up(self._accounts(), self._options.max_outstanding_requests, now)
        for hold in self._task_reads.values():
            if hold is not opening and hold.account in grown and hold.connection is not None:
                self._send_credit(hold)

    # ---- acknowledgements

    def mark_consumed(self, task_read: TaskRead, count: int) -> None:
        """Count elements as consumed: they are not sent again if this process dies."""
        task_read.account.consumed += count
        cell = task_read.consumed_cell
        if cell is not None:
            # A write to the shared page: the worker reads it if this process is killed.
            cell[0] = task_read.account.consumed

    def mark_dequeued(self, task_read: TaskRead, count: int, nbytes: int) -> None:
        """Count elements as taken out of the buffer; acknowledge them once they reach `_ack_threshold`."""
        task_read.account.dequeued += count
        task_read.unacked_bytes += nbytes
        if task_read.unacked_bytes >= self._ack_threshold(task_read):
            self._send_credit(task_read)

    def _ack_threshold(self, task_read: TaskRead) -> int:
        """How many bytes the client may consume before it must send an acknowledgement.

        At most half of `max_bytes`, so that the worker can keep sending.
        """
        return min(task_read.max_bytes // 2, _ACK_BYTES) if self._can_delay_ack(task_read) else task_read.max_bytes // 4

    def _can_delay_ack(self, task_read: TaskRead) -> bool:
        """Whether the worker can keep sending although it does not know what was consumed.

        Only if the worker can read the count itself. Not if credit is limited, the reader belongs to a trainer, or it
        holds its fair share of the task: the worker may then wait for this acknowledgement.
        """
        readable = task_read.transfer is not None and task_read.transfer.worker_reads_consumed
        limited = self._options.max_outstanding_requests or self._options.trainer_id
        return readable and not limited and not self._at_fair_share(task_read)

    @staticmethod
    def _at_fair_share(task_read: TaskRead) -> bool:
        """Whether the worker may hold elements back until it gets an acknowledgement; see `FIRST_GRANT`."""
        return task_read.account.received - task_read.acked_dequeued >= FIRST_GRANT + task_read.acked_dequeued

    def flush_acks(self, now: float) -> None:
        """Grant the credit that became free and send all pending acknowledgements."""
        self._top_up(now)
        self.send_acks()

    @property
    def can_delay_acks(self) -> bool:
        """Whether all workers can keep sending without an acknowledgement; each one wakes a thread of the worker.

        Not if elements come in one order: workers that are ahead of their turn fill their buffers and then wait for it.
        """
        return not self._options.ordered and all(map(self._can_delay_ack, self._task_reads.values()))

    def raise_byte_limits(self) -> None:
        """Double the byte limit of each task that used up its limit.

        Called when the reader has nothing left to consume.
        """
        for hold in self._task_reads.values():
            if hold.was_full:
                hold.was_full = False
                hold.max_bytes = min(self._byte_limit(hold), 2 * hold.max_bytes)

    def _byte_limit(self, task_read: TaskRead) -> int:
        """The most that `max_bytes` of a task may grow to: its share of `BUFFER_BYTES`.

        A reader's only task gets more over the network, so that a second large element can be in flight.
        """
        alone = len(self._task_reads) == 1 and task_read.over_network
        return max(task_read.share_bytes, task_read.last_slice_bytes + 1) if alone else task_read.share_bytes

    def send_acks(self, *, skip_recorded: bool = False) -> None:
        """Acknowledge to all workers what was consumed. From any thread: the counters only grow.

        Args:
            skip_recorded: Whether to skip workers that can read the count from the shared page if this process dies.
        """
        for hold in list(self._task_reads.values()):
            unacked = hold.acked < hold.account.consumed and not (skip_recorded and hold.consumed_cell is not None)
            # Elements held by operations downstream are dequeued but not consumed. A worker that does not know of
            # them counts them as buffered, stops sending, and a large batch is never filled.
            held = hold.acked_dequeued < hold.account.dequeued and not skip_recorded
            if unacked or held:
                self._send_credit(hold, grant=False)

    def _send_credit(self, task_read: TaskRead, *, grant: bool = True) -> None:
        account = task_read.account
        task_read.acked, task_read.acked_dequeued = account.consumed, account.dequeued
        freed, task_read.unacked_bytes = task_read.unacked_bytes, 0
        with self._inbox.lock:
            task_read.buffered_bytes -= freed
        if task_read.connection is not None:
            # No grant during a recall: the worker keeps the largest grant that it received, so a grant sent now
            # would undo the recall.
            granted = account.granted if grant and not account.recalling else 0
            with _CREDIT:
                task_read.connection.credit(
                    granted, account.consumed, task_read.max_bytes, account.received, account.dequeued
                )

    # ---- closing

    def close(self) -> None:
        """Close the reads of all tasks; unconsumed elements return to them."""
        with self._inbox.lock:
            self._closed = True
        self._close(self._task_reads.keys(), keep=False)

    def _close(self, task_ids: Collection[str], *, keep: bool) -> None:
        holds = [self._task_reads[task_id] for task_id in task_ids]
        self._task_reads = {known: hold for known, hold in self._task_reads.items() if known not in task_ids}
        left = self._leave(holds, keep=keep)
        # Before the wait: Ctrl-C may cut that short.
        self._dropped_reads += [hold for hold in holds if hold.unconsumed]
        self._wait_until_left(left)

    def _leave(self, task_reads: Iterable[TaskRead], *, keep: bool) -> list[ReadHandle]:
        """Ask the workers of tasks to end the reads; returns the reads that have a connection, for `_wait_until_left`.

        Args:
            task_reads: The reads of the tasks.
            keep: Whether this reader will return to its user what has arrived. The task has then been taken off the
                worker, which may not know it yet and may serve other readers that do not know it either: they must not
                get those elements. If this reader is lost before it consumes them, the task's next worker sends them.
        """
        return [reading for hold in task_reads if (reading := self._leave_one(hold, keep=keep)) is not None]

    def _wait_until_left(self, readings: Iterable[ReadHandle]) -> None:
        """Wait for all workers together: each may take a moment, and longer if it is suspended."""
        deadline = self._inbox.clock() + _LEAVE_S
        for reading in readings:
            reading.wait_until_left(max(0.0, deadline - self._inbox.clock()))

    def _leave_one(self, task_read: TaskRead, *, keep: bool) -> ReadHandle | None:
        with self._inbox.lock:
            sink = self._sinks.pop(task_read.info.task_id, None)
            if sink is not None:
                sink.current = False
            task_read.account.disconnect()
        reading, task_read.connection, task_read.consumed_cell = task_read.connection, None, None
        if reading is not None:
            reading.leave(task_read.account.received if keep else task_read.account.consumed)
        return reading


def _unreachable(task_read: TaskRead, error: Exception) -> UnavailableError:
    return UnavailableError(
        f"worker {task_read.info.worker} cannot be reached at {task_read.info.address} ({error})",
        did=f"it was tried {task_read.attempts} times; its part of the data will not come",
        hint="the dispatcher gets its heartbeats, so it runs: can this machine reach its `worker_address`?",
    )

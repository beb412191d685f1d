"""A reader's tasks, each a real one of a worker of this process, which can be made to hang or break."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from dsnb.client.inbox import Inbox, TaskRead
from dsnb.client.options import ReadOptions, ShardingPolicy
from dsnb.client.tasks import BUFFER_BYTES, TaskTable
from dsnb.errors import (
    DataLossWarning,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.pipeline.dataset import Dataset
from dsnb.transfer import local
from dsnb.transfer.grpc import GRPC
from dsnb.transfer.protocol import LinkStats, ReadHandle, Sink, Transfer, TransferRefused
from dsnb.transfer.selection import choose_transfer, transfer_protocol
from dsnb.transfer.shared_memory.messages import SHARED_MEMORY
from dsnb.wire import discovery
from dsnb.wire.messages import ClientUpdate, IndexRange, Loss, ReadRequest, TaskHolding, TaskInfo, TaskOrder
from dsnb.worker.task import Task
from tests.pipeline.driving import context
from tests.support.waiting import wait_for


class Worker:
    """One task's worker: real, but for `hangs` (nothing said to it is heard) and `refuses` (nobody is let in)."""

    def __init__(self, uid: str, dataset: Dataset) -> None:
        order = TaskOrder(task_id=uid, incarnation=1, mode="OFF")
        self.task = Task(
            order, lambda _room: dataset.operation.build(context()), None, read_ahead_bytes=1 << 20, capacity=1 << 20,
            on_change=lambda: None, on_end=lambda: None, error_context="",
        )  # fmt: skip
        self.uid = uid
        self.openings: list[ReadRequest] = []
        self.sinks: list[Sink] = []
        self.hangs = False
        self.refuses: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while a request is on its way."""
        self.on_credit: Callable[[], None] = lambda: None
        """What happens while a reader grants credit."""
        self.on_wait: Callable[[float], object] = lambda _seconds: None
        """What happens while a reader that has left waits, for so many seconds at most, and nothing is heard."""
        local.offer(uid, self)

    def open(self, request: ReadRequest, sink: Sink, link_stats: LinkStats | None = None) -> ReadHandle:
        self.openings.append(request)
        self.sinks.append(sink)
        if self.refuses is not None:
            raise self.refuses
        reading = HangingReading(self, self.task.open(request, sink, link_stats))
        self.meanwhile()
        return reading

    def stop(self) -> None:
        local.withdraw(self.uid)
        self.task.stop(UnavailableError(f"{self.uid} was stopped"))
        self.task.join(10.0)

    def info(self, incarnation: int = 1) -> TaskInfo:
        return TaskInfo(task_id="of " + self.uid, worker=self.uid, worker_uid=self.uid, incarnation=incarnation)


class HangingReading:
    """Passes on what a reader says, unless its worker hangs."""

    def __init__(self, worker: Worker, reading: ReadHandle) -> None:
        self._worker = worker
        self._reading = reading

    @property
    def consumed_cell(self) -> memoryview | None:
        return None if self._worker.hangs else self._reading.consumed_cell

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0) -> None:
        self._worker.on_credit()
        if not self._worker.hangs:
            self._reading.credit(granted, consumed, max_bytes, received, taken)

    def recall(self) -> None:
        if not self._worker.hangs:
            self._reading.recall()

    def leave(self, consumed: int) -> None:
        if not self._worker.hangs:
            self._reading.leave(consumed)

    def wait_until_left(self, timeout: float) -> None:
        if self._worker.hangs:
            self._worker.on_wait(timeout)


class Client:
    """A reader's table of tasks, with what its stage does around it."""

    def __init__(
        self, previous_holdings: tuple[TaskHolding, ...] = (), client_id: str = "client", **options: Any
    ) -> None:
        fields = {"mode": ShardingPolicy.OFF, **options}
        self.inbox = Inbox()
        self.tasks = TaskTable(
            self.inbox, client_id, ReadOptions(**fields), "token", previous_holdings=previous_holdings
        )
        self.got: list[int] = []

    def turn(self) -> None:
        """One look at everything, as a reader takes that waits: it consumes what is there."""
        while self.inbox.failed:
            sink, error = self.inbox.failed.popleft()
            lasting = self.tasks.handle_broken(sink, error)
            if lasting is not None:
                raise lasting
        while self.inbox.slices:
            hold, piece = self.inbox.slices.popleft()
            self.got += [int(element) for element in piece.elements()]
            self.tasks.mark_dequeued(hold, piece.count, piece.nbytes // piece.count * piece.count)
            self.tasks.mark_consumed(hold, piece.count)
        self.tasks.flush_acks(time.monotonic())
        self.tasks.maintain(time.monotonic())

    def read(self, count: int) -> list[int]:
        """Read on until there are so many in all."""

        def look() -> bool:
            self.turn()
            return len(self.got) >= count

        wait_for(look, what=f"{count} elements", every=0.001)
        return self.got


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Workers w0 to w2, whose tasks give 0.., 100.. and 200.."""
    made = [Worker(f"w{n}", Dataset.range(100 * n, 100 * n + 50)) for n in range(3)]
    yield made
    for worker in made:
        worker.stop()


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.tasks.close()


def test_all_tasks_that_are_named_are_read_to_their_ends(workers: list[Worker], client: Client) -> None:
    client.tasks.set_tasks(tuple(worker.info() for worker in workers))
    assert sorted(client.read(150)) == [*range(50), *range(100, 150), *range(200, 250)]
    wait_for(lambda: client.tasks.all_ended, what="the ends")
    ended = {task.task_id: task.received for task in client.tasks.ended_tasks()}
    assert ended == {"of w0": 50, "of w1": 50, "of w2": 50}


def test_nothing_known_is_not_the_end(client: Client) -> None:
    assert not client.tasks.all_ended


def test_a_pass_that_is_over_has_ended_also_when_its_workers_have_left(workers: list[Worker], client: Client) -> None:
    client.tasks.set_tasks((workers[0].info(),))
    client.tasks.apply_updates([ClientUpdate(has_state=True, tasks=())])
    assert not client.tasks.all_ended  # another worker may come
    client.tasks.apply_updates([ClientUpdate(has_state=True, tasks=(), finished=True)])
    assert client.tasks.all_ended


def test_a_task_that_comes_later_is_read_and_one_that_is_gone_is_left(workers: list[Worker], client: Client) -> None:
    client.tasks.set_tasks((workers[0].info(),))
    client.read(50)
    client.tasks.set_tasks((workers[1].info(),))
    assert sorted(client.read(100)) == [*range(50), *range(100, 150)]
    assert len(client.tasks) == 1
    assert workers[0].task.report().readers == 0


def test_leaving_three_workers_that_hang_takes_no_longer_than_leaving_one(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, now = Client(), 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    client.tasks.set_tasks(tuple(worker.info() for worker in workers))
    client.turn()
    for worker in workers:
        worker.hangs, worker.on_wait = True, wait
    monkeypatch.setattr(client.inbox, "clock", lambda: now)
    client.tasks.close()
    assert now == 2.0


def test_an_interrupt_while_a_worker_is_left_forgets_no_element(workers: list[Worker], client: Client) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    client.tasks.set_tasks((workers[0].info(),))
    client.tasks.maintain(time.monotonic())
    wait_for(client.tasks.buffered_count, what="elements")
    workers[0].hangs, workers[0].on_wait = True, interrupt
    with pytest.raises(KeyboardInterrupt):
        client.tasks.set_tasks(())
    assert client.tasks.orphaned_count() > 0


def test_tasks_may_come_and_go_while_credit_is_granted_to_the_others(workers: list[Worker]) -> None:
    """The user's thread grants credit without a lock while the acknowledgement thread applies an update."""
    client = Client(max_outstanding_requests=4)
    client.tasks.set_tasks((workers[0].info(), workers[1].info()))
    client.turn()
    updates = [(workers[0].info(), workers[1].info(), workers[2].info()), (workers[1].info(), workers[2].info())]

    def update() -> None:
        if updates:
            client.tasks.set_tasks(updates.pop(0))

    workers[0].on_credit = update
    client.read(20)
    client.read(len(client.got) + 20)
    assert not updates
    client.tasks.close()


def test_a_reader_that_is_leaving_does_not_say_that_it_has_nothing_of_a_task(
    workers: list[Worker], client: Client
) -> None:
    client.tasks.set_tasks((workers[0].info(),))
    client.read(50)
    halted = replace(workers[0].info(), unassigned=True, incarnation=2)
    (holding,) = client.tasks.fence((halted,))
    assert (holding.incarnation, holding.received, holding.consumed) == (2, 50, (IndexRange(first=0, end=50),))
    client.tasks.close()
    assert client.tasks.fence((halted,)) == ()  # its last report tells what it consumed


def test_a_task_whose_worker_began_again_is_opened_anew_with_the_readers_counters(
    workers: list[Worker], client: Client
) -> None:
    client = Client(max_outstanding_requests=5)
    client.tasks.set_tasks((workers[0].info(),))
    client.read(20)
    client.tasks.set_tasks((workers[0].info(incarnation=2),))
    client.turn()
    first, second = workers[0].openings
    assert first.received == 0
    assert second.received >= second.consumed >= 20
    client.tasks.close()


def test_what_an_earlier_incarnation_still_delivers_is_not_heard(workers: list[Worker], client: Client) -> None:
    client.tasks.set_tasks((workers[0].info(),))
    client.read(50)
    stale = workers[0].sinks[-1]
    client.tasks.set_tasks((workers[1].info(),))
    stale.fail(UnavailableError("gone"))
    stale.end()
    assert not client.inbox.has_events


def buffered(client: Client) -> list[int]:
    """What arrived at a client and was not consumed."""
    with client.inbox.lock:
        return [int(element) for _, piece in client.inbox.slices for element in piece.elements()]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda info: (replace(info, incarnation=2, unassigned=True),), id="it waits for another worker"),
        pytest.param(lambda info: (replace(info, incarnation=2, worker="w1", worker_uid="w1"),), id="another has it"),
        pytest.param(lambda _info: (), id="it is given up"),
    ],
)
def test_what_a_reader_keeps_of_a_task_that_was_taken_off_its_worker_is_sent_to_no_other_reader(
    workers: list[Worker], change: Callable[[TaskInfo], tuple[TaskInfo, ...]]
) -> None:
    """The worker and the other reader may not know of it yet, if neither reaches the dispatcher."""
    keeps, other = Client(max_outstanding_requests=5), Client(client_id="other")
    keeps.tasks.set_tasks((workers[0].info(),))
    keeps.tasks.maintain(time.monotonic())
    wait_for(lambda: len(buffered(keeps)) == 5, what="five elements")
    keeps.tasks.set_tasks(change(workers[0].info()))
    assert buffered(keeps) == list(range(5))
    other.tasks.set_tasks((workers[0].info(),))
    assert other.read(45) == list(range(5, 50))
    wait_for(lambda: other.turn() or other.tasks.all_ended, what="the end")
    assert len(other.got) == 45
    keeps.tasks.close()
    other.tasks.close()


def test_what_a_reader_that_leaves_has_not_consumed_goes_to_another_reader(workers: list[Worker]) -> None:
    leaves, other = Client(max_outstanding_requests=5), Client(client_id="other")
    leaves.tasks.set_tasks((workers[0].info(),))
    leaves.tasks.maintain(time.monotonic())
    wait_for(lambda: len(buffered(leaves)) == 5, what="five elements")
    leaves.tasks.close()
    other.tasks.set_tasks((workers[0].info(),))
    assert sorted(other.read(50)) == list(range(50))
    other.tasks.close()


def test_a_reading_that_broke_is_opened_again_and_nothing_is_missing(workers: list[Worker]) -> None:
    client = Client(max_outstanding_requests=5)  # without a limit all might have come before it breaks
    client.tasks.set_tasks((workers[0].info(),))
    client.turn()
    workers[0].sinks[-1].fail(UnavailableError("the connection broke"))
    assert client.read(50) == list(range(50))
    assert len(workers[0].openings) == 2
    client.tasks.close()


def test_a_worker_that_cannot_be_reached_is_tried_again_with_growing_pauses(
    workers: list[Worker], client: Client
) -> None:
    workers[0].refuses = UnavailableError("not now")
    client.tasks.set_tasks((workers[0].info(),))
    [hold] = client.tasks.reads.values()
    pauses = []
    for _ in range(7):
        asked = time.monotonic()
        client.tasks.maintain(hold.retry_at)
        pauses.append((hold.retry_at - time.monotonic(), hold.retry_at - asked))
    assert pauses[0][0] <= 0.1
    assert pauses[-1][0] <= 1.0 <= pauses[-1][1] + 1e-6
    assert all(earlier[0] <= later[1] for earlier, later in pairwise(pauses))
    workers[0].refuses = None
    hold.retry_at = 0.0
    assert client.read(50) == list(range(50))


def test_a_rejoined_reader_tells_what_it_consumed_until_an_element_has_come(workers: list[Worker]) -> None:
    consumed = (IndexRange(first=0, end=10),)
    before = TaskHolding(task_id="of w0", incarnation=1, received=10, consumed=consumed)
    client = Client(previous_holdings=(before,))
    workers[0].refuses = UnavailableError("the connection broke before the worker answered")
    client.tasks.set_tasks((workers[0].info(),))
    client.turn()
    workers[0].refuses = None
    client.read(40)
    for hold in client.tasks.reads.values():
        hold.account.ended = False
        workers[0].sinks[-1].fail(UnavailableError("the connection broke"))
    wait_for(lambda: client.turn() or len(workers[0].openings) == 3, what="a third request")
    client.tasks.close()
    assert [opening.consumed_before for opening in workers[0].openings] == [(0, 10), (0, 10), ()]
    assert [opening.consumed_before_count for opening in workers[0].openings] == [10, 10, 0]


def test_what_a_rejoined_reader_consumed_of_a_sequence_that_began_again_is_not_told(workers: list[Worker]) -> None:
    before = TaskHolding(task_id="of w0", incarnation=1, received=10, consumed=(IndexRange(first=0, end=10),))
    client = Client(previous_holdings=(before,))
    client.tasks.set_tasks((replace(workers[0].info(incarnation=2), sequence_incarnation=2),))
    assert client.read(50) == list(range(50))
    client.tasks.close()
    assert [opening.consumed_before for opening in workers[0].openings] == [()]


def test_a_task_whose_connection_broke_after_its_end_is_opened_again_if_the_pass_is_not_over(
    workers: list[Worker],
) -> None:
    client = Client(max_outstanding_requests=50)
    client.tasks.set_tasks((workers[0].info(),))
    client.read(50)
    wait_for(lambda: client.turn() or client.tasks.all_ended, what="the end")
    workers[0].task.fail_readers(UnavailableError("the connection broke"))
    client.turn()
    assert client.tasks.all_ended
    assert len(workers[0].openings) == 1
    client.tasks.reopen_ended()
    wait_for(lambda: client.turn() or len(workers[0].openings) == 2, what="a second request")
    wait_for(lambda: client.turn() or client.tasks.all_ended, what="the end, again")
    client.tasks.close()
    assert client.got == list(range(50))


def test_an_error_that_lasts_is_raised_and_the_task_given_up(workers: list[Worker], client: Client) -> None:
    client.tasks.set_tasks((workers[0].info(),))
    client.turn()
    workers[0].sinks[-1].fail(InvalidArgumentError("finite"))
    with pytest.raises(InvalidArgumentError, match="finite"):
        client.turn()
    assert client.tasks.all_ended

    assert client.tasks.ended_tasks() == (), "others may read on: the dispatcher is not told that it ended"
    assert client.tasks.any_given_up


def fail_to_reach(worker: Worker, client: Client, monkeypatch: pytest.MonkeyPatch) -> TaskRead:
    """Let a client try a worker in vain, once less often than makes it give up."""
    monkeypatch.setattr("dsnb.client.tasks.ATTEMPTS", 5)
    worker.refuses = UnavailableError("connection refused")
    client.tasks.set_tasks((worker.info(),))
    [read] = client.tasks.reads.values()
    for _ in range(4):
        client.tasks.maintain(read.retry_at)
    return read


RUNS = [ClientUpdate(running_workers=("w0",))]


def test_a_worker_that_runs_and_was_never_reached_is_told_in_the_end(
    workers: list[Worker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher gets its heartbeats: the address that it tells is not one for this reader."""
    hold = fail_to_reach(workers[0], client, monkeypatch)
    assert not client.tasks.unreachable_workers
    assert client.tasks.give_up_unreachable(RUNS) == {}, "too early"
    client.tasks.maintain(hold.retry_at)
    assert list(client.tasks.unreachable_workers) == ["w0"]
    assert client.tasks.give_up_unreachable([ClientUpdate(running_workers=("w1",))]) == {}, "another one"
    error = client.tasks.give_up_unreachable(RUNS)["of w0"]
    assert isinstance(error, UnavailableError)
    assert "worker w0 cannot be reached at" in error.what
    assert "connection refused" in error.what
    assert "tried 5 times" in error.did
    assert "worker_address" in error.hint
    assert client.tasks.any_given_up
    assert not client.tasks.unreachable_workers, "the error is raised once"


def test_a_worker_is_tried_until_the_dispatcher_says_that_it_runs(
    workers: list[Worker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it died, only the dispatcher can give its task to another one, and it may be suspended for long."""
    hold = fail_to_reach(workers[0], client, monkeypatch)
    for _ in range(20):
        client.tasks.maintain(hold.retry_at)
    assert list(client.tasks.unreachable_workers) == ["w0"]
    client.tasks.set_tasks((replace(workers[1].info(2), task_id="of w0"),))
    assert not client.tasks.unreachable_workers
    assert client.tasks.give_up_unreachable(RUNS) == {}, "another one has the task now"


def test_a_worker_that_answers_after_all_is_not_given_up(
    workers: list[Worker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = fail_to_reach(workers[0], client, monkeypatch)
    client.tasks.maintain(hold.retry_at)
    workers[0].refuses = None
    client.tasks.maintain(hold.retry_at)
    wait_for(lambda: hold.account.received, what="an element")
    assert client.tasks.give_up_unreachable(RUNS) == {}
    assert client.read(50) == list(range(50))


def test_a_requested_transfer_that_a_running_worker_refuses_is_told(
    workers: list[Worker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead worker refuses shared memory too: that says nothing before the dispatcher knows."""
    client = Client(protocol="shared_memory")
    workers[0].refuses = TransferRefused("there is no socket")
    here, why = choose_transfer(workers[0].info(), None, "token", previous=None, refusals={})
    monkeypatch.setattr("dsnb.client.tasks.choose_transfer", lambda *_args, **_named: (here, why))
    client.tasks.set_tasks((workers[0].info(),))
    [read] = client.tasks.reads.values()
    while not client.tasks.unreachable_workers:
        client.tasks.maintain(read.retry_at)
    error = client.tasks.give_up_unreachable(RUNS)["of w0"]
    assert isinstance(error, FailedPreconditionError)
    assert "'shared_memory' is not available: there is no socket" in str(error)


def test_a_worker_that_was_reached_once_is_waited_for(
    workers: list[Worker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsnb.client.tasks.ATTEMPTS", 2)
    client.tasks.set_tasks((workers[0].info(),))
    client.read(10)
    [hold] = client.tasks.reads.values()
    workers[0].refuses = UnavailableError("restarting")
    workers[0].sinks[-1].fail(UnavailableError("the connection broke"))
    for _ in range(5):
        client.turn()
        hold.retry_at = 0.0
    workers[0].refuses = None
    assert client.read(50) == list(range(50))


def test_a_reader_that_is_refused_asks_again_when_its_user_does(workers: list[Worker], client: Client) -> None:
    workers[0].refuses = UnavailableError("")
    client.tasks.set_tasks((workers[0].info(),))
    client.tasks.maintain(time.monotonic())
    assert client.tasks.handle_broken(workers[0].sinks[-1], ResourceExhaustedError("full")) is not None
    workers[0].openings.clear()
    for _ in range(3):
        client.tasks.maintain(time.monotonic() + 1000.0)
    assert workers[0].openings == [], "not by itself"
    workers[0].refuses = None
    client.tasks.try_refused()
    assert client.read(50) == list(range(50))


def test_a_local_reader_keeps_what_it_read_of_a_stopped_worker_until_another_one_takes_over(
    workers: list[Worker],
) -> None:
    client = Client(target_workers="LOCAL")
    before = workers[0].info()
    client.tasks.set_tasks((before,))
    client.read(7)
    workers[0].stop()
    client.tasks.set_tasks((before,))  # the dispatcher wrote this before it noticed
    halted = replace(before, incarnation=2, unassigned=True)
    client.tasks.set_tasks((halted,))
    taken_over = replace(halted, unassigned=False, worker="w1", worker_uid="w1")
    client.tasks.set_tasks((taken_over,))
    (holding,) = client.tasks.consumed_holdings(leaving=True)
    assert holding.held == (), "the next worker has it"
    assert (holding.received, holding.consumed) == (len(client.got), (IndexRange(first=0, end=len(client.got)),))
    client.tasks.close()


def test_a_reader_that_leaves_says_what_it_holds_of_a_task_without_a_worker(workers: list[Worker]) -> None:
    client = Client()
    before = workers[0].info()
    client.tasks.set_tasks((before,))
    client.tasks.maintain(time.monotonic())
    wait_for(lambda: client.inbox.slices, what="elements that are not consumed")
    client.tasks.set_tasks((replace(before, incarnation=2, unassigned=True),))
    (staying,), (leaving,) = client.tasks.consumed_holdings(), client.tasks.consumed_holdings(leaving=True)
    assert leaving.held
    assert staying == replace(leaving, held=())
    client.tasks.close()


def test_the_local_transfer_is_refused_where_the_worker_lives_elsewhere(client: Client) -> None:
    client = Client(protocol="local")
    client.tasks.set_tasks((TaskInfo(task_id="t", worker="far", worker_uid="elsewhere", address="127.0.0.1:1"),))
    with pytest.raises(FailedPreconditionError, match="worker far lives in another process"):
        client.turn()


def test_tcp_is_chosen_between_hosts_without_tls_and_grpc_where_tcp_is_not_possible() -> None:
    far = TaskInfo(task_id="t", worker="far", worker_uid="elsewhere", address="127.0.0.1:1", data_port=2)

    def chosen(info: TaskInfo = far, **refusals: str) -> tuple[str, str]:
        known = {"shared_memory": "another host", **refusals}
        endpoint, why = choose_transfer(info, None, "token-of-far", previous=None, refusals=known)
        return endpoint.transfer.name, why

    assert chosen() == ("tcp", "another host")
    assert chosen(tcp="no connection") == ("grpc", "another host; no connection")
    assert chosen(replace(far, data_port=0)) == ("grpc", "another host; worker far has no data port")
    discovery.remember_token("127.0.0.1:1", "token-of-far", "a certificate")
    try:
        assert chosen() == ("grpc", "another host; the service uses TLS, for which gRPC is chosen")
        endpoint, _ = choose_transfer(far, "tcp", "token-of-far", previous=None, refusals={})
        assert endpoint.transfer.name == "tcp"
    finally:
        discovery.forget_token("127.0.0.1:1", "token-of-far")


def test_an_unknown_transfer_is_refused_when_it_is_asked_for() -> None:
    for known in (None, "grpc", "tcp", "shared_memory", "local"):
        assert transfer_protocol("protocol", known) == known
    with pytest.raises(NotFoundError, match="the data transfer protocol 'unknown' is not available"):
        transfer_protocol("protocol", "unknown")


# ---- credit


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_allowance_bounds_what_is_on_its_way_over_all_tasks(workers: list[Worker], limit: int) -> None:
    client = Client(max_outstanding_requests=limit)
    client.tasks.set_tasks(tuple(worker.info() for worker in workers))
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, sum(piece.count for _, piece in client.inbox.slices))
        client.turn()
        return len(client.got) == 150

    wait_for(look, what="all elements", every=0.001)
    assert most <= limit
    client.tasks.close()


def test_tasks_that_are_opened_again_at_the_end_get_no_more_credit_than_there_is(workers: list[Worker]) -> None:
    client = Client(max_outstanding_requests=1)
    client.tasks.set_tasks((workers[0].info(), workers[1].info()))
    client.read(100)
    wait_for(lambda: client.turn() or client.tasks.all_ended, what="the ends")
    for worker in workers[:2]:
        worker.task.fail_readers(UnavailableError("the connection broke"))
    client.turn()
    client.tasks.reopen_ended()
    client.tasks.maintain(time.monotonic())
    assert sum(worker.openings[-1].granted - worker.openings[-1].received for worker in workers[:2]) <= 1
    assert client.tasks.outstanding <= 1
    client.tasks.close()


def test_what_is_buffered_of_a_task_that_is_gone_counts_until_it_is_consumed(workers: list[Worker]) -> None:
    client = Client(max_outstanding_requests=5)
    client.tasks.set_tasks((workers[0].info(),))
    client.tasks.maintain(time.monotonic())
    wait_for(lambda: len(buffered(client)) == 5, what="five elements")
    client.tasks.set_tasks((workers[1].info(),))
    client.tasks.maintain(time.monotonic())
    assert workers[1].openings[-1].granted == 0
    assert client.tasks.outstanding == 5
    assert client.read(55) == [*range(5), *range(100, 150)]
    client.tasks.close()


def test_a_task_that_waits_for_a_worker_holds_no_credit_that_another_one_needs(workers: list[Worker]) -> None:
    client = Client(max_outstanding_requests=1)
    client.tasks.set_tasks((replace(workers[0].info(), unassigned=True, worker_uid=""), workers[1].info()))
    assert client.read(50) == list(range(100, 150))
    client.tasks.close()


def test_credit_that_is_granted_while_a_task_is_being_opened_reaches_its_worker(workers: list[Worker]) -> None:
    """The user's thread consumes and grants while another one follows the dispatcher's updates."""
    client = Client(max_outstanding_requests=1)
    client.tasks.set_tasks((workers[0].info(),))
    client.tasks.maintain(time.monotonic())
    wait_for(lambda: len(buffered(client)) == 1, what="an element")
    workers[0].sinks[-1].fail(UnavailableError("the connection broke"))

    def consume() -> None:
        workers[0].meanwhile = lambda: None
        [(hold, piece)] = client.inbox.slices
        client.inbox.slices.clear()
        client.got += [int(element) for element in piece.elements()]
        client.tasks.mark_dequeued(hold, 1, piece.nbytes)
        client.tasks.mark_consumed(hold, 1)
        client.tasks.flush_acks(time.monotonic())

    workers[0].meanwhile = consume
    sink, error = client.inbox.failed.popleft()
    client.tasks.handle_broken(sink, error)
    [hold] = client.tasks.reads.values()
    client.tasks.maintain(hold.retry_at)
    assert client.read(50) == list(range(50))
    client.tasks.close()


def hang_and_be_recalled(client: Client, worker: Worker) -> None:
    """Let the only credit lie at a worker that does not answer, until it is recalled."""
    worker.hangs = True
    [hold] = [hold for hold in client.tasks.reads.values() if hold.info.worker == worker.uid]

    def look() -> bool:
        client.turn()
        return hold.account.recalling

    wait_for(look, what="the recall")


def endless(uid: str) -> Worker:
    """A worker whose task never has an element."""
    return Worker(uid, Dataset.range(5).repeat().filter(lambda _: False))


@pytest.mark.slow
def test_a_recall_that_a_dead_worker_never_answered_does_not_starve_the_one_that_takes_its_place(
    workers: list[Worker],
) -> None:
    dead = endless("dead")
    client = Client(max_outstanding_requests=1)
    try:
        client.tasks.set_tasks((dead.info(), workers[1].info()))
        hang_and_be_recalled(client, dead)
        heir = TaskInfo(task_id="of dead", worker="w0", worker_uid="w0", incarnation=2)
        client.tasks.set_tasks((heir, workers[1].info()))
        assert sorted(client.read(100)) == [*range(50), *range(100, 150)]
    finally:
        client.tasks.close()
        dead.stop()


def test_a_recall_that_was_lost_with_its_connection_is_not_waited_for(workers: list[Worker]) -> None:
    dead = endless("dead")
    client = Client(max_outstanding_requests=1)
    try:
        client.tasks.set_tasks((dead.info(), workers[1].info()))
        hang_and_be_recalled(client, dead)
        dead.sinks[-1].fail(UnavailableError("the connection broke"))
        dead.hangs = False
        assert client.read(5)[:5] == list(range(100, 105))
    finally:
        client.tasks.close()
        dead.stop()


def test_credit_that_is_being_recalled_is_not_given_again_by_what_is_said_meanwhile(workers: list[Worker]) -> None:
    """Else its worker would send what the reader has promised to another one."""
    client = Client(max_outstanding_requests=1)
    client.tasks.set_tasks((workers[0].info(), workers[1].info()))
    client.read(10)
    said: list[int] = []
    [hold] = [hold for hold in client.tasks.reads.values() if hold.info.worker == "w0"]
    with client.inbox.changed:
        hold.account.recalling = True
        hold.account.granted = hold.account.received + 1
    assert hold.connection is not None
    hold.connection.credit = lambda granted, *_: said.append(granted)  # type: ignore[method-assign]
    hold.acked = -1
    client.tasks.send_acks()
    assert said
    assert max(said) <= hold.account.received
    client.tasks.close()


# ---- losses


def loss(worker: str, splits: int = 0, elements: int = -1, **fields: Any) -> ClientUpdate:
    known = {"reason": "was lost", **fields}
    return ClientUpdate(losses=(Loss(task_id="t", worker=worker, splits=splits, elements=elements, **known),))


@pytest.mark.parametrize(
    "splits, elements, again, text",
    [
        (3, 12, False, "12 elements of its part did not arrive and will not come"),
        (3, 12, True, "12 elements of its part did not arrive and will not come; its part begins again"),
        (7, -1, False, "7 splits did not arrive whole and will not come"),
        (3, 1, False, "1 element of its part did not arrive and will not come"),
        (0, -1, False, "an unknown number of elements of its part did not arrive and will not come"),
        (0, 0, False, "the rest of its part will not come"),
        (0, 0, True, "its part begins again"),
    ],
)
def test_losses_are_announced_with_what_is_known_of_them(splits: int, elements: int, again: bool, text: str) -> None:
    client = Client(mode=ShardingPolicy.DYNAMIC, job_name="train")
    whole = rf"worker w3 was lost \(job 'train'\): {text}; reading continues with the others"
    with pytest.warns(DataLossWarning, match=whole):
        client.tasks.apply_updates([loss("w3", splits, elements, restarts=again)])


def test_losses_are_counted_in_elements_where_their_number_is_known() -> None:
    client = Client()
    with pytest.warns(DataLossWarning):
        client.tasks.apply_updates([loss("w4", 2, elements=17), loss("w5", 1)])
    assert client.tasks.lost == 18


def test_parts_are_counted_where_nobody_knows_how_many_elements_they_had() -> None:
    client = Client()
    with pytest.warns(DataLossWarning):
        client.tasks.apply_updates([loss("w4"), loss("w5", 1), loss("w6", elements=0), loss("w7", elements=4)])
    assert (client.tasks.lost, client.tasks.lost_parts) == (5, 1)


def test_what_did_not_reach_one_trainer_is_told_to_that_one_alone() -> None:
    client = Client(mode=ShardingPolicy.OFF, job_name="search", trainer_id="lr=0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.tasks.apply_updates([loss("w3", elements=12, trainer_id="lr=0.2")])
    assert client.tasks.lost == 0
    with pytest.warns(DataLossWarning, match="12 elements"):
        client.tasks.apply_updates([loss("w3", elements=12, trainer_id="lr=0.1")])
    assert client.tasks.lost == 12


def test_where_warnings_are_errors_the_news_is_followed_all_the_same(workers: list[Worker], client: Client) -> None:
    client.tasks.set_tasks((workers[0].info(),))
    client.read(50)
    update = ClientUpdate(has_state=True, tasks=(workers[1].info(),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataLossWarning):
            client.tasks.apply_updates([loss("w0"), update])
    assert sorted(client.read(100)) == [*range(50), *range(100, 150)]


# ---- credit that a broken reading had


def test_credit_moves_at_once_when_a_reading_breaks(workers: list[Worker]) -> None:
    client = Client(max_outstanding_requests=1)
    workers[1].refuses = UnavailableError("not now")
    client.tasks.set_tasks((workers[1].info(), workers[0].info()))
    assert client.read(50) == list(range(50)), "the only credit lay at a worker that cannot be reached"
    client.tasks.close()


@pytest.mark.parametrize(
    "transfer, options, may",
    [
        (SHARED_MEMORY, {}, True),
        (GRPC, {}, False),
        (SHARED_MEMORY, {"max_outstanding_requests": 1}, False),
        (SHARED_MEMORY, {"trainer_id": "lr=0.1"}, False),
    ],
)
def test_only_a_reader_whose_workers_may_go_on_waits_before_it_tells_what_it_consumed(
    transfer: Transfer, options: dict[str, Any], may: bool
) -> None:
    client = Client(**options)
    client.tasks.set_tasks((TaskInfo(task_id="t"),))
    hold = client.tasks.reads["t"]
    hold.transfer = transfer
    assert client.tasks.can_delay_acks is may


@pytest.mark.parametrize("others, most", [(0, (64 << 20) + 1), (1, BUFFER_BYTES // 2)])
def test_a_second_large_element_may_be_on_its_way_over_a_stream_that_nothing_else_fills(others: int, most: int) -> None:
    tasks = TaskTable(Inbox(), "client", ReadOptions(mode=ShardingPolicy.OFF, protocol="grpc"), "token")
    tasks.set_tasks(tuple(TaskInfo(task_id=f"t{n}") for n in range(1 + others)))
    hold = tasks.reads["t0"]
    hold.transfer = GRPC
    for _ in range(20):  # starving again and again, one element after the other
        hold.count_bytes(64 << 20)
        tasks.mark_dequeued(hold, 1, 64 << 20)
        tasks.mark_consumed(hold, 1)
        tasks.raise_byte_limits()
    assert hold.max_bytes == most

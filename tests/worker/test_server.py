"""Workers as objects: started, stopped, drained, refused; with a real dispatcher and real ports."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace

import dsnb
from dsnb.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from dsnb.pipeline.engine.autotune import SerialTrial
from dsnb.transfer import local
from dsnb.wire.channel import open_channel
from dsnb.wire.messages import DroppedTask, TaskOrder, TaskRequest, WorkerOrder, WorkerReport
from dsnb.wire.methods import GET_DATASET, GET_TASK, SESSION
from tests.support.cluster import Cluster
from tests.support.ports import unused_port
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for
from tests.wire.serving import TOKEN, address, serving
from tests.worker.collecting import Collector, opening


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=0) as cluster:
        yield cluster


@pytest.fixture
def free_port() -> int:
    return unused_port()


def config(cluster: Cluster, **changes: object) -> dsnb.WorkerConfig:
    fields = {"dispatcher_address": cluster.address, "token": cluster.dispatcher.token, **changes}
    return dsnb.WorkerConfig(**fields)  # type: ignore[arg-type]


def port_of(worker: dsnb.WorkerServer) -> int:
    return int(worker.address.rpartition(":")[2])


def test_a_worker_is_registered_when_its_constructor_returns(cluster: Cluster) -> None:
    assert cluster.service.workers == 0
    cluster.add_worker()
    assert cluster.service.workers == 1
    cluster.add_worker()
    assert [worker.name for worker in cluster.status().workers] == ["w0", "w1"]


def test_starting_may_wait_and_may_be_asked_for_twice(cluster: Cluster) -> None:
    worker = dsnb.WorkerServer(config(cluster), start=False)
    assert repr(worker) == "WorkerServer(unnamed, not started)"
    with pytest.raises(FailedPreconditionError, match="was not started"):
        _ = worker.address
    with pytest.raises(FailedPreconditionError, match="was not started"):
        worker.join()
    with worker:
        worker.start()
        assert repr(worker) == "WorkerServer(w0, running)"
        assert len(cluster.status().workers) == 1


def test_a_stopped_worker_is_gone_at_once_and_stays_stopped(cluster: Cluster) -> None:
    worker = cluster.add_worker()
    worker.stop()
    worker.stop()
    worker.join()
    assert cluster.service.workers == 0
    assert local.find(worker.uid) is None
    with pytest.raises(FailedPreconditionError, match="cannot be started after it has been stopped"):
        worker.start()


def test_workers_divide_the_processors_of_their_host_if_they_compete_for_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recording(SerialTrial):
        def __post_init__(self) -> None:
            shares.append(self.cpus)

    def read(demand: int) -> list[float]:
        for worker in cluster.workers:
            wait_for(partial(knows, worker, demand), what="the order with the processors of all workers")
        shares.clear()
        dataset = dsnb.Dataset.range(8).map(abs, dsnb.AUTOTUNE)
        assert numbers(dataset.apply(dsnb.distribute("parallel_epochs", cluster.service)))
        return list(shares)

    def knows(worker: dsnb.WorkerServer, demand: int) -> bool:
        return bool(worker.debug_state()["cpus_of_host_workers"] == demand)

    shares: list[float] = []
    monkeypatch.setattr("dsnb.pipeline.operations.map.SerialTrial", Recording)
    monkeypatch.setattr("dsnb.worker.server.usable_cpus", lambda: 3)
    monkeypatch.setattr("dsnb.worker.server.host_cpus", lambda: 4)
    cluster.add_worker()
    cluster.add_worker()
    assert read(demand=6) == [2.0, 2.0]
    cluster.workers.pop().stop()
    assert read(demand=3) == [3.0]


def test_who_stops_it_second_and_who_waits_for_it_go_on_when_nothing_of_it_is_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = cluster.add_worker()
    calls = [threading.Thread(target=call) for call in (worker.stop, worker.stop, worker.join)]
    withdraw, gate = local.withdraw, threading.Event()
    monkeypatch.setattr(local, "withdraw", lambda uid: gate.wait(30.0) and withdraw(uid))
    for thread in calls:
        thread.start()
    wait_for(lambda: worker.stopped, what="the stop to begin")
    for thread in calls:
        thread.join(0.1)
        assert thread.is_alive()
    gate.set()
    for thread in calls:
        thread.join(10.0)
        assert not thread.is_alive()
    assert not cluster.status().workers


def test_a_worker_may_choose_its_name_and_what_others_are_told_of_its_address(cluster: Cluster) -> None:
    worker = cluster.add_worker(name="gpu-host", worker_address="localhost:%port%")
    [status] = cluster.status().workers
    assert (status.name, status.address) == ("gpu-host", worker.address)
    assert worker.address.startswith("localhost:")


def test_a_taken_port_is_refused_and_nothing_is_left(cluster: Cluster) -> None:
    port = port_of(cluster.add_worker())
    with pytest.raises(AlreadyExistsError, match="the port is taken"):
        cluster.add_worker(port=port)
    assert cluster.service.workers == 1


def test_a_worker_with_the_wrong_token_is_refused_at_once(cluster: Cluster) -> None:
    began = time.monotonic()
    with pytest.raises(PermissionDeniedError, match="the token is wrong"):
        dsnb.WorkerServer(config(cluster, token="guessed"))
    assert time.monotonic() - began < 5.0


def test_ctrl_c_ends_the_start_of_a_worker_also_if_another_thread_receives_the_signal(free_port: int) -> None:
    def interrupt() -> None:
        wait_for(workers_sessions, what="the worker to look for its dispatcher")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=f"127.0.0.1:{free_port}"))
    assert time.monotonic() - began < 8.0, "it waited to the end"
    thread.join()


def workers_sessions() -> list[threading.Thread]:
    """The threads in which workers of this process talk to their dispatchers."""
    return [thread for thread in threading.enumerate() if thread.name == "dsnb-worker-session"]


def test_a_worker_without_a_dispatcher_gives_up_in_its_stated_time(free_port: int) -> None:
    began = time.monotonic()
    settings = dsnb.WorkerConfig(dispatcher_address=f"127.0.0.1:{free_port}", token="t", dispatcher_timeout_ms=300)
    with pytest.raises(UnavailableError, match=f"no dispatcher answers at 127.0.0.1:{free_port}") as caught:
        dsnb.WorkerServer(settings)
    assert "tried for 0.3 seconds" in caught.value.did
    assert time.monotonic() - began < 5.0


def test_a_worker_whose_dispatcher_is_gone_for_long_stops_when_nobody_reads_it(cluster: Cluster) -> None:
    worker = cluster.add_worker(dispatcher_gone_ms=300)
    elements = iter(dsnb.Dataset.range(1 << 40).apply(dsnb.distribute("parallel_epochs", cluster.service)))
    next(elements)
    wait_for(lambda: cluster.status().workers[0].readers == 1, what="the reader to be counted")
    cluster.dispatcher.stop()
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        next(elements)
    assert not worker.stopped, "somebody reads it"
    elements.close()
    wait_for(lambda: worker.stopped, what="the worker to stop")
    with pytest.raises(UnavailableError, match="has not answered for"):
        worker.join()


def test_what_was_kept_for_a_job_goes_with_it(cluster: Cluster) -> None:
    worker = cluster.add_worker()
    cache = dsnb.CrossTrainerCache("a")
    policy = dsnb.distribute("parallel_epochs", cluster.service, job_name="train", cross_trainer_cache=cache)
    elements = iter(dsnb.Dataset.range(1 << 40).map(lambda n: np.full(1 << 16, n % 251, np.uint8)).apply(policy))
    first(50, (element[0] for element in elements))
    elements.close()  # type: ignore[attr-defined]
    reader, [task_id] = Collector(), worker.debug_state()["tasks"]
    reading = worker.open(replace(opening(trainer="b", granted=10), task_id=task_id), reader)
    wait_for(lambda: reader.count >= 10, what="frames of the window")
    kept = [weakref.ref(piece.frame) for piece in reader.pieces]
    cluster.service.cancel("train")
    wait_for(lambda: not worker.debug_state()["tasks"], what="the worker to drop the task")
    reader.pieces.clear()
    wait_for(lambda: not any(frame() for frame in kept), what="the window's frames to go, though a reader is kept here")
    reading.leave(0)


def test_a_worker_asked_for_a_task_that_nobody_ordered_says_so(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match="the task t is unknown"):
        cluster.add_worker().open(opening(), Collector())


class Orders:
    """A worker's control stream as a dispatcher serves it, whose orders a test gives."""

    def __init__(self) -> None:
        self.sending: SimpleQueue[WorkerOrder | None] = SimpleQueue()
        self.reports: list[WorkerReport] = []

    def session(self, reports: Iterator[WorkerReport], context: grpc.ServicerContext) -> Iterator[WorkerOrder]:
        context.add_callback(lambda: self.sending.put(None))
        threading.Thread(target=self._take, args=(reports,), daemon=True).start()
        yield WorkerOrder(welcome=True, name="w0", instance="i")
        yield from iter(self.sending.get, None)

    def _take(self, reports: Iterator[WorkerReport]) -> None:
        with contextlib.suppress(Exception):  # grpc raises a bare Exception when the stream breaks
            for report in reports:
                self.reports.append(report)
        self.sending.put(None)  # the worker has closed its side and waits for the end

    def give(self, order: WorkerOrder) -> None:
        """Give an order, and wait until it was carried out."""
        self.sending.put(order)
        self.sending.put(WorkerOrder(report_seq=(number := len(self.reports) + 1_000)))
        wait_for(lambda: any(report.seq == number for report in list(self.reports)), what="the order's end")


@contextmanager
def ordered(orders: Orders, **handlers: Any) -> Iterator[dsnb.WorkerServer]:
    """A worker that gets these orders, and these answers to what it asks."""
    methods: dict[Any, Any] = {SESSION: orders.session}
    methods |= {method: handlers[method.name] for method in (GET_TASK, GET_DATASET) if method.name in handlers}
    with (
        serving(methods) as dispatcher,
        dsnb.WorkerServer(dsnb.WorkerConfig(address(dispatcher), token=TOKEN)) as worker,
    ):
        yield worker


def test_a_task_that_is_dropped_while_a_reader_asks_for_it_does_not_begin() -> None:
    """Its order is on its way, and the word to drop it comes first."""
    orders, drops = Orders(), [True, False]

    def answered_late(request: TaskRequest, context: grpc.ServicerContext) -> TaskOrder:
        if drops.pop(0):
            orders.give(WorkerOrder(drop=(DroppedTask(task_id=request.task_id, incarnation=1),)))
        return TaskOrder(task_id=request.task_id, incarnation=1)

    with ordered(orders, GetTask=answered_late) as worker:
        with pytest.raises(NotFoundError, match="the task t was dropped"):
            worker.open(opening(), Collector())
        assert worker.idle
        worker.open(opening(), Collector()).leave(0)
        assert not worker.idle, "what was noted of it is forgotten"


def test_an_order_that_comes_late_does_not_end_the_task_of_a_later_one() -> None:
    """As after a suspension: the worker was counted as lost, and has its task again before it handles the answer."""
    orders, earlier = Orders(), TaskOrder(task_id="t", incarnation=1, paused=True)

    def answered_late(request: TaskRequest, context: grpc.ServicerContext) -> TaskOrder:
        orders.give(WorkerOrder(start=(replace(earlier, incarnation=2, paused=False),)))
        return earlier

    def check(worker: dsnb.WorkerServer) -> None:
        task = worker.debug_state()["tasks"]["t"]
        assert (task["incarnation"], task["paused"], len(task["readers"])) == (2, False, 1)

    with ordered(orders, GetTask=answered_late) as worker:
        reading = worker.open(opening(), Collector())
        check(worker)
        orders.give(WorkerOrder(start=(earlier,)))
        check(worker)
        reading.leave(0)


def test_a_drop_that_comes_late_leaves_the_task_of_a_later_order() -> None:
    """A reader of the task's next incarnation, which the same worker gets, came before the drop of the last one."""
    orders, dropped = Orders(), DroppedTask(task_id="t", incarnation=1)

    def answered(request: TaskRequest, context: grpc.ServicerContext) -> TaskOrder:
        orders.give(WorkerOrder(drop=(dropped,)))
        return TaskOrder(task_id=request.task_id, incarnation=2)

    with ordered(orders, GetTask=answered) as worker:
        reading = worker.open(opening(), Collector())
        orders.give(WorkerOrder(drop=(dropped,)))
        assert [task["incarnation"] for task in worker.debug_state()["tasks"].values()] == [2]
        orders.give(WorkerOrder(drop=(replace(dropped, incarnation=2),)))
        assert worker.idle
        reading.leave(0)


def test_a_reader_is_given_nothing_of_another_incarnation_than_it_was_told_of(cluster: Cluster) -> None:
    """A worker that was suspended has its task's earlier incarnation still, of which others have had elements."""
    dataset_id = dsnb.register_dataset(cluster.service, dsnb.Dataset.range(5))
    definition = cluster.dispatcher.debug_state()["datasets"][dataset_id]
    earlier = TaskOrder(task_id="t", dataset_id=dataset_id, definition=definition, mode="OFF", incarnation=1)
    orders, asked, sink, other = Orders(), opening(), Collector(), Collector()
    with (
        closing(open_channel(cluster.address, cluster.dispatcher.token)) as channel,
        ordered(
            orders,
            GetTask=lambda request, context: replace(earlier, incarnation=2),
            GetDataset=lambda request, context: channel.replies(GET_DATASET, request),
        ) as worker,
    ):
        orders.give(WorkerOrder(start=(earlier,)))
        assert not worker.idle
        worker.open(replace(asked, incarnation=2), sink)
        assert sink.wait_for_end() == list(range(5))
        assert worker.debug_state()["tasks"]["t"]["incarnation"] == 2
        with pytest.raises(UnavailableError, match="expects incarnation 3"):
            worker.open(replace(asked, client_id="other", incarnation=3), other)
    assert not other.elements


def test_another_worker_takes_over_where_the_readers_of_a_stopped_one_are(cluster: Cluster) -> None:
    """Also where the worker that stops has never reported how far they are."""
    worker = cluster.add_worker(heartbeat_interval_ms=60_000)
    policy = dsnb.distribute("distributed_epoch", cluster.service, job_name="j", max_outstanding_requests=1)
    elements = iter(dsnb.Dataset.range(64).apply(policy))
    got = first(41, elements)
    worker.stop()
    cluster.add_worker()
    got += numbers(elements)
    assert sorted(got) == list(range(64))
    assert cluster.job("j").lost_splits == 0


def test_a_drained_worker_takes_nothing_new_and_becomes_idle(cluster: Cluster) -> None:
    worker = cluster.add_worker()
    worker.drain()
    wait_for(lambda: cluster.status().workers[0].state == "draining", what="the worker to be drained")
    elements = iter(dsnb.Dataset.range(5).apply(dsnb.distribute("distributed_epoch", cluster.service)))
    assert worker.idle
    other = cluster.add_worker()
    assert sorted(numbers(elements)) == list(range(5))
    assert other.name == "w1"

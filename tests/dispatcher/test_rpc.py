"""Control streams as the dispatcher serves them, over a real connection, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

import dsnb
from dsnb.errors import NotFoundError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.grpc_errors import error_from_call
from dsnb.wire.messages import (
    ClientRelease,
    ClientReport,
    DroppedTask,
    JoinReply,
    JoinRequest,
    TaskReport,
    WorkerReport,
)
from dsnb.wire.methods import FOLLOW, JOIN, SESSION
from tests.support.cluster import Cluster
from tests.support.waiting import wait_for

SETTINGS = {"job_gc_check_interval_ms": 50, "reconnect_ms": 150, "worker_timeout_ms": 60_000, "task_gc_timeout_ms": 50}


@pytest.fixture(params=[{}])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(workers=0, dispatcher={**SETTINGS, **request.param}) as cluster:
        yield cluster


class Stream:
    """One end of a control stream: say something, hear something."""

    def __init__(self, channel: Channel, method: Any, first: Any) -> None:
        self._says: SimpleQueue[Any] = SimpleQueue()
        self._says.put(first)
        self._address = channel.address
        self.call = channel.stream(method, iter(self._says.get, None), timeout=30.0)

    def say(self, message: Any) -> None:
        self._says.put(message)

    def hear(self) -> Any:
        """The next message; the stream's error as ours."""
        try:
            return next(self.call)
        except grpc.RpcError as error:
            raise error_from_call(error, self._address) from None

    def wait_for_end(self) -> None:
        """Wait until the other side ends it, in good order; what it said before is passed over."""
        for _ in self.call:
            pass

    def hang_up(self) -> None:
        self._says.put(None)
        self.call.cancel()


class Callers:
    """Whoever talks to the dispatcher in a test; all hang up at its end."""

    def __init__(self, cluster: Cluster, channel: Channel) -> None:
        self._cluster = cluster
        self._channel = channel
        self._streams: list[Stream] = []

    def worker(self, uid: str, **fields: Any) -> Stream:
        return self._stream(SESSION, WorkerReport(uid=uid, **{"address": f"127.0.0.1:{uid}", **fields}))

    def client(self, client_id: str) -> Stream:
        instance = self._cluster.dispatcher.debug_state()["instance"]
        return self._stream(FOLLOW, ClientReport(client_id=client_id, instance=instance))

    def join(self) -> JoinReply:
        dataset_id = dsnb.register_dataset(self._cluster.service, dsnb.Dataset.range(20))
        return self._channel.call(
            JOIN, JoinRequest(dataset_id=dataset_id, job_name="j", mode="OFF", compression="AUTO")
        )

    def hang_up(self) -> None:
        for stream in self._streams:
            stream.hang_up()

    def _stream(self, method: Any, first: Any) -> Stream:
        self._streams.append(Stream(self._channel, method, first))
        return self._streams[-1]


@pytest.fixture
def callers(cluster: Cluster) -> Iterator[Callers]:
    with closing(open_channel(cluster.address, cluster.dispatcher.token)) as channel:
        made = Callers(cluster, channel)
        yield made
        made.hang_up()


def workers(cluster: Cluster) -> list[str]:
    """The names of those that the dispatcher counts on; nobody is asked to report."""
    return [worker.name for worker in cluster.dispatcher.reported_status().workers]


def test_a_worker_is_welcomed_first_and_told_its_name(callers: Callers) -> None:
    first = callers.worker("a").hear()
    second = callers.worker("b", name="mine").hear()
    assert [(order.welcome, order.name) for order in (first, second)] == [(True, "w0"), (True, "mine")]


def test_a_worker_hears_of_its_tasks_and_of_clients_that_are_gone(cluster: Cluster, callers: Callers) -> None:
    worker = callers.worker("a")
    worker.hear()
    joined = callers.join()
    [start] = worker.hear().start
    assert start.task_id == joined.tasks[0].task_id
    client = callers.client(joined.client_id)
    client.hear()
    client.say(ClientReport(client_id=joined.client_id, leaving=True))
    client.wait_for_end()
    assert worker.hear().releases == (ClientRelease(client_id=joined.client_id, number=1),)
    assert worker.hear().drop == (DroppedTask(task_id=start.task_id, incarnation=start.incarnation),)


def test_a_worker_that_says_goodbye_is_gone_at_once(cluster: Cluster, callers: Callers) -> None:
    worker = callers.worker("a")
    worker.hear()
    worker.say(WorkerReport(uid="a", leaving=True))
    worker.wait_for_end()
    assert workers(cluster) == []


@pytest.mark.parametrize("cluster", [{"reconnect_ms": 1_500}], indirect=True)
def test_a_worker_whose_stream_breaks_has_a_moment_to_come_back(cluster: Cluster, callers: Callers) -> None:
    worker = callers.worker("a")
    worker.hear()
    worker.hang_up()
    again = callers.worker("a", tasks=(TaskReport(task_id="old", incarnation=3),))
    assert again.hear().welcome
    assert again.hear().drop == (DroppedTask(task_id="old", incarnation=3),), (
        "a task that nobody knows was not taken off it"
    )
    assert workers(cluster) == ["w0"]
    again.hang_up()
    wait_for(lambda: not workers(cluster), what="the worker to be given up")


def test_of_two_streams_of_one_worker_the_newer_one_holds(cluster: Cluster, callers: Callers) -> None:
    old = callers.worker("a")
    old.hear()
    new = callers.worker("a")
    new.hear()
    old.wait_for_end()
    callers.join()
    assert new.hear().start
    old.hang_up()
    new.say(WorkerReport(uid="a", rss_bytes=12_345))
    reported = cluster.dispatcher.reported_status
    wait_for(lambda: [worker.rss_bytes for worker in reported().workers] == [12_345], what="the report")
    assert workers(cluster) == ["w0"]


def test_a_worker_that_was_given_up_has_to_register_again(cluster: Cluster, callers: Callers) -> None:
    worker = callers.worker("a")
    worker.hear()
    cluster.dispatcher.worker_died("a", "was killed")
    worker.wait_for_end()
    assert callers.worker("a").hear().name == "w1"


def test_a_client_hears_how_things_are_and_then_what_changes(cluster: Cluster, callers: Callers) -> None:
    joined = callers.join()
    client = callers.client(joined.client_id)
    first = client.hear()
    assert (first.has_state, first.tasks, first.finished) == (True, (), False)
    worker = callers.worker("a")
    worker.hear()
    [task] = client.hear().tasks
    assert task.worker == "w0"
    worker.say(WorkerReport(uid="a", ended=(task.task_id,)))
    assert client.hear().finished


def test_a_client_that_is_unknown_is_told_so(callers: Callers) -> None:
    with pytest.raises(NotFoundError, match="Unknown iteration client id 99"):
        callers.client("99").hear()


def test_a_client_whose_stream_breaks_is_given_up_after_a_moment(cluster: Cluster, callers: Callers) -> None:
    joined = callers.join()
    client = callers.client(joined.client_id)
    client.hear()
    client.hang_up()
    wait_for(lambda: cluster.dispatcher.idle, what="the client to be given up")


@pytest.mark.parametrize("cluster", [{"client_timeout_ms": 1_500}], indirect=True)
def test_a_client_that_was_given_up_while_it_followed_is_told(cluster: Cluster, callers: Callers) -> None:
    joined = callers.join()
    client = callers.client(joined.client_id)
    client.hear()
    client.wait_for_end()
    with pytest.raises(NotFoundError):
        callers.client(joined.client_id).hear()

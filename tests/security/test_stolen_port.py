"""What a process gets, and gets done, that stands where a service is expected.

It may hold the port of a dispatcher that has died, answer whatever it likes, pass calls on to where the dispatcher is
now, change what comes back, and make the calls that it has recorded again.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import dsnb
from dsnb.errors import DsnbError, UnavailableError
from dsnb.pipeline.graph import serialise
from dsnb.transfer import local
from dsnb.wire.channel import open_channel
from dsnb.wire.codec import encode
from dsnb.wire.messages import (
    ClientUpdate,
    DatasetReply,
    DroppedTask,
    EndReply,
    JoinReply,
    RegisterReply,
    SplitsReply,
    TaskInfo,
    TaskOrder,
    WorkerOrder,
)
from dsnb.wire.methods import READ
from tests.security.between import Impostor, Recorder, Relay, traces_of
from tests.support.cluster import Cluster
from tests.support.dispatchers import RestartableDispatcher
from tests.support.reading import run_in_threads
from tests.support.waiting import wait_for

EVIL = "evil-task"


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[RestartableDispatcher]:
    """A dispatcher in a process of its own, which keeps its token in its work folder."""
    with RestartableDispatcher(tmp_path / "work") as dispatcher:
        yield dispatcher


@contextmanager
def worker_of(dispatcher: RestartableDispatcher, **settings: Any) -> Iterator[dsnb.WorkerServer]:
    """A worker of this process that is read as from another one."""
    config = {"dispatcher_address": dispatcher.target, "token": dispatcher.token, "heartbeat_interval_ms": 100}
    worker = dsnb.WorkerServer(dsnb.WorkerConfig(**{**config, **settings}))
    local.withdraw(worker.uid)
    try:
        yield worker
    finally:
        worker.stop()


def marking(path: Path) -> bytes:
    """The definition of a pipeline whose function leaves a mark where it runs."""

    def mark(x: Any) -> Any:
        path.write_text("it ran")
        return x

    return serialise(dsnb.Dataset.range(3).map(mark).operation).definition


def evil_order() -> WorkerOrder:
    task = TaskOrder(task_id=EVIL, dataset_id="d", job_name="j", mode="OFF", incarnation=1)
    return WorkerOrder(
        welcome=True,
        name="w0",
        instance="x",
        start=(task,),
        drop=(DroppedTask(task_id="1", incarnation=9),),
        drain=True,
    )


def evil_replies(definition: bytes, address: str) -> Callable[[str], list[bytes]]:
    """The answers of a service that would have others run its code, and read its data."""
    task = TaskInfo(task_id=EVIL, worker="w9", worker_uid="u", address=address, incarnation=1)
    replies: dict[str, list[Any]] = {
        "Session": [evil_order()],
        "GetDataset": [DatasetReply(dataset_id="d", definition=definition)],
        "GetTask": [evil_order().start[0]],
        "GetSplits": [SplitsReply(first=0, end=0, done=True)],
        "Follow": [ClientUpdate(has_state=True, tasks=(task,), finished=True, cancelled_by="nobody")],
        "ConfirmEnd": [EndReply(finished=True)],
        "Join": [JoinReply(client_id="1", job_name="j", tasks=(task,), report_interval_ms=100)],
        "Register": [RegisterReply(dataset_id="d")],
    }
    return lambda path: [encode(reply) for reply in replies.get(path.rpartition("/")[2], [])]


def nothing(_shown: list[tuple[str, Any]]) -> Any:
    return ()


def the_callers_own(shown: list[tuple[str, Any]]) -> Any:
    return [(key, value) for key, value in shown if key.endswith("-bin")]


def the_callers_own_cut(shown: list[tuple[str, Any]]) -> Any:
    return [(key, value[-64:]) for key, value in shown if key.endswith("-bin")]


def anything(_shown: list[tuple[str, Any]]) -> Any:
    return (("dsnb-proof-bin", secrets.token_bytes(52)),)


def answers_for(*wanted: str) -> Callable[[Any], bool]:
    return lambda place: all(any(path.endswith(name) for path in place.paths) for name in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("metadata", [nothing, the_callers_own, the_callers_own_cut, anything])
def test_who_takes_a_dead_dispatchers_port_is_shown_no_token_and_obeyed_by_nobody(
    dispatcher: RestartableDispatcher, tmp_path: Path, metadata: Any
) -> None:
    token, mark = dispatcher.token, tmp_path / "mark"
    with worker_of(dispatcher) as worker:
        endless = dsnb.Dataset.range(10**9).apply(
            dsnb.distribute("distributed_epoch", dsnb.connect(dispatcher.target, token), data_transfer_protocol="grpc")
        )
        elements = iter(endless)
        got = [int(next(elements)) for _ in range(1000)]
        known = set(worker.debug_state()["tasks"])
        dispatcher.kill()
        replies = evil_replies(marking(mark), "127.0.0.1:1")
        with Impostor(dispatcher.port, replies, metadata) as impostor:
            wait_for(lambda: len(impostor.paths) >= 12, what="the worker and the reader to call", timeout=60)
            with pytest.raises(DsnbError):
                dsnb.connect(dispatcher.target, token)
            assert traces_of(token, impostor.shown) == []
            assert set(worker.debug_state()["tasks"]) == known
            assert not worker.stopped
        dispatcher.start()
        dispatcher.wait_until_ready()
        while len(got) < 40_000:
            got.append(int(next(elements)))
        elements.close()
        assert got == sorted(set(got))
    assert not mark.exists()


@pytest.mark.slow
def test_what_passes_between_the_parts_of_a_service_holds_no_trace_of_its_token() -> None:
    table = np.arange(400_000)  # travels as a blob
    with dsnb.DispatchServer() as dispatcher, closing_recorder(dispatcher.target) as to_dispatcher:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        with closing_recorder(f"127.0.0.1:{port}") as to_worker:
            config = dsnb.WorkerConfig(
                dispatcher_address=to_dispatcher.address,
                token=dispatcher.token,
                port=port,
                worker_address=to_worker.address,
                heartbeat_interval_ms=50,
            )
            with dsnb.WorkerServer(config) as worker:
                local.withdraw(worker.uid)
                service = dsnb.connect(to_dispatcher.address, dispatcher.token)
                for mode in ("parallel_epochs", "distributed_epoch"):
                    read = dsnb.Dataset.range(50).map(lambda i: table[i]).repeat(2)
                    there = read.apply(dsnb.distribute(mode, service, mode, data_transfer_protocol="grpc"))
                    assert len(list(there)) == 100
                service.status()
                assert len(to_dispatcher.heard) > table.nbytes
                assert len(to_worker.heard) > 1000
            heard = bytes(to_dispatcher.heard + to_worker.heard)
            assert traces_of(dispatcher.token, heard) == []


@contextmanager
def closing_recorder(upstream: str) -> Iterator[Recorder]:
    recorder = Recorder(upstream.removeprefix("grpc://"))
    try:
        yield recorder
    finally:
        recorder.close()


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["Session", "GetDataset", "GetTask", "GetSplits"])
def test_who_passes_calls_on_to_where_the_dispatcher_is_now_cannot_have_a_worker_run_something_else(
    tmp_path: Path, changed: str
) -> None:
    """Its port was taken while it was away, so it came back at another one."""
    mark = tmp_path / "mark"
    replies = evil_replies(marking(mark), "127.0.0.1:1")

    def change(name: str, number: int, data: bytes) -> bytes:
        # Two messages of protobuf, one after the other, are one with the fields of both.
        return b"".join(replies(f"/{name}")) + data if name == changed and number == 0 else data

    with RestartableDispatcher(tmp_path / "work") as dispatcher, Relay(dispatcher.target[7:], change=change) as relay:
        token = dispatcher.token
        patience_ms = 1500 if changed == "Session" else 8000  # otherwise it has to join first, on a busy machine too
        config = dsnb.WorkerConfig(dispatcher_address=relay.address, token=token, dispatcher_timeout_ms=patience_ms)
        try:
            worker = dsnb.WorkerServer(config)
        except DsnbError:
            assert changed == "Session"  # which it needs to join
            assert answers_for("Session")(relay)
        else:
            with worker:
                local.withdraw(worker.uid)
                service = dsnb.connect(dispatcher.target, token)
                numbers = dsnb.Dataset.range(20).apply(dsnb.distribute("distributed_epoch", service))
                got, errors = [], []
                elements = iter(numbers)
                while True:
                    try:
                        got.append(int(next(elements)))
                    except StopIteration:
                        break
                    except DsnbError as error:
                        errors.append(error)
                        break
                elements.close()
                assert EVIL not in worker.debug_state()["tasks"]
                assert errors or got == list(range(20))
        assert traces_of(token, relay.shown) == []
    assert not mark.exists()


@pytest.mark.slow
def test_calls_that_were_recorded_are_refused_when_they_are_made_again(tmp_path: Path) -> None:
    with RestartableDispatcher(tmp_path / "work") as dispatcher, Relay(dispatcher.target[7:]) as relay:
        token = dispatcher.token
        with dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=relay.address, token=token)) as worker:
            local.withdraw(worker.uid)
            service = dsnb.connect(relay.address, token)
            table = np.arange(200_000)
            pipeline = dsnb.Dataset.range(60).map(lambda i: table[i])
            assert len(list(pipeline.apply(dsnb.distribute("distributed_epoch", service, "train")))) == 60
            service.pause("train")
            service.resume("train")
        names = {path.rpartition("/")[2] for path, _, _ in relay.calls}
        assert {"Hello", "Register", "PutBlob", "GetDataset", "GetBlob", "Join", "GetSplits", "Session"} <= names
        before = dsnb.connect(dispatcher.target, token).status()
        recorded = list(relay.calls)
        for path, shown, messages in recorded:
            assert made_again(dispatcher.target[7:], path, shown, messages) is path.endswith("Hello"), path
        after = dsnb.connect(dispatcher.target, token).status()
        assert after.jobs == before.jobs
        assert after.events == before.events
        dispatcher.restart()
        dispatcher.wait_until_ready()
        for path, shown, messages in recorded:
            assert made_again(dispatcher.target[7:], path, shown, messages) is path.endswith("Hello"), path
        assert [job.name for job in dsnb.connect(dispatcher.target, token).status().jobs] == ["train"]


def made_again(target: str, path: str, shown: list[tuple[str, Any]], messages: list[bytes]) -> bool:
    """Whether a recorded call is answered."""
    made: Any = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
    with made as channel:
        call = channel.stream_stream(path)(iter(messages), metadata=shown, timeout=20)
        try:
            list(call)
        except grpc.RpcError:
            return False
        return True


def test_who_takes_a_dead_workers_port_cannot_pass_another_worker_off_as_it() -> None:
    """All workers of a service know its token; so a reader names the one that it means."""
    with Cluster(workers=2) as cluster:
        dead, living = (worker.uid for worker in cluster.workers)
        with Relay(cluster.workers[1].address) as relay:
            for uid, answered in ((living, True), (dead, False)):
                channel = open_channel(relay.address, cluster.dispatcher.token, uid)
                try:
                    with pytest.raises(DsnbError) as caught:
                        list(channel.stream(READ, iter([READ.request(task_id="7", client_id="1")]), 10.0))
                    assert ("could not prove" in caught.value.what) is not answered
                finally:
                    channel.close()


@pytest.mark.slow
def test_many_threads_may_share_a_channel_while_its_server_is_started_again(tmp_path: Path) -> None:
    with RestartableDispatcher(tmp_path / "work") as dispatcher:
        service = dsnb.connect(dispatcher.target, dispatcher.token)
        over = threading.Event()
        kept = open_channel(dispatcher.target, dispatcher.token)
        answers = [0] * 6

        def ask(at: int) -> None:
            while not over.is_set():
                with suppress(UnavailableError):  # while it is away
                    service.status()
                    answers[at] += 1

        def restart() -> None:
            try:
                for _ in range(3):
                    dispatcher.restart()
                    dispatcher.wait_until_ready()
                    before = list(answers)
                    wait_for(
                        lambda before=before: all(now > was for now, was in zip(answers, before, strict=True)),
                        what="each thread to get answers again",
                    )
            finally:
                over.set()

        try:
            run_in_threads([restart, *[partial(ask, at) for at in range(len(answers))]], timeout=120.0)
        finally:
            kept.close()


def test_a_service_that_finds_its_port_taken_says_so(tmp_path: Path) -> None:
    config = dsnb.DispatcherConfig(work_dir=tmp_path / "work")
    with dsnb.DispatchServer(config) as first:
        port = int(first.target.rpartition(":")[2])
        assert first.status().events == ()
    with socket.create_server(("127.0.0.1", port)), dsnb.DispatchServer(config) as second:
        assert second.target != first.target
        [event] = [event for event in second.status().events if event.level == "warning"]
        assert event.text.startswith(f"port {port}, where this service listened before, is taken by another process")
    with dsnb.DispatchServer(config) as third:
        assert third.target == second.target

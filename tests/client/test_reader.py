"""A pass over a service as a stage: what it waits for, how it ends, and what it says when nobody is there."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dsnb
from dsnb.client.options import ReadOptions, ServiceAddress, ShardingPolicy
from dsnb.client.origin import current_origin
from dsnb.client.reader import ReadStage
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import Record
from dsnb.dispatcher.service import Dispatcher
from dsnb.errors import (
    CancelledError,
    DataLossWarning,
    DeadlineExceededError,
    DsnbError,
    DsnbWarning,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.pipeline.engine.stage import as_list
from dsnb.transfer.protocol import LinkStats, ReadHandle, Sink
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.messages import ClientReport, ReadRequest
from dsnb.wire.methods import FOLLOW, JOIN, PING
from tests.support.cluster import Cluster
from tests.support.reading import Gate
from tests.support.transfers import no_route
from tests.support.waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1) as cluster:
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute without anybody is a third of a second here."""
    monkeypatch.setattr("dsnb.client.reader.UNREACHABLE_TIMEOUT_S", 0.3)


def stage_of(cluster: Cluster, dataset: dsnb.Dataset, repetition: int = 0, **changes: Any) -> ReadStage:
    """One client's pass."""
    dataset_id = dsnb.register_dataset(cluster.service, dataset)
    address = ServiceAddress(address=cluster.address, token=cluster.dispatcher.token)
    options = ReadOptions(**{"mode": ShardingPolicy.OFF, "job_name": "job", **changes})
    return ReadStage(address, dataset_id, options, current_origin(), repetition)


def pull(stage: ReadStage, count: int) -> list[int]:
    """The next so many elements."""
    out: list[int] = []
    while len(out) < count:
        out += [int(element) for element in as_list(stage.pull(count - len(out)))]
    return out


def waits(stage: ReadStage) -> bool:
    """Whether a reader waits for something to come, in whatever way its transfer has."""
    return bool(stage.debug_state()["waiting"])


def all_produced(worker: dsnb.WorkerServer) -> bool:
    """Whether the pipelines of a worker have ended."""
    return all(task["finished"] for task in worker.debug_state()["tasks"].values())


def rest(stage: ReadStage) -> list[int]:
    """Everything to the end."""
    out: list[int] = []
    while len(run := stage.pull(1000)):
        out += [int(element) for element in as_list(run)]
    return out


def test_a_pass_ends_and_stays_at_its_end(cluster: Cluster) -> None:
    stage = stage_of(cluster, dsnb.Dataset.range(1000))
    assert rest(stage) == list(range(1000))
    assert len(stage.pull(5)) == 0
    stage.close()


def test_a_client_is_there_as_long_as_its_stage_is_open(cluster: Cluster) -> None:
    stage = stage_of(cluster, dsnb.Dataset.range(1000))
    assert cluster.job("job").clients == 1
    stage.close()
    assert cluster.job("job").clients == 0


def test_a_short_pass_that_one_client_read_needs_no_control_stream(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher's answer that the pass is over says goodbye too, and its records say what was read."""
    monkeypatch.setattr("dsnb.client.session._SHORT_PASS_S", 60.0)
    streamed, stream = [], Channel.stream

    def note_and_stream(channel: Channel, method: Any, *args: Any, **options: Any) -> Any:
        streamed.append(method)
        return stream(channel, method, *args, **options)

    monkeypatch.setattr(Channel, "stream", note_and_stream)
    stage = stage_of(cluster, dsnb.Dataset.range(10))
    assert rest(stage) == list(range(10))
    assert cluster.dispatcher.idle
    assert [task["skip"] for task in stage.source_position(7)["tasks"]] == [7], (
        "operations behind it may hold the last ones"
    )
    stage.close()
    assert FOLLOW not in streamed
    job = cluster.job("job")
    assert (job.state, job.clients, [trainer.elements for trainer in job.trainers]) == ("finished", 0, [10])


def test_a_client_that_is_not_the_only_one_of_its_pass_leaves_its_tasks_first(cluster: Cluster) -> None:
    first, second = (stage_of(cluster, dsnb.Dataset.range(10)) for _ in range(2))
    got = rest(first)
    assert len(cluster.dispatcher.debug_state()["clients"]) == 2
    first.close()
    assert sorted(got + rest(second)) == list(range(10))
    assert cluster.dispatcher.idle
    second.close()


def test_what_nobody_saw_of_the_last_run_is_for_the_next_reader(cluster: Cluster) -> None:
    first = stage_of(cluster, dsnb.Dataset.range(100))
    run = as_list(first.pull(20))
    first.close(unread=len(run) - 3 if len(run) > 3 else 0)
    seen = min(3, len(run)) if len(run) > 3 else len(run)
    second = stage_of(cluster, dsnb.Dataset.range(100))
    assert rest(second) == list(range(seen, 100))
    second.close()


def test_a_pass_that_was_read_warns_that_it_is_empty(cluster: Cluster) -> None:
    first = stage_of(cluster, dsnb.Dataset.range(10))
    rest(first)
    second = stage_of(cluster, dsnb.Dataset.range(10))
    with pytest.warns(DsnbWarning, match="pass 1 of job 'job' has already been read to its end, so it is empty"):
        second.warn_at_start()
    assert rest(second) == []
    first.close()
    second.close()


@pytest.mark.slow
def test_whoever_waits_is_woken_when_reading_is_cancelled(cluster: Cluster) -> None:
    stage = stage_of(cluster, dsnb.Dataset.range(5).repeat().filter(lambda _: False))
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            stage.pull(1)
        except CancelledError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: waits(stage), what="the reader to wait")
    stage.cancel()
    thread.join(30.0)
    assert not thread.is_alive()
    assert len(caught) == 1
    stage.close()


def test_each_consumed_element_is_reported(cluster: Cluster) -> None:
    stage = stage_of(cluster, dsnb.Dataset.range(100))
    pull(stage, 30)
    stage.pull(1)  # whoever asks for more has consumed what came before
    wait_for(lambda: 30 <= cluster.job("job").consumed <= 31, what="30 consumed elements")
    stage.close()


def test_time_spent_waiting_is_told(cluster: Cluster, tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def held(x: int) -> int:
        gate.wait()
        return x

    stage = stage_of(cluster, dsnb.Dataset.range(1).map(held))
    opener = threading.Thread(target=lambda: (wait_for(lambda: waits(stage), what="the reader to wait"), gate.open()))
    opener.start()
    began = time.perf_counter_ns()
    pull(stage, 1)
    assert 0 < stage.wait_ns < time.perf_counter_ns() - began
    stage.close()
    opener.join()


def test_a_pass_goes_on_with_another_worker_when_the_only_one_is_drained(cluster: Cluster, tmp_path: Path) -> None:
    """That all tasks which a reader knows have ended is not yet the end of the pass."""
    gate = Gate(tmp_path)

    def held(x: int) -> int:
        """So that the worker has not come to the last splits before it is known to leave."""
        if x >= 5:
            gate.wait()
        return x

    held_back = dsnb.Dataset.range(400).map(held)
    stage = stage_of(cluster, held_back, mode=ShardingPolicy.DYNAMIC, max_outstanding_requests=1)
    got = pull(stage, 5)
    cluster.workers[0].drain()
    wait_for(lambda: cluster.status().workers[0].state == "draining", what="the worker to be drained")
    gate.open()
    ended = threading.Thread(target=lambda: got.extend(rest(stage)))
    ended.start()
    wait_for(lambda: not cluster.job("job").tasks, what="the drained worker's task to be over")
    cluster.add_worker()
    ended.join(60.0)
    assert sorted(got) == list(range(400))
    stage.close()


def test_a_reader_over_the_limit_is_told_at_its_own_call_each_time_until_there_is_room() -> None:
    with Cluster(workers=1, worker={"max_readers": 2}) as cluster:
        settings = {"protocol": "grpc", "max_outstanding_requests": 1}
        stages = []
        for _ in range(2):
            stages.append(stage_of(cluster, dsnb.Dataset.range(100), **settings))
            pull(stages[-1], 1)
        stages.append(stage_of(cluster, dsnb.Dataset.range(100), **settings))
        for _ in range(2):
            with pytest.raises(ResourceExhaustedError, match="serves 2 readers of other processes at once") as caught:
                stages[2].pull(1)
            assert "max_readers" in caught.value.hint

        def has_room() -> bool:
            with suppress(ResourceExhaustedError):  # each error makes it ask again
                return len(pull(stages[2], 1)) == 1
            return False

        stages[0].close()
        wait_for(has_room, what="the place to be free")
        assert len(pull(stages[2], 5)) == 5
        for stage in stages:
            stage.close()


@pytest.mark.slow
def test_a_pass_that_one_reader_gives_up_goes_on_for_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task has ended for that reader alone, which is not for the dispatcher to hear."""
    opened: list[tuple[Sink, ReadHandle]] = []
    [worker] = cluster.workers
    serve = worker.open

    def serve_and_note(request: ReadRequest, sink: Sink, link_stats: LinkStats | None = None) -> ReadHandle:
        opened.append((sink, serve(request, sink, link_stats)))
        return opened[-1][1]

    monkeypatch.setattr(worker, "open", serve_and_note)
    reader, other = (stage_of(cluster, dsnb.Dataset.range(100), max_outstanding_requests=1) for _ in range(2))
    got = pull(reader, 1)
    sink, reading = opened[0]
    sink.fail(InvalidArgumentError("no such message"))
    reading.leave(0)  # one that fails by itself has ended before it says so
    with pytest.raises(InvalidArgumentError):
        pull(reader, 100)
    assert rest(reader) == []
    reader.close()
    assert cluster.job("job").state == "running"
    assert len(set(rest(other) + got)) >= 99
    other.close()


def test_an_end_that_cannot_be_confirmed_for_a_bug_is_no_silent_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise KeyError("a bug of the dispatcher")

    stage = stage_of(cluster, dsnb.Dataset.range(10))
    got = pull(stage, 10)
    monkeypatch.setattr(Dispatcher, "confirm_end", broken)
    with pytest.raises(DsnbError, match="ConfirmEnd failed with KeyError: 'a bug of the dispatcher'"):
        stage.pull(1)
    assert rest(stage) == []
    assert got == list(range(10))
    stage.close()


# ---- when nobody is there


@pytest.mark.slow
def test_a_worker_that_runs_and_cannot_be_reached_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    no_route(monkeypatch)
    stage = stage_of(cluster, dsnb.Dataset.range(5))
    with pytest.raises(UnavailableError, match=r"worker w0 cannot be reached at .*no route") as caught:
        stage.pull(1)
    assert "tried" in caught.value.did
    stage.close()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_service_without_workers_is_told_in_the_stated_time() -> None:
    with Cluster(workers=0) as cluster:
        stage = stage_of(cluster, dsnb.Dataset.range(5))
        wait_for(lambda: stage.debug_state()["connected"], what="the reader to hear news")
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"has had no worker for 0\.3 seconds") as caught:
            stage.pull(1)
        assert time.monotonic() - began < 20.0
        assert "svc.scale(2)" in caught.value.hint
        stage.close()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_service_that_is_gone_is_told_in_the_stated_time() -> None:
    with Cluster(workers=1) as cluster:
        stage = stage_of(cluster, dsnb.Dataset.range(5).repeat(), max_outstanding_requests=1)
        pull(stage, 3)
        wait_for(lambda: stage.debug_state()["connected"], what="the reader to hear news")
        cluster.stop()
        wait_for(lambda: not stage.debug_state()["connected"], what="the break to be noticed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)  # that the worker was stopped, if it heard of that
            with pytest.raises(UnavailableError, match=r"has not answered for 0\.3 seconds"):
                pull(stage, 1000)
        stage.close()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_worker_that_is_gone_with_the_dispatcher_is_not_waited_for_behind_one_that_has_given_everything() -> None:
    """The other worker is there and has nothing left, so there is nothing to wait for but the dispatcher."""
    with Cluster(workers=2) as cluster:
        stage = stage_of(cluster, dsnb.Dataset.range(20), max_outstanding_requests=2)
        got = pull(stage, 1)
        wait_for(lambda: stage.debug_state()["connected"], what="the reader to hear news")
        cluster.dispatcher.stop()
        cluster.workers[1].stop()
        with pytest.raises(UnavailableError, match=r"has not answered for 0\.3 seconds"):
            got.extend(pull(stage, 1)[0] for _ in range(1000))
        assert set(got) == set(range(20))
        stage.close()


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["grpc", "tcp", "shared_memory", "local"])
def test_attempts_to_connect_are_no_sign_of_life(transfer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader tries once a second. With an attempt taken for an answer, it would try for ever."""
    monkeypatch.setattr("dsnb.client.reader.UNREACHABLE_TIMEOUT_S", 3.0)
    with Cluster(workers=2) as cluster:
        stage = stage_of(cluster, dsnb.Dataset.range(5).repeat(), protocol=transfer)
        pull(stage, 1)
        for server in (cluster.dispatcher, *cluster.workers):
            server.stop()
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="has not answered for 3 seconds"):
            pull(stage, 10**6)
        assert time.monotonic() - began < 20.0
        stage.close()


@contextmanager
def hanging() -> Iterator[None]:
    """The dispatcher answers nothing, and its connections stand: its disk hangs while it writes a record."""
    over, hangs = threading.Event(), threading.Event()
    append = Journal.append

    def hang(journal: Journal, records: Iterable[Record]) -> None:
        hangs.set()
        over.wait(120.0)
        append(journal, records)

    with mock.patch.object(Journal, "append", hang):
        assert hangs.wait(60.0)  # for its clock
        try:
            yield
        finally:
            over.set()


def test_a_reader_that_is_back_and_cannot_rejoin_at_once_gets_nothing_twice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells at its next attempt what it had consumed; the worker does not know all of that."""
    monkeypatch.setattr("dsnb.client.reader.ACK_INTERVAL_S", 60.0)
    monkeypatch.setattr("dsnb.client.reader.ack_thread.call_soon", lambda reader: None)
    call = Channel.call

    def refuse(channel: Channel, method: Any, *args: Any, **options: Any) -> Any:
        if method is JOIN:
            raise UnavailableError("no answer")
        return call(channel, method, *args, **options)

    policy = dsnb.distribute("distributed_epoch", cluster.service, job_name="j", data_transfer_protocol="grpc")
    with closing(iter(dsnb.Dataset.range(200).apply(policy))) as elements:
        found = [next(elements) for _ in range(50)]
        state = cluster.dispatcher.debug_state()
        [me], instance = state["clients"], state["instance"]
        reports = [ClientReport(client_id=me, instance=instance), ClientReport(client_id=me, leaving=True)]

        def given_up() -> bool:
            """Leave in the reader's name. Its own stream, which this one replaces, may come back before the report."""
            with closing(open_channel(cluster.address, cluster.dispatcher.token)) as channel, suppress(DsnbError):
                list(channel.stream(FOLLOW, iter(reports), timeout=30.0))
            return cluster.job("j").clients == 0

        wait_for(given_up, what="the dispatcher to give the reader up")
        with mock.patch.object(Channel, "call", refuse), pytest.raises(UnavailableError, match="no answer"):
            found.extend(elements)  # what has arrived comes first
        with pytest.warns(DsnbWarning, match="was counted as lost"):
            found.append(next(elements))
        found += elements
    assert sorted(found) == list(range(200))


@pytest.fixture
def asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that gets nothing asks after half a second whether anybody answers, and believes it after a second."""
    monkeypatch.setattr("dsnb.client.reader.HANG_TIMEOUT_S", 1.0)
    monkeypatch.setattr("dsnb.client.reader._QUESTION_INTERVAL_S", 0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("asks_often")
@pytest.mark.parametrize("transfer", ["grpc", "tcp", "shared_memory"])
def test_a_service_that_hangs_with_its_workers_is_told(
    cluster: Cluster, transfer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections stand. A worker that answers is only slow."""
    gate, asked, call = Gate(tmp_path), 0, Channel.call

    def held(x: int) -> int:
        if x:
            gate.wait(120.0)
        return x

    def count_or_refuse(channel: Channel, method: Any, *args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += method is PING
        if method is PING and asked > 2:
            raise UnavailableError("no answer")
        return call(channel, method, *args, **options)

    monkeypatch.setattr(Channel, "call", count_or_refuse)
    stage = stage_of(cluster, dsnb.Dataset.range(5).map(held), protocol=transfer)
    got = pull(stage, 1)
    wait_for(lambda: stage.debug_state()["connected"], what="the reader to hear news")
    with hanging(), pytest.raises(UnavailableError, match=r"neither its dispatcher nor a worker answers"):
        stage.pull(1)
    assert asked > 2, "it went on for as long as the worker answered"
    gate.open()
    assert got + rest(stage) == list(range(5))
    stage.close()


@pytest.mark.slow
@pytest.mark.usefixtures("asks_often")
def test_a_worker_that_is_gone_is_not_waited_for_behind_a_dispatcher_that_hangs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the dispatcher can give its part to another one; the read goes on once it does."""
    with monkeypatch.context() as patch:
        no_route(patch)
        stage = stage_of(cluster, dsnb.Dataset.range(5))
        wait_for(lambda: stage.debug_state()["connected"], what="the reader to hear news")
        told = r"nothing has come .* for \d+ seconds, and neither"
        with hanging(), pytest.raises(UnavailableError, match=told) as caught:
            stage.pull(1)
    assert "call `next` again" in caught.value.did
    assert rest(stage) == list(range(5))
    stage.close()


@pytest.mark.slow
def test_splits_are_not_waited_for_from_a_dispatcher_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers run and stay connected; the read goes on once they get splits."""
    monkeypatch.setattr("dsnb.worker.retry_policy.HANG_TIMEOUT_S", 1.0)
    with Cluster(workers=1, worker={"dispatcher_timeout_ms": 500}) as cluster:
        stage = stage_of(cluster, dsnb.Dataset.range(10**9), mode=ShardingPolicy.DYNAMIC)
        got = pull(stage, 1)
        wait_for(lambda: stage.debug_state()["connected"], what="the reader to hear news")

        def read_on() -> None:
            while True:
                got.extend(pull(stage, 1))

        with hanging(), pytest.raises(DeadlineExceededError, match=r"no server answers at .* seconds") as caught:
            read_on()
        assert "call `next` again" in caught.value.did
        got += pull(stage, 1000)
        assert got == list(range(len(got)))
        stage.close()


@pytest.mark.slow
def test_reading_goes_on_without_the_dispatcher(cluster: Cluster) -> None:
    stage = stage_of(cluster, dsnb.Dataset.range(20_000), max_outstanding_requests=10)
    pull(stage, 10)
    cluster.dispatcher.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rest(stage) == list(range(10, 20_000))
    stage.close()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_the_end_of_a_shared_out_pass_that_nobody_confirms_is_told(cluster: Cluster) -> None:
    """A worker that the reader has not heard of may have had splits; a dispatcher that comes back would tell."""
    stage = stage_of(cluster, dsnb.Dataset.range(20), mode=ShardingPolicy.DYNAMIC)
    got = pull(stage, 10)
    wait_for(lambda: all_produced(cluster.workers[0]), what="its end")
    cluster.dispatcher.stop()
    with pytest.warns(DataLossWarning, match=r"end of the pass could not be confirmed.* for 0\.3 seconds"):
        got += rest(stage)
    assert got == list(range(20))
    stage.close()


@pytest.mark.slow
def test_the_end_of_a_shared_out_pass_waits_for_a_dispatcher_that_is_started_again(tmp_path: Path) -> None:
    with Cluster(workers=1, dispatcher={"work_dir": tmp_path}) as cluster:
        stage = stage_of(cluster, dsnb.Dataset.range(20), mode=ShardingPolicy.DYNAMIC)
        got = pull(stage, 10)
        wait_for(lambda: all_produced(cluster.workers[0]), what="its end")
        cluster.dispatcher.stop()
        again = threading.Timer(3.0, cluster.restart_dispatcher)  # later than one attempt takes
        again.start()
        got += rest(stage)
        again.join()
        assert got == list(range(20))
        assert cluster.job("job").state == "finished"
        stage.close()


def test_joining_in_vain_leaves_nothing_open(cluster: Cluster) -> None:
    address = ServiceAddress(address=cluster.address, token=cluster.dispatcher.token)
    with pytest.raises(NotFoundError, match="Dataset id nowhere not found"):
        ReadStage(address, "nowhere", ReadOptions(mode=ShardingPolicy.OFF), current_origin(), 0)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.usefixtures("patient_status")
def test_what_counts_as_consumed_is_what_the_user_has(
    cluster: Cluster, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsnb.pipeline.engine.iterator._SLOW_LOOP_NS", 0)  # each batch is told of
    policy = dsnb.distribute("distributed_epoch", cluster.service, job_name="job")
    dataset = dsnb.Dataset.range(60).apply(policy).batch(3)
    with iter(dataset.prefetch(prefetch) if prefetch else dataset) as elements:
        for batches, _batch in enumerate(elements, start=1):
            assert cluster.job("job").consumed == 3 * batches
            if batches == 10:  # `prefetch` must not come to the end, where the client leaves the job
                break

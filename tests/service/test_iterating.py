"""`iter(dataset)` is cheap and harmless: a job is joined by the first `next`, or by an explicit `start()`."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm.auto import tqdm

import dsnb
from dsnb.dispatcher.service import Dispatcher
from dsnb.errors import DsnbWarning, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.transfer.shared_memory.client_connection import ClientConnection
from dsnb.wire.messages import JoinRequest
from tests.support.cluster import Cluster
from tests.support.interrupting import interrupted_at, interrupted_often
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for

R = dsnb.Dataset.range


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=1) as cluster:
        yield cluster


def read(dataset: dsnb.Dataset, cluster: Cluster, mode: Any = "parallel_epochs", **options: Any) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute(mode, cluster.service, **options))


def jobs(cluster: Cluster) -> list[str]:
    """The jobs that the service knows, those without a client among them."""
    return [job.name for job in cluster.status().jobs]


def made(cluster: Cluster) -> int:
    """How many clients have ever joined a job of the service."""
    return int(cluster.dispatcher.debug_state()["next_client"])


class LateJoins:
    """The dispatcher's answers to `Join`, which come when `answered` is set; `asked` tells that a client waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.answered = threading.Event(), threading.Event()
        handle = Dispatcher.handle

        def handle_late(dispatcher: Dispatcher, event: Any) -> Any:
            if isinstance(event, JoinRequest):
                self.asked.set()
                self.answered.wait(30.0)
            return handle(dispatcher, event)

        monkeypatch.setattr(Dispatcher, "handle", handle_late)


@pytest.fixture
def late_joins(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateJoins]:
    made = LateJoins(monkeypatch)
    yield made
    made.answered.set()


# ---- iterating alone does nothing

BARS = {"dsnb.progress": dsnb.progress, "tqdm.auto": tqdm}


@pytest.mark.slow
@pytest.mark.parametrize("bar", BARS.values(), ids=BARS)
@pytest.mark.parametrize("cached", [True, False], ids=["a trainer", "a reader"])
def test_a_progress_bar_takes_no_element_of_the_shared_job_that_it_shows(
    cluster: Cluster, bar: Callable[..., Any], cached: bool
) -> None:
    sharing = {"cross_trainer_cache": dsnb.CrossTrainerCache("a")} if cached else {}
    data = read(R(200), cluster, job_name="train", **sharing)
    assert numbers(bar(data, disable=True)) == list(range(200))
    assert numbers(bar(data, disable=True)) == list(range(200)), "nor does it take a pass"


@pytest.mark.parametrize("bar", BARS.values(), ids=BARS)
def test_a_progress_bar_does_not_have_the_work_done_twice(
    cluster: Cluster, bar: Callable[..., Any], tmp_path: Path
) -> None:
    log = str(tmp_path / "calls")

    def noted(x: int) -> int:
        with open(log, "a", encoding="ascii") as file:
            file.write(".")
        return x

    assert numbers(bar(read(R(100).map(noted), cluster), disable=True)) == list(range(100))
    assert len(Path(log).read_text()) == 100


PIPELINES: dict[str, Callable[[dsnb.Dataset], dsnb.Dataset]] = {
    "alone": lambda ds: ds,
    "map": lambda ds: ds.map(lambda x: x),
    "prefetch": lambda ds: ds.map(lambda x: x, num_parallel_calls=2).prefetch(2),
    "repeat": lambda ds: ds.repeat(2),
    "zip": lambda ds: dsnb.Dataset.zip(ds, ds),
    "shuffle": lambda ds: ds.shuffle(10).batch(2),
    "interleave": lambda ds: R(2).interleave(lambda _, inner=ds: inner),
}


@pytest.mark.parametrize("behind", PIPELINES.values(), ids=PIPELINES)
def test_an_iterator_that_never_began_has_made_no_job_and_left_no_thread(
    cluster: Cluster, behind: Callable[[dsnb.Dataset], dsnb.Dataset]
) -> None:
    data = behind(read(R(10), cluster, job_name="j"))
    before, threads = made(cluster), threading.active_count()
    elements = iter(data)
    assert not elements.closed
    assert elements.reports() == ()
    other = iter(data)
    other.close()
    assert list(other) == []
    del elements, other
    assert made(cluster) == before
    assert threading.active_count() == threads
    assert jobs(cluster) == []


def test_an_iterator_that_never_began_takes_no_pass(cluster: Cluster) -> None:
    local = R(20).shuffle(20, seed=5)
    wanted = numbers(local)
    again = R(20).shuffle(20, seed=5)
    iter(again)
    assert numbers(again) == wanted

    data = read(local, cluster, job_name="j")
    iter(data)
    assert numbers(data) == wanted
    assert cluster.job("j").iteration == 0


def test_only_what_is_read_of_several_datasets_is_joined(cluster: Cluster) -> None:
    data = read(R(10), cluster, job_name="one").concatenate(read(R(10, 20), cluster, job_name="other"))
    with iter(data) as elements:
        assert first(10, elements) == list(range(10))
        assert jobs(cluster) == ["one"]
        assert numbers(elements) == list(range(10, 20))
        assert jobs(cluster) == ["one", "other"]


def test_a_pass_of_repeat_is_joined_when_it_is_read(cluster: Cluster) -> None:
    with iter(read(R(5), cluster, job_name="j").repeat(2)) as elements:
        assert first(5, elements) == list(range(5))
        assert cluster.job("j").iteration == 0
        assert numbers(elements) == list(range(5))
    assert cluster.job("j").iteration == 1


# ---- what begins it


def test_the_first_next_joins(cluster: Cluster) -> None:
    elements = iter(read(R(10), cluster, job_name="j"))
    assert jobs(cluster) == []
    assert next(elements) == 0
    assert cluster.job("j").clients == 1
    assert numbers(elements) == list(range(1, 10))


def test_start_joins_and_workers_begin_before_the_first_next(cluster: Cluster) -> None:
    elements = iter(read(R(10), cluster, job_name="j")).start()
    assert cluster.job("j").clients == 1
    wait_for(lambda: cluster.job("j").produced == 10, what="the worker to produce before anything is asked for")
    clients = made(cluster)
    assert elements.start() is elements
    assert numbers(elements) == list(range(10))
    assert made(cluster) == clients, "starting again joined again"
    assert elements.start().closed


def test_start_joins_all_that_the_first_next_reads(cluster: Cluster) -> None:
    sides = [read(R(5), cluster, job_name=name) for name in ("left", "right")]
    elements = iter(dsnb.Dataset.zip(*sides).map(lambda x, y: x + y).prefetch(2)).start()
    assert sorted(jobs(cluster)) == ["left", "right"]
    assert numbers(elements) == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_a_reader_that_was_started_and_dropped_leaves_at_once(cluster: Cluster) -> None:
    elements = iter(read(R(10), cluster, job_name="j")).start()
    assert cluster.job("j").clients == 1
    del elements
    wait_for(lambda: cluster.job("j").clients == 0, what="the client to leave")


def test_consumers_of_one_process_join_together(cluster: Cluster) -> None:
    consumers = [
        read(R(100).repeat(), cluster, job_name="j", consumer_index=index, num_consumers=2) for index in range(2)
    ]
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(iter(consumer)) for consumer in consumers]
        assert jobs(cluster) == []
        for reader in readers:
            reader.start()
        assert [(int(next(readers[0])), int(next(readers[1]))) for _ in range(5)] == [
            (2 * at, 2 * at + 1) for at in range(5)
        ]
    with iter(dsnb.Dataset.zip(*consumers)) as pairs:
        assert len([next(pairs) for _ in range(5)]) == 5


# ---- errors


def test_an_error_of_joining_is_raised_by_the_first_next(cluster: Cluster) -> None:
    with iter(read(R(10), cluster, job_name="j", max_outstanding_requests=1)) as reading:
        next(reading)
        other = iter(read(R(10), cluster, "distributed_epoch", job_name="j"))
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="found an existing job with different parameters"):
                next(other)
        with pytest.raises(InvalidArgumentError, match="found an existing job with different parameters"):
            other.start()
        reading.close()
        wait_for(lambda: cluster.job("j").clients == 0, what="the reader to leave")
        cluster.service.forget("j")
    assert numbers(other) == list(range(10)), "joining is tried again"


def test_errors_of_arguments_are_raised_where_the_arguments_are_given(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError):
        dsnb.distribute("parallel_epochs", cluster.service, job_name="")
    with pytest.raises(InvalidArgumentError):
        dsnb.distribute("parallel_epochs", cluster.service, max_outstanding_requests=0)


def test_closing_ends_an_iterator_whose_service_does_not_answer(cluster: Cluster) -> None:
    elements = iter(read(R(10), cluster))
    cluster.dispatcher.stop()
    raised: list[BaseException] = []

    def reading() -> None:
        try:
            raised.append(AssertionError(next(elements)))
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised.append(error)

    reader = threading.Thread(target=reading)
    reader.start()
    began = time.monotonic()
    elements.close()
    assert time.monotonic() - began < 20.0, "closing waits for a service that is gone"
    reader.join(30.0)
    assert isinstance(raised[0], (StopIteration, UnavailableError, dsnb.errors.CancelledError))
    assert list(elements) == []


@pytest.mark.slow
def test_a_client_that_was_closed_while_it_joined_is_not_left_behind(cluster: Cluster, late_joins: LateJoins) -> None:
    """The dispatcher is held for a moment: the answer comes when nobody wants it any more."""
    elements = iter(read(R(10), cluster, job_name="j"))

    def reading() -> None:
        with contextlib.suppress(dsnb.errors.CancelledError):
            list(elements)

    reader = threading.Thread(target=reading)
    reader.start()
    assert late_joins.asked.wait(30.0), "the reader to join"
    elements.close()
    late_joins.answered.set()
    reader.join(30.0)
    assert not reader.is_alive()
    wait_for(lambda: not any(job.clients for job in cluster.status().jobs), what="no client to be left")


def test_an_interrupt_while_joining_comes_at_once_and_leaves_no_client(cluster: Cluster, late_joins: LateJoins) -> None:
    elements = iter(read(R(10), cluster, job_name="j"))

    def interrupt() -> None:
        wait_for(late_joins.asked.is_set, what="the reader to join")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    stop = threading.Thread(target=interrupt)
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        next(elements)
    late_joins.answered.set()
    stop.join(30.0)
    wait_for(lambda: made(cluster) > 3000, what="the late answer")
    wait_for(lambda: not any(job.clients for job in cluster.status().jobs), what="no client to be left")
    assert numbers(elements) == list(range(10)), "the next `next` joins anew"


def test_threads_that_share_an_iterator_get_each_element_once(cluster: Cluster) -> None:
    for _ in range(5):
        found: list[Any] = []
        with iter(read(R(2_000), cluster, "distributed_epoch")) as elements:
            threads = [threading.Thread(target=found.extend, args=(elements,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60.0)
        assert sorted(found) == list(range(2_000))


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["local", "shared_memory", "tcp", "grpc"])
@pytest.mark.parametrize("how", ["distributed_epoch", "parallel_epochs", "rounds", "shared pass"])
def test_reading_on_after_many_interrupts_loses_nothing(transfer: str, how: str) -> None:
    options: dict[str, Any] = {
        "rounds": {"processing_mode": "parallel_epochs", "num_consumers": 1, "consumer_index": 0},
        "shared pass": {"processing_mode": "distributed_epoch", "cross_trainer_cache": dsnb.CrossTrainerCache("a")},
    }.get(how, {"processing_mode": how})
    interrupts = 0

    def rest(elements: Iterator[Any]) -> Iterator[Any]:
        nonlocal interrupts
        while True:
            try:
                yield from elements
                return
            except KeyboardInterrupt:
                interrupts += 1

    batches = 5_000
    data = R(4 * batches).map(lambda x: x + 1).batch(4)
    if how == "rounds":
        data = data.repeat()
    with Cluster(workers=1) as cluster:
        distributed = dsnb.distribute(service=cluster.service, job_name="j", data_transfer_protocol=transfer, **options)
        with iter(data.apply(distributed)) as elements:
            found = [next(elements).tolist()]
            with interrupted_often(0.002):
                found += [batch.tolist() for batch in islice(rest(elements), batches - 1)]
    whole = np.arange(1, 4 * batches + 1).reshape(batches, 4).tolist()
    at = next((at for at, (got, wanted) in enumerate(zip(found, whole, strict=False)) if got != wanted), len(found))
    # Briefly: the whole lists would fill a page.
    assert (at, found[at : at + 4]) == (batches, []), f"after {interrupts} interrupts"


@pytest.mark.slow
def test_an_interrupt_of_what_a_reader_does_for_a_worker_in_its_process_loses_nothing(cluster: Cluster) -> None:
    """Credit makes the worker send more, on the thread of the reader."""
    modules = [sys.modules[f"dsnb.{name}"] for name in ("client.tasks", "worker.task", "worker.shared_log")]

    def lines_of_a_read(at: int | None) -> int:
        policy = dsnb.distribute(
            "distributed_epoch", cluster.service, data_transfer_protocol="local", max_outstanding_requests=2
        )
        found: list[Any] = []
        with iter(R(12).apply(policy)) as elements:
            found.append(next(elements))
            with interrupted_at(modules, at) as count:
                while len(found) < 12:
                    with contextlib.suppress(KeyboardInterrupt):
                        found.append(next(elements))
            assert list(elements) == []
        assert sorted(found) == list(range(12)), f"interrupted at line {at} of {count.lines}"
        return count.lines

    lines = lines_of_a_read(None)
    assert lines > 200
    for at in range(0, lines, lines // 60):
        lines_of_a_read(at)


def test_an_interrupted_read_is_closed_although_its_traceback_is_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook keeps the last traceback until the next one."""
    # As of a second Ctrl-C, which is not delayed. Without a frame that holds the connection.
    interrupt = functools.partial((number for number in ()).throw, KeyboardInterrupt)
    with iter(read(R(10), cluster, data_transfer_protocol="shared_memory")) as elements:
        with monkeypatch.context() as patch:
            patch.setattr(ClientConnection, "messages", interrupt)
            with pytest.raises(KeyboardInterrupt) as kept:
                next(elements)
        assert numbers(elements) == list(range(10)), "the next `next` reads on"
    wait_for(lambda: not shared_pages(), what="the pages of both reads to be closed")
    assert kept.value.__traceback__ is not None


def shared_pages() -> list[str]:
    """Descriptors of the pages that readers share with their workers."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very listing, closed since
            links.append(str(link.readlink()))
    return [link for link in links if "dsnb-consumed" in link]


def running(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


# ---- reading positions


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def test_a_position_before_the_first_next_joins_nothing_and_is_the_beginning(cluster: Cluster) -> None:
    data = read(R(50).shuffle(50, seed=3), cluster, job_name="j")
    _, second = numbers(data), numbers(data)
    fresh = read(R(50).shuffle(50, seed=3), cluster, job_name="other")
    numbers(fresh)
    elements = iter(fresh)
    before = made(cluster)
    state = through_json(elements.state_dict())
    assert made(cluster) == before
    assert numbers(elements) == second, "the second pass"

    again = iter(read(R(50).shuffle(50, seed=3), cluster, job_name="new"))
    again.load_state_dict(state)
    assert made(cluster) == before + 1
    assert through_json(again.state_dict()) == state
    assert numbers(again) == second, "the second pass again, in its order"
    assert cluster.job("new").iteration == 1


def test_a_pass_that_was_read_to_its_end_begins_anew_from_a_position_at_its_beginning(cluster: Cluster) -> None:
    data = read(R(20), cluster, "distributed_epoch", job_name="j")
    elements = iter(data)
    state = elements.state_dict()
    assert sorted(numbers(elements)) == list(range(20))
    again = iter(read(R(20), cluster, "distributed_epoch", job_name="j"))
    again.load_state_dict(state)
    assert sorted(numbers(again)) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(dsnb.ShardingPolicy), ids=lambda mode: mode.name)
def test_a_position_at_the_beginning_is_one_in_every_mode(
    cluster: Cluster, mode: dsnb.ShardingPolicy, tmp_path: Path
) -> None:
    cluster.add_worker()
    files = [tmp_path / f"{number}.txt" for number in range(4)]
    for number, file in enumerate(files):
        file.write_text(f"{number}\n{number + 10}\n")
    lines: dsnb.Dataset = dsnb.TextLineDataset([*map(str, files)])
    data = read(lines.shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT) if mode.name == "HINT" else lines, cluster, mode)
    elements = iter(data)
    state = through_json(elements.state_dict())
    wanted = sorted(numbers(elements))
    assert set(wanted) == {0, 1, 2, 3, 10, 11, 12, 13}
    again = iter(data)
    again.load_state_dict(state)
    assert sorted(numbers(again)) == wanted


def test_loading_a_position_does_not_join(cluster: Cluster) -> None:
    data = read(R(50), cluster, job_name="j").batch(4)
    with iter(data) as elements:
        next(elements)
        state = through_json(elements.state_dict())
    wait_for(lambda: cluster.job("j").clients == 0, what="the reader to leave")
    before = made(cluster)
    again = iter(data)
    again.load_state_dict(state)
    assert through_json(again.state_dict()) == state, "nothing was read since"
    again.load_state_dict(state)
    assert made(cluster) == before
    assert [int(x) for batch in again for x in batch] == list(range(4, 50))
    assert made(cluster) == before + 1


def test_what_the_service_says_of_a_position_is_raised_by_the_first_next(cluster: Cluster) -> None:
    data = read(R(50), cluster, job_name="j")
    with iter(data) as elements:
        next(elements)
        state = elements.state_dict()
        other = iter(read(R(50), cluster, job_name="j"))
        other.load_state_dict(state)
        with pytest.raises(FailedPreconditionError, match=r"pass 1 of job 'j' is being read by 1 client"):
            next(other)
    wait_for(lambda: cluster.job("j").clients == 0, what="the first reader to leave")
    assert numbers(other) == list(range(1, 50)), "and tried again by the next one"


def test_what_has_no_exact_position_has_none_before_the_first_next(cluster: Cluster) -> None:
    elements = iter(read(R(9).repeat(), cluster, job_name="j", cross_trainer_cache=dsnb.CrossTrainerCache("a")))
    with pytest.raises(FailedPreconditionError, match="there is no exact reading position here"):
        elements.state_dict()
    assert jobs(cluster) == []


def test_a_position_in_a_part_that_was_not_reached_joins_nothing(cluster: Cluster) -> None:
    data = read(R(5), cluster, job_name="one").concatenate(read(R(5, 10), cluster, job_name="other"))
    elements = iter(data)
    got = first(3, elements)
    state = through_json(elements.state_dict())
    assert jobs(cluster) == ["one"]
    elements.close()
    again = iter(data)
    again.load_state_dict(state)
    assert [*got, *numbers(again)] == list(range(10))


@pytest.mark.filterwarnings("ignore:pass .* has already been read to its end:dsnb.errors.DsnbWarning")
def test_the_warning_of_an_empty_pass_stands_at_the_line_that_reads(cluster: Cluster) -> None:
    numbers(read(R(5), cluster, job_name="j"))
    other = iter(read(R(5), cluster, job_name="j"))
    with pytest.warns(DsnbWarning, match="pass 1 of job 'j' has already been read to its end") as told:
        assert next(other, "empty") == "empty"
    assert told[0].filename == __file__


def test_what_is_in_batches_comes_although_its_pass_is_over_and_its_reader_let_go(cluster: Cluster) -> None:
    elements = iter(read(R(20), cluster, "distributed_epoch").batch(3).prefetch(10))
    got = list(islice(elements, 1))
    wait_for(lambda: not control_threads(), what="the reader to learn that the dispatcher knows it no more")
    assert np.concatenate([*got, *elements]).tolist() == list(range(20))


def control_threads() -> list[str]:
    """The threads that report to the dispatcher for readers."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dsnb-follow")]

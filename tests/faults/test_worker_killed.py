"""A worker's process is killed in the middle of a read: it ends or goes on as promised, and what was lost is shown."""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb import ShardingPolicy
from dsnb.errors import CacheWarning, DataLossError, DataLossWarning, FailedPreconditionError
from dsnb.monitor.formatting import plural
from dsnb.monitor.snapshot import Snapshot
from tests.support.cluster import Cluster
from tests.support.processes import PythonProcess
from tests.support.reading import first, numbers, run_in_threads
from tests.support.waiting import wait_for
from tests.support.workers import address_of, worker_process, worker_processes

TIMES = {"reconnect_ms": 300, "worker_timeout_ms": 5_000}
DEADLINE_S = 30.0


class Scene:
    """A dispatcher of this process and two worker processes, one of which is to die."""

    def __init__(self, cluster: Cluster, workers: list[PythonProcess]) -> None:
        self.cluster = cluster
        self.service = cluster.service
        self.dispatcher = cluster.dispatcher
        self.victim, self.survivor = workers

    def read(self, count: int | None, mode: str, **options: Any) -> dsnb.Dataset:
        """Numbers that take a millisecond each; None for endless ones."""

        def wait(number: int) -> int:
            time.sleep(0.001)
            return number

        dataset = dsnb.Dataset.range(1_000_000_000 if count is None else count).map(wait)
        dataset = dataset.repeat() if count is None else dataset
        return dataset.apply(dsnb.distribute(mode, self.service, job_name="train", **options))

    def recorded(self, count: int, mode: str, folder: Path) -> dsnb.Dataset:
        """Numbers that the workers record in a folder as they make them; each making leaves a line in a file."""
        log = str(folder / "made")

        def make(number: int) -> int:
            time.sleep(0.001)
            with open(log, "a", encoding="ascii") as file:
                file.write(f"{number}\n")
            return number

        dataset = dsnb.Dataset.range(count).map(make).cache(str(folder / "recording"))
        return dataset.apply(dsnb.distribute(mode, self.service, job_name="train"))

    def kill(self) -> None:
        """SIGKILL."""
        self.victim.kill()

    def status(self) -> Snapshot:
        return self.cluster.status()

    def lost_worker_is_gone(self) -> Snapshot:
        """Wait until the dead worker is removed."""
        return self.service.wait_until(lambda status: len(status.workers) == 1, DEADLINE_S)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with (
        Cluster(0, dispatcher=TIMES) as cluster,
        worker_processes(2, cluster.dispatcher.target, cluster.dispatcher.token) as workers,
    ):
        registered = [worker.address for worker in cluster.status().workers]
        yield Scene(cluster, sorted(workers, key=lambda worker: registered.index(address_of(worker))))


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if issubclass(one.category, DataLossWarning)]


def timed(elements: Iterator[Any]) -> list[int]:
    """The rest of a pass, which must end within its deadline."""
    began = time.monotonic()
    rest = numbers(elements)
    assert time.monotonic() - began < DEADLINE_S
    return rest


def lose_a_shard(scene: Scene, source: dsnb.Dataset, policy: ShardingPolicy) -> tuple[list[int], list[str]]:
    """Read in shards through a `map` that asks for no order, while a worker dies: what came, and what was warned of."""

    def wait(value: Any) -> int:
        time.sleep(0.001)
        return int(value)

    dataset = source.map(wait, num_parallel_calls=2, deterministic=False)
    elements = iter(dataset.apply(dsnb.distribute(policy, scene.service, job_name="train")))
    got = first(300, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got += timed(elements)
        scene.lost_worker_is_gone()
    return got, told(caught)


def test_a_dynamic_read_goes_on_with_the_other_worker_and_loses_nothing(scene: Scene) -> None:
    elements = iter(scene.read(3_000, "distributed_epoch"))
    got = first(300, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got += timed(elements)

    assert Counter(got) == Counter(range(3_000))
    job = scene.cluster.job("train")
    assert (job.lost_splits, job.state, told(caught)) == (0, "finished", [])
    assert [trainer.lost for trainer in job.trainers] == [0]
    assert any("takes over the part of worker" in event.text for event in scene.status().events)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["shared_memory", "tcp", "grpc"])
def test_a_worker_that_is_suspended_before_it_takes_a_connection_keeps_nobody_waiting(
    scene: Scene, transfer: str
) -> None:
    os.kill(scene.victim.pid, signal.SIGSTOP)
    try:
        got = timed(iter(scene.read(1_000, "distributed_epoch", data_transfer_protocol=transfer)))
    finally:
        os.kill(scene.victim.pid, signal.SIGCONT)
    assert Counter(got) == Counter(range(1_000))


@pytest.mark.slow
def test_what_cannot_be_made_again_is_counted_as_it_did_not_arrive(scene: Scene) -> None:
    def wait(number: int) -> int:
        time.sleep(0.001)
        return number

    dataset = dsnb.Dataset.range(3_000).map(wait, num_parallel_calls=2, deterministic=False)
    elements = iter(dataset.apply(dsnb.distribute("distributed_epoch", scene.service, job_name="train")))
    got = first(300, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got += timed(elements)
        job = scene.cluster.job("train")

    assert max(Counter(got).values()) == 1
    missing = 3_000 - len(got)
    assert missing > 0
    assert [trainer.lost for trainer in job.trainers] == [missing]
    (warning,) = told(caught)
    assert f"{plural(missing, 'element')} of its part did not arrive and will not come" in warning


@pytest.mark.slow
@pytest.mark.parametrize("policy", [ShardingPolicy.DATA, ShardingPolicy.FILE_OR_DATA], ids=lambda policy: policy.name)
def test_a_dead_workers_shard_of_the_data_is_taken_over_though_the_pipeline_asks_for_no_order(
    scene: Scene, policy: ShardingPolicy
) -> None:
    got, warned = lose_a_shard(scene, dsnb.Dataset.range(2_000), policy)
    assert Counter(got) == Counter(range(2_000))
    assert warned == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", [ShardingPolicy.DATA, ShardingPolicy.FILE_OR_DATA], ids=lambda policy: policy.name)
def test_a_dead_workers_shard_of_the_data_is_lost_with_the_number_of_its_elements(
    scene: Scene, policy: ShardingPolicy
) -> None:
    with pytest.warns(CacheWarning, match="draws new random values"):
        once = dsnb.Dataset.range(2_000).shuffle(2_000).cache()  # in the memory of its worker: nobody can make it again
    got, warned = lose_a_shard(scene, once, policy)
    assert max(Counter(got).values()) == 1
    missing = 2_000 - len(got)
    assert missing > 0
    assert [trainer.lost for trainer in scene.cluster.job("train").trainers] == [missing]
    (warning,) = warned
    assert f"{plural(missing, 'element')} of its part did not arrive and will not come" in warning
    told = f"{plural(missing, 'element')} of the part of worker w0 did not reach its readers"
    assert any(told in event.text for event in scene.status().events)


@pytest.mark.slow
def test_a_dead_workers_shard_of_the_files_is_lost_with_words_that_say_that_its_size_is_unknown(
    scene: Scene, tmp_path: Path
) -> None:
    for at in range(4):
        (tmp_path / f"{at}.txt").write_text("".join(f"{number}\n" for number in range(at, 2_000, 4)))
    lines = dsnb.TextLineDataset([str(tmp_path / f"{at}.txt") for at in range(4)])
    got, warned = lose_a_shard(scene, lines, ShardingPolicy.FILE)
    assert max(Counter(got).values()) == 1
    assert len(got) < 2_000
    (warning,) = warned
    assert "an unknown number of elements of its part did not arrive and will not come" in warning
    (trainer,) = scene.cluster.job("train").trainers
    assert (trainer.lost, trainer.lost_parts) == (0, 1)
    told = "an unknown number of elements of the part of worker w0 did not reach its readers"
    assert any(told in event.text for event in scene.status().events)
    assert str(scene.cluster.job("train")).splitlines()[-1].split()[-1] == "unknown"
    assert "elements lost" in scene.status()._repr_html_()


# ---- on_worker_loss


def lose_a_part(scene: Scene, rule: str, *, deterministic: bool) -> tuple[list[int], list[str], list[DataLossError]]:
    """Read 3,000 numbers in the mode DYNAMIC while a worker dies: what came, the warnings and the errors."""

    def wait(number: int) -> int:
        time.sleep(0.001)
        return number

    dataset = dsnb.Dataset.range(3_000).map(wait, num_parallel_calls=2, deterministic=deterministic)
    distributed = dataset.apply(
        dsnb.distribute("distributed_epoch", scene.service, job_name="train", on_worker_loss=rule)
    )
    elements, errors = iter(distributed), list[DataLossError]()
    got = first(300, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while True:
            try:
                got.append(int(next(elements)))
            except DataLossError as error:
                errors.append(error)
            except StopIteration:
                return got, told(caught), errors


@pytest.mark.slow
def test_repeat_gives_each_element_at_least_once_where_nothing_can_be_replayed(scene: Scene) -> None:
    got, warned, errors = lose_a_part(scene, "repeat", deterministic=False)
    assert set(got) == set(range(3_000))
    assert (warned, errors) == ([], [])
    job = scene.cluster.job("train")
    assert (job.lost_splits, [trainer.lost for trainer in job.trainers]) == (0, [0])
    assert (job.guarantee, job.guarantee_reason) == (
        "at least once",
        "map(wait) hands out what is ready first (deterministic=False)",
    )
    assert f"if a worker dies, each element comes at least once: {job.guarantee_reason}" in str(job)
    assert any("repeats the part of worker w0" in event.text for event in scene.status().events)


@pytest.mark.slow
def test_raise_gives_an_error_with_the_number_and_the_rest_if_it_is_asked_for(scene: Scene) -> None:
    got, warned, (error,) = lose_a_part(scene, "raise", deterministic=False)
    assert max(Counter(got).values()) == 1
    missing = 3_000 - len(got)
    assert f"{plural(missing, 'element')} of its part did not arrive and will not come" in error.what
    assert "it continues with the others if you call `next` again" in error.did
    assert warned == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["replay", "repeat", "raise"])
def test_what_can_be_replayed_comes_once_with(rule: str, scene: Scene) -> None:
    got, warned, errors = lose_a_part(scene, rule, deterministic=True)
    assert Counter(got) == Counter(range(3_000))
    assert (warned, errors) == ([], [])
    assert scene.cluster.job("train").guarantee == "exactly once"


@pytest.mark.slow
def test_drop_counts_what_did_not_arrive_although_it_could_be_replayed(scene: Scene) -> None:
    got, (warning,), errors = lose_a_part(scene, "drop", deterministic=True)
    assert max(Counter(got).values()) == 1
    assert errors == []
    assert f"{plural(3_000 - len(got), 'element')} of its part did not arrive and will not come" in warning


@pytest.mark.slow
def test_replay_is_refused_for_a_pipeline_that_nobody_can_run_again(scene: Scene) -> None:
    with pytest.raises(FailedPreconditionError, match=r"map\(wait\) hands out what is ready first") as caught:
        lose_a_part(scene, "replay", deterministic=False)
    assert '"repeat"' in caught.value.hint


@pytest.mark.slow
def test_an_off_read_ends_with_the_other_workers_whole_pass(scene: Scene) -> None:
    elements = iter(scene.read(1_000, "parallel_epochs"))
    got = first(200, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got += timed(elements)

    times = Counter(got)
    assert set(times) == set(range(1_000))
    assert max(times.values()) <= 2
    missing = 2_000 - len(got)
    [text] = told(caught)
    assert f"{missing} elements of its part did not arrive" in text
    assert [trainer.lost for trainer in scene.cluster.job("train").trainers] == [missing]
    assert len(scene.lost_worker_is_gone().workers) == 1


@pytest.mark.slow
def test_readers_who_share_a_job_get_each_element_once_and_all_end(scene: Scene) -> None:
    dataset = scene.read(3_000, "distributed_epoch", max_outstanding_requests=4)
    readers = [iter(dataset), iter(scene.read(3_000, "distributed_epoch", max_outstanding_requests=4))]
    got = [first(100, reader) for reader in readers]
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rest = run_in_threads([lambda reader=reader: numbers(reader) for reader in readers], DEADLINE_S)

    assert Counter(number for part in (*got, *rest) for number in part) == Counter(range(3_000))
    assert told(caught) == []


@pytest.mark.slow
def test_trainers_of_a_cached_job_go_on_with_what_the_others_make_and_see_the_same(scene: Scene) -> None:
    def trainer(name: str) -> Any:
        return iter(scene.read(None, "parallel_epochs", cross_trainer_cache=dsnb.CrossTrainerCache(trainer_id=name)))

    trainers = [trainer("a"), trainer("b")]
    for elements in trainers:
        first(200, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scene.lost_worker_is_gone()
        rest = [first(1_500, elements) for elements in trainers]
    assert len(told(caught)) == 2
    lost = {trainer.trainer_id: trainer.lost for trainer in scene.cluster.job("train").trainers}
    assert min(lost.values()) == 0, "the one that was ahead missed nothing that another one had"
    # What was on its way from the dead worker is behind them: from here on both read one sequence.
    tails = [part[-500:] for part in rest]
    shared = set(tails[0]) & set(tails[1])
    assert len(shared) > 100
    assert [x for x in tails[0] if x in shared] == [x for x in tails[1] if x in shared]
    for elements in trainers:
        elements.close()


@pytest.mark.slow
@pytest.mark.parametrize("on_lag", ["wait", "spill"])
def test_each_trainer_of_endless_data_is_told_exactly_what_a_dead_worker_did_not_give_it(
    scene: Scene, on_lag: str
) -> None:
    """The count of a slow trainer: what the trainer that is furthest ahead had of the dead worker, and it did not."""

    def trainer(name: str) -> Any:
        def made_by(number: int) -> tuple[int, int]:
            time.sleep(0.001)
            return number, os.getpid()

        options = {"cross_trainer_cache": dsnb.CrossTrainerCache(trainer_id=name, on_lag=on_lag)}
        dataset = dsnb.Dataset.range(1_000_000_000).map(made_by).repeat()
        return iter(dataset.apply(dsnb.distribute("parallel_epochs", scene.service, job_name="train", **options)))

    trainers = {"fast": trainer("fast"), "slow": trainer("slow")}
    got = {name: list(islice(elements, 100)) for name, elements in trainers.items()}
    got["fast"] += islice(trainers["fast"], 900)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scene.lost_worker_is_gone()
        for name, elements in trainers.items():
            got[name] += islice(elements, 2_000)
        lost = {trainer.trainer_id: trainer.lost for trainer in scene.cluster.job("train").trainers}
    had = {name: sum(int(pid) == scene.victim.pid for _number, pid in elements) for name, elements in got.items()}
    assert lost == {name: max(had.values()) - count for name, count in had.items()}
    assert lost["slow"] > 0
    counts = [
        int(match[1].replace(",", "")) for text in told(caught) if (match := re.search(r"([\d,]+) elements", text))
    ]
    assert sorted(counts) == sorted(count for count in lost.values() if count)
    for elements in trainers.values():
        elements.close()


@pytest.mark.slow
def test_trainers_of_a_finite_shared_pass_see_the_same_sequence_also_when_it_is_made_again(scene: Scene) -> None:
    def trainer(name: str) -> Any:
        cache = dsnb.CrossTrainerCache(trainer_id=name, on_lag="spill")
        return iter(scene.read(2_000, "distributed_epoch", cross_trainer_cache=cache))

    trainers = {name: trainer(name) for name in "ab"}
    got = {"a": first(300, trainers["a"]), "b": first(50, trainers["b"])}
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, rest in zip(
            trainers, run_in_threads([lambda e=e: timed(e) for e in trainers.values()], DEADLINE_S), strict=True
        ):
            got[name] += rest
    job = scene.cluster.job("train")
    assert {trainer.trainer_id: trainer.lost for trainer in job.trainers} == dict.fromkeys("ab", 0)
    assert told(caught) == []
    for numbers_of_one in got.values():
        assert Counter(numbers_of_one) == Counter(range(2_000))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1], ids=["the first worker", "the second worker"])
def test_a_recorded_off_read_goes_on_with_the_other_worker_who_takes_the_recording_over(
    scene: Scene, victim: int, tmp_path: Path
) -> None:
    workers = [scene.victim, scene.survivor]
    dataset = scene.recorded(1_500, "parallel_epochs", tmp_path)
    elements = iter(dataset)
    got = first(400, elements)
    workers[victim].kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got += timed(elements)
        scene.lost_worker_is_gone()
        assert set(got) == set(range(1_500))
        assert max(Counter(got).values()) <= 2
        first_pass = len(got)
        made = len((tmp_path / "made").read_text().split())
        assert timed(iter(dataset)) == list(range(1_500))
    assert len(told(caught)) == 1
    # One chunk at the most was made and not committed, and the pass after it makes nothing.
    assert len((tmp_path / "made").read_text().split()) == made
    assert [trainer.lost for trainer in scene.cluster.job("train").trainers if trainer.lost] == [3_000 - first_pass]


@pytest.mark.slow
def test_a_recorded_dynamic_read_loses_nothing_and_neither_does_the_next_pass(scene: Scene, tmp_path: Path) -> None:
    dataset = scene.recorded(1_500, "distributed_epoch", tmp_path)
    elements = iter(dataset)
    got = first(300, elements)
    scene.kill()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got += timed(elements)
        scene.lost_worker_is_gone()
        assert Counter(got) == Counter(range(1_500))
        assert told(caught) == []
        assert sorted(timed(iter(dataset))) == list(range(1_500))


@pytest.mark.slow
def test_a_worker_that_comes_back_in_time_begins_its_pass_again(scene: Scene) -> None:
    """The same address, another process: the task's incarnation goes up, and its readers are told."""
    address = address_of(scene.victim)
    elements = iter(scene.read(None, "parallel_epochs"))
    first(100, elements)
    before = {task.worker: task.incarnation for task in scene.cluster.job("train").tasks}
    scene.kill()
    port = int(address.rpartition(":")[2])
    with (
        warnings.catch_warnings(record=True) as caught,
        worker_process(scene.dispatcher.target, scene.dispatcher.token, port) as again,
    ):
        warnings.simplefilter("always")
        wait_for(lambda: len(scene.status().workers) == 2, what="the worker to come back", timeout=DEADLINE_S)
        wait_for(lambda: int(next(elements)) == 0, what="its pass to begin again", timeout=DEADLINE_S, every=0.0)
        assert len(told(caught)) == 1
        assert address_of(again) == address
        elements.close()  # type: ignore[attr-defined]
    assert set(before.values()) == {1}


@pytest.mark.slow
def test_a_read_whose_last_worker_was_killed_goes_on_when_another_one_comes(scene: Scene) -> None:
    elements = iter(scene.read(2_000, "distributed_epoch"))
    got = first(100, elements)
    for worker in (scene.victim, scene.survivor):
        worker.kill()
    with (
        warnings.catch_warnings(record=True) as caught,
        worker_process(scene.dispatcher.target, scene.dispatcher.token),
    ):
        warnings.simplefilter("always")
        got += timed(elements)
    assert Counter(got) == Counter(range(2_000))
    assert told(caught) == []
    assert not list(islice(elements, 1))

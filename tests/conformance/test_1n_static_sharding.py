"""Section 1N: worker i of n produces its shard: by files, by data, or where the user marked it.

As in the original's tests five workers stand in a fixed list, and one of them, in the reader's own process, is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.splits import split_providers
from tests.conformance.conftest import MakeCluster
from tests.dispatcher.simulation import Service
from tests.support.cluster import Cluster
from tests.support.reading import first, numbers

FILE, DATA, FILE_OR_DATA, HINT = (dsnb.ShardingPolicy[name] for name in ("FILE", "DATA", "FILE_OR_DATA", "HINT"))
OFF, DYNAMIC = dsnb.ShardingPolicy.OFF, dsnb.ShardingPolicy.DYNAMIC
WORKERS = 5
Listed = Callable[..., Cluster]


@pytest.fixture
def listed(cluster: MakeCluster) -> Listed:
    """Starts a fixed list of workers of which one, or all, or none are of the reader's process."""

    def start(
        here: int | None = None, *, workers: int = WORKERS, entries: list[str] | None = None, **dispatcher: Any
    ) -> Cluster:
        entries = ["localhost:%port%"] * workers if entries is None else entries
        service = cluster(0, dispatcher={"worker_addresses": entries, **dispatcher})
        for index in range(workers):
            service.add_worker(remote=index != here)
        return service

    return start


@dataclass(frozen=True)
class Folder:
    """Ten files of ten records each: 0 to 99."""

    path: Path
    reader: type[dsnb.Dataset]

    @property
    def names(self) -> list[str]:
        return sorted(str(path) for path in self.path.iterdir())

    def listed(self, *, shuffle: bool = False) -> dsnb.Dataset:
        return dsnb.Dataset.list_files(str(self.path / "*"), shuffle=shuffle)

    def read(self, *, shuffle: bool = False) -> dsnb.Dataset:
        return self.listed(shuffle=shuffle).flat_map(self.reader)


@pytest.fixture(params=[dsnb.TFRecordDataset, dsnb.TextLineDataset])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    for file in range(10):
        lines = [str(record) for record in records(file)]
        if request.param is dsnb.TextLineDataset:
            (tmp_path / str(file)).write_text("".join(f"{line}\n" for line in lines))
        else:
            with dsnb.TFRecordWriter(tmp_path / str(file)) as writer:
                for line in lines:
                    writer.write(line.encode())
    return Folder(tmp_path, request.param)


def records(*files: int) -> list[int]:
    return [10 * file + record for file in files for record in range(10)]


def read(dataset: dsnb.Dataset, service: Any, mode: Any, target: str = "LOCAL", **options: Any) -> ElementIterator:
    return iter(dataset.apply(dsnb.distribute(mode, service, target_workers=target, **options))).start()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [DATA, FILE_OR_DATA])
def test_line_209_range_by_data(listed: Listed, mode: Any) -> None:
    assert numbers(read(dsnb.Dataset.range(20), listed(1).service, mode)) == [1, 6, 11, 16]


def test_line_210_range_by_file(listed: Listed) -> None:
    service = listed(1).service
    told = "Found an unshardable source dataset"
    with pytest.raises(NotFoundError, match=told):
        dsnb.Dataset.range(20).apply(dsnb.distribute(FILE, service))
    dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(20))
    with pytest.raises(NotFoundError, match=told):
        dsnb.from_dataset_id(FILE, service, dataset_id)


@pytest.mark.slow
@pytest.mark.parametrize("index", [dsnb.SHARD_HINT, 0, 5])
def test_line_211_range_by_hint(listed: Listed, index: int) -> None:
    dataset = dsnb.Dataset.range(20).shard(dsnb.SHARD_HINT, index)
    assert numbers(read(dataset, listed(1).service, HINT)) == [1, 6, 11, 16]


def test_line_212_invalid_worker_index() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Index must be between 0 and 4 \(currently index = -1\)"):
        dsnb.Dataset.range(20).shard(5, dsnb.SHARD_HINT)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [OFF, DYNAMIC, FILE_OR_DATA, DATA])
def test_line_213_hint_in_another_mode(listed: Listed, mode: Any) -> None:
    dataset, service = dsnb.Dataset.range(20).shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT), listed(1).service
    with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
        dataset.apply(dsnb.distribute(mode, service))
    with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
        dsnb.from_dataset_id(mode, service, dsnb.register_dataset(service, dataset))


def test_line_214_numbers_in_the_mode_hint_are_used_as_they_are(listed: Listed) -> None:
    assert numbers(read(dsnb.Dataset.range(20).shard(1, 0), listed(1).service, HINT)) == list(range(20))


def test_line_215_range_without_shards(listed: Listed) -> None:
    assert numbers(read(dsnb.Dataset.range(20), listed(1).service, OFF)) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [OFF, DATA, FILE_OR_DATA, HINT])
def test_line_216_a_list_of_one_worker(listed: Listed, mode: Any) -> None:
    assert numbers(read(dsnb.Dataset.range(20), listed(0, workers=1).service, mode)) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, DATA, FILE_OR_DATA, HINT])
@pytest.mark.parametrize("target", ["AUTO", "ANY"])
def test_line_217_all_workers_together_have_everything_once(
    listed: Listed, folder: Folder, mode: Any, target: str
) -> None:
    service = listed().service
    hint = (dsnb.SHARD_HINT, dsnb.SHARD_HINT)
    if mode != FILE:
        dataset = dsnb.Dataset.range(20).shard(*hint) if mode == HINT else dsnb.Dataset.range(20)
        assert sorted(numbers(read(dataset, service, mode, target))) == list(range(20))
    files = folder.read().shard(*hint) if mode == HINT else folder.read()
    assert sorted(numbers(read(files, service, mode, target))) == list(range(100))


def test_line_218_no_local_worker(listed: Listed, folder: Folder) -> None:
    with pytest.raises(InvalidArgumentError, match="Static sharding policy <FILE_OR_DATA> requires local workers"):
        read(folder.read(), listed(None, workers=3).service, FILE_OR_DATA)


def test_line_218_no_local_worker_in_a_colocated_deployment(listed: Listed, folder: Folder) -> None:
    service = listed(None, workers=3, deployment_mode="COLOCATED").service
    with pytest.raises(InvalidArgumentError, match="Static sharding policy <FILE_OR_DATA> requires local workers"):
        read(folder.read(), service, FILE_OR_DATA, "AUTO")
    assert sorted(numbers(read(folder.read(), service, FILE_OR_DATA, "ANY"))) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, FILE_OR_DATA])
def test_line_219_by_file(listed: Listed, folder: Folder, mode: Any) -> None:
    service = listed(3).service
    assert numbers(read(folder.read(), service, mode)) == records(3, 8)
    lines = folder.reader(folder.names)
    assert numbers(read(lines, service, mode)) == records(3, 8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, FILE_OR_DATA])
def test_line_220_shuffled_file_list(listed: Listed, folder: Folder, mode: Any) -> None:
    assert sorted(numbers(read(folder.read(shuffle=True), listed(3).service, mode))) == records(3, 8)


def test_line_221_by_data(listed: Listed, folder: Folder) -> None:
    assert numbers(read(folder.read(), listed(3).service, DATA)) == list(range(3, 100, 5))


def test_line_222_by_a_hint_behind_reading(listed: Listed, folder: Folder) -> None:
    dataset = folder.read().shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT)
    assert numbers(read(dataset, listed(3).service, HINT)) == list(range(3, 100, 5))


def test_line_223_by_a_hint_before_reading(listed: Listed, folder: Folder) -> None:
    files = folder.listed().shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT)
    assert numbers(read(files.flat_map(folder.reader), listed(3).service, HINT)) == records(3, 8)


def test_line_224_files_without_shards(listed: Listed, folder: Folder) -> None:
    assert numbers(read(folder.read(), listed(3).service, OFF)) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, FILE_OR_DATA])
def test_line_225_fewer_files_than_workers(listed: Listed, folder: Folder, mode: Any) -> None:
    four = folder.reader(folder.names[:4])
    service = listed(3).service
    with pytest.raises(InvalidArgumentError, match="not enough for the required 5 shards/workers") as error:
        read(four, service, mode)
    assert "DATA" in error.value.hint
    assert not service.status().jobs
    assert numbers(read(four, service, DATA)) == list(range(3, 40, 5))


def test_line_225_fewer_files_than_workers_by_hint(listed: Listed, folder: Folder) -> None:
    """Here a hint before the reading is no different from one behind: a worker without a file produces nothing."""
    files = dsnb.Dataset.from_tensor_slices(folder.names[:4])
    dataset = files.shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT).flat_map(folder.reader)
    assert numbers(read(dataset, listed(4).service, HINT)) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, FILE_OR_DATA])
def test_line_226_interleaved_files(listed: Listed, folder: Folder, mode: Any) -> None:
    names = dsnb.Dataset.from_tensor_slices(folder.names)
    dataset = names.interleave(folder.reader, cycle_length=10)
    assert numbers(read(dataset, listed(3).service, mode)) == [x for pair in zip(*PAIR, strict=True) for x in pair]


PAIR = (records(3), records(8))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, FILE_OR_DATA])
def test_line_227_zipped_files(listed: Listed, folder: Folder, mode: Any) -> None:
    dataset = dsnb.Dataset.zip(folder.read(), folder.read())
    pairs = [(int(left), int(right)) for left, right in read(dataset, listed(3).service, mode)]
    assert pairs == [(x, x) for x in records(3, 8)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FILE, FILE_OR_DATA])
def test_line_228_concatenated_files(listed: Listed, folder: Folder, mode: Any) -> None:
    dataset = folder.read().concatenate(folder.read())
    assert numbers(read(dataset, listed(3).service, mode)) == 2 * records(3, 8)


@pytest.mark.parametrize("mode", [DATA, FILE_OR_DATA, HINT])
def test_line_229_empty_dataset(listed: Listed, mode: Any) -> None:
    assert numbers(read(dsnb.Dataset.range(0), listed(1).service, mode)) == []


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["localhost:%port%", "localhost:%port_worker%", "localhost", "127.0.0.1:%port%"])
def test_line_230_anonymous_and_named_ports(listed: Listed, entry: str) -> None:
    service = listed(3, entries=[entry] * WORKERS).service
    assert numbers(read(dsnb.Dataset.range(20), service, FILE_OR_DATA)) == [3, 8, 13, 18]


def test_line_231_named_ports(listed: Listed) -> None:
    service = listed(3, entries=[f"localhost:%port_worker{index}%" for index in range(WORKERS)]).service
    assert numbers(read(dsnb.Dataset.range(20), service, FILE_OR_DATA)) == [3, 8, 13, 18]


def test_line_232_ports_that_are_none(listed: Listed) -> None:
    with pytest.raises(RuntimeError, match="The worker's address is not configured") as error:
        listed(0, entries=["localhost:worker"] * WORKERS)
    assert isinstance(error.value, FailedPreconditionError)


@pytest.mark.parametrize("entry", ["otherhost", "otherhost:%port%", "otherhost:5050"])
def test_line_233_worker_of_another_host(listed: Listed, entry: str) -> None:
    with pytest.raises(RuntimeError, match="The worker's address is not configured"):
        listed(0, entries=[entry] * WORKERS)


def test_line_234_without_a_list_the_workers_that_are_there_are_numbered(listed: Listed) -> None:
    assert numbers(read(dsnb.Dataset.range(20), listed(1, entries=[]).service, FILE_OR_DATA)) == [1, 6, 11, 16]


def test_line_235_more_workers_than_configured(listed: Listed) -> None:
    with pytest.raises(RuntimeError, match="other workers are already running at the configured host"):
        listed(0, entries=["localhost:%port%"])


def test_line_236_a_worker_that_returns_on_another_port_has_its_place_again(listed: Listed) -> None:
    service = listed(None)
    service.restart_worker(2, same_port=False)
    assert numbers(read(dsnb.Dataset.range(20), service.service, DATA)) == [2, 7, 12, 17]


def test_line_237_without_workers_nothing_is_divided(cluster: MakeCluster) -> None:
    service = cluster(0).service
    with pytest.raises(InvalidArgumentError, match="num_workers should be >= 1, currently 0"):
        read(dsnb.Dataset.range(20), service, DATA, "AUTO")


def test_line_238_the_splits_of_sources() -> None:
    def counts(dataset: dsnb.Dataset) -> list[int]:
        return [provider.count for provider in split_providers(dataset.operation)]

    nine = dsnb.Dataset.range(9)
    assert counts(dsnb.Dataset.range(10)) == [10]
    assert [counts(nine.repeat(times)) for times in (9, 0, None)] == [[9]] * 3
    assert counts(dsnb.Dataset.range(0).repeat()) == [0]
    assert counts(dsnb.Dataset.range(3).enumerate()) == [3]
    assert counts(dsnb.Dataset.zip(nine, dsnb.Dataset.range(3)).concatenate(dsnb.Dataset.zip(nine, nine))) == [
        9,
        3,
        9,
        9,
    ]


def test_line_239_names_of_modes_and_targets() -> None:
    assert [policy.value for policy in (OFF, DYNAMIC, FILE, DATA, FILE_OR_DATA, HINT)] == list(range(6))
    with pytest.raises(ValueError, match="7 is not a valid ShardingPolicy"):
        dsnb.ShardingPolicy(7)
    service = Service()
    with pytest.raises(InvalidArgumentError, match="'XX' is no processing mode"):
        service.join(service.register(10), mode="XX")
    for target in ("auto", "Any", "LOCAL", ""):
        dsnb.distribute(OFF, "127.0.0.1:9", target_workers=target)
    for wrong in ("ALL", None):
        with pytest.raises(InvalidArgumentError, match="`target_workers` is"):
            dsnb.distribute(OFF, "127.0.0.1:9", target_workers=wrong)


@pytest.mark.slow
def test_line_240_every_policy_runs(listed: Listed, folder: Folder) -> None:
    service = listed().service
    counts = {mode: len(list(read(folder.read(), service, mode, "AUTO"))) for mode in dsnb.ShardingPolicy}
    assert counts == {OFF: 500, DYNAMIC: 100, FILE: 100, DATA: 100, FILE_OR_DATA: 100, HINT: 500}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [DATA, FILE_OR_DATA, HINT])
@pytest.mark.parametrize("index", range(WORKERS))
def test_line_241_the_results_of_each_worker(listed: Listed, mode: Any, index: int) -> None:
    dataset = dsnb.Dataset.range(20)
    marked = dataset.shard(dsnb.SHARD_HINT, dsnb.SHARD_HINT) if mode == HINT else dataset
    assert numbers(read(marked, listed(index).service, mode)) == list(range(index, 20, WORKERS))


@pytest.mark.slow
@pytest.mark.parametrize("index", range(WORKERS))
def test_line_241_text_files_of_different_lengths(listed: Listed, tmp_path: Path, index: int) -> None:
    for file in range(WORKERS):
        (tmp_path / f"{file}.txt").write_text("".join(f"{file}{line}\n" for line in range(file + 1)))
    names = dsnb.Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)
    dataset = names.interleave(dsnb.TextLineDataset, cycle_length=WORKERS)
    service = listed(index).service
    assert list(read(dataset, service, FILE)) == [f"{index}{line}" for line in range(index + 1)]
    by_turns = [f"{file}{line}" for line in range(WORKERS) for file in range(line, WORKERS)]
    assert list(read(dataset, service, DATA)) == by_turns[index::WORKERS]


def test_line_242_a_local_worker_among_remote_ones(listed: Listed) -> None:
    assert numbers(read(dsnb.Dataset.range(20), listed(0).service, FILE_OR_DATA)) == [0, 5, 10, 15]


# ---- what the original does not promise


@pytest.mark.slow
def test_a_shuffle_without_a_seed_is_cut_into_shards_of_one_order(listed: Listed) -> None:
    service = listed().service
    dataset = dsnb.Dataset.range(100).shuffle(100)
    one, other = (numbers(read(dataset, service, DATA, "AUTO")) for _ in range(2))
    assert sorted(one) == sorted(other) == list(range(100))


def test_a_shard_whose_worker_is_lost_goes_on_with_another(cluster: MakeCluster) -> None:
    service = cluster(2)
    with read(dsnb.Dataset.range(2_000), service.service, DATA, max_outstanding_requests=2) as elements:
        got = [int(next(elements)) for _ in range(100)]
        service.restart_worker(0, same_port=False)
        got += map(int, elements)
    assert sorted(got) == list(range(2_000))


@pytest.mark.slow
def test_a_place_in_the_list_that_nobody_took_is_told_when_reading_begins(cluster: MakeCluster) -> None:
    service = cluster(0, dispatcher={"worker_addresses": ["localhost:%port%", "otherhost"]})
    service.add_worker()
    with pytest.warns(dsnb.errors.DsnbWarning, match=r"no worker for shard 1 of 2 \(otherhost\)"):
        elements = read(dsnb.Dataset.range(10), service.service, DATA, job_name="job")
    assert numbers(elements) == [0, 2, 4, 6, 8]
    told = [event.text for event in service.status().events if "without shard" in event.text]
    assert told == ["pass 1 of job 'job' ended without shard 1 of 2 (otherhost): no worker came"]


@pytest.mark.slow
@pytest.mark.parametrize("entries", [None, ["localhost:%port%"] * 3], ids=["no list", "a list"])
def test_shards_go_on_when_the_dispatcher_is_started_again(
    cluster: MakeCluster, tmp_path: Path, entries: list[str] | None
) -> None:
    service = cluster(3, dispatcher={"work_dir": tmp_path / "work", "worker_addresses": entries})
    dataset = dsnb.Dataset.range(3000).shuffle(3000)
    options: dict[str, Any] = {"job_name": "job", "max_outstanding_requests": 3}
    with read(dataset, service.service, DATA, "AUTO", **options) as elements:
        got = first(100, elements)
        service.restart_dispatcher()
        got += first(100, elements)
        assert [shard.worker for shard in service.job("job").shards] == [worker.name for worker in service.workers]
        got += numbers(elements)
    assert sorted(got) == list(range(3000))
    assert [shard.state for shard in service.job("job").shards] == ["ended"] * 3
    again = numbers(read(dataset, service.service, DATA, "AUTO", job_name="another"))
    assert sorted(again) == list(range(3000))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* draws new random values in each pass:dsnb.errors.CacheWarning")
@pytest.mark.parametrize("where", ["in a folder", "in memory"])
@pytest.mark.parametrize("batched", [False, True], ids=["cut before", "cut behind"])
def test_recordings_of_shards_are_of_one_order(listed: Listed, tmp_path: Path, where: str, batched: bool) -> None:
    """Each worker records by itself, and an unseeded shuffle is below: all must have shuffled alike."""
    kept = dsnb.Dataset.range(60).shuffle(60).cache(tmp_path / "kept" if where == "in a folder" else None)
    dataset = kept.batch(4) if batched else kept
    service = listed().service
    for _ in range(2):
        elements = np.hstack(list(read(dataset, service, DATA, "AUTO")))
        assert sorted(elements.tolist()) == list(range(60))

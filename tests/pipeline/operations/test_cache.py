from __future__ import annotations

import fcntl
import os
import random
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.errors import CacheWarning, CancelledError, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.graph import restore, serialise
from dsnb.pipeline.operation import BuildContext
from dsnb.pipeline.operations.cache import Cache, recording_start
from tests.pipeline.driving import context, drain, outcomes
from tests.support.waiting import wait_for

N = 50


class Calls:
    """Counts calls in a file, as a function of any process and any pass can."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def note(self) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(b".")

    @property
    def count(self) -> int:
        return os.path.getsize(self.path) if os.path.exists(self.path) else 0

    def __dsnb_fingerprint__(self) -> str:
        return "calls"


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.fixture(params=["memory", "directory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "memory" else str(tmp_path / "cache")


def squares(calls: Calls, length: int = N) -> Dataset:
    def square(x: int) -> dict[str, Any]:
        calls.note()
        return {"x": x * x, "rows": np.full((2, 3), x), "name": f"{x}"}

    return Dataset.range(length).map(square)


def check(elements: list[Any], first: int = 0, last: int = N) -> None:
    assert [int(element["x"]) for element in elements] == [x * x for x in range(first, last)]
    assert [element["name"] for element in elements] == [f"{x}" for x in range(first, last)]
    assert [element["rows"].tolist() for element in elements] == [[[x] * 3] * 2 for x in range(first, last)]


def test_the_function_runs_once_for_each_element_of_all_passes(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    for _ in range(3):
        check(list(ds))
    assert calls.count == N


def test_repeat_reads_the_recording(calls: Calls, where: str | None) -> None:
    assert len(list(squares(calls).cache(where).repeat(3))) == 3 * N
    assert calls.count == N


def test_a_pass_that_stops_early_leaves_what_it_has_and_the_next_one_goes_on(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    check(list(ds.take(7)), last=7)
    assert calls.count == 7
    check(list(ds))
    assert calls.count == N


def test_nothing_is_produced_that_nobody_asked_for(calls: Calls, where: str | None) -> None:
    endless = squares(calls).repeat().cache(where)
    assert len(list(endless.take(N + 5))) == N + 5
    assert calls.count == N + 5


def test_one_dataset_may_be_read_twice_at_once(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    pairs = list(Dataset.zip(ds, ds))
    assert [int(a["x"]) for a, _ in pairs] == [int(b["x"]) for _, b in pairs] == [x * x for x in range(N)]
    assert calls.count == N


def test_readers_at_different_places_share_one_pass(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    with iter(ds) as first, iter(ds) as second:
        ahead = [next(first) for _ in range(20)]
        behind = [next(second) for _ in range(10)]
        first.close()
        check(ahead, last=20)
        check([*behind, *second])
    assert calls.count == N


def test_threads_share_one_pass(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    found: list[list[Any]] = []
    threads = [threading.Thread(target=lambda: found.append(list(ds))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for elements in found:
        check(elements)
    assert calls.count == N


def test_elements_are_the_same_in_the_first_pass_and_in_later_ones(where: str | None) -> None:
    ds = Dataset.range(4).map(lambda x: (int(x), 1.5, True, "a", b"b", np.float32(x), [x, {"y": x}])).cache(where)
    first, second = list(ds), list(ds)
    assert repr(first) == repr(second)
    assert [list(map(type, element)) for element in first] == [list(map(type, element)) for element in second]


def test_what_a_reader_does_to_its_dicts_is_seen_by_nobody_else(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    for _ in range(2):
        for element in ds:
            element.clear()
    check(list(ds))


def test_skipping_what_is_recorded_reads_nothing(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    list(ds)
    check(list(ds.skip(40)), first=40)
    assert list(ds.skip(N)) == []
    assert list(ds.skip(N + 9)) == []


def test_skipping_what_is_not_recorded_records_it(calls: Calls, where: str | None) -> None:
    ds = squares(calls).cache(where)
    check(list(ds.skip(40)), first=40)
    check(list(ds))
    assert calls.count == N


def test_an_empty_dataset_is_recorded_as_one(where: str | None) -> None:
    ds = Dataset.range(0).cache(where)
    assert list(ds) == list(ds) == []


def test_an_unseeded_shuffle_is_recorded_in_one_order_which_is_told_once(where: str | None) -> None:
    with pytest.warns(
        CacheWarning, match=rf"(?s)shuffle\({N}\) draws new random values in each pass.* or give shuffle\({N}\) a seed"
    ) as told:
        ds = Dataset.range(N).shuffle(N).cache(where)
    assert [Path(one.filename) for one in told] == [Path(__file__)]
    part = [int(x) for x in ds.take(10)]
    first, second = [int(x) for x in ds], [int(x) for x in ds]
    assert first == second
    assert first[:10] == part
    assert sorted(first) == list(range(N))


def test_randomness_with_a_seed_or_behind_the_recording_is_not_told_of(tmp_path: Path) -> None:
    numbers = Dataset.range(3)
    (tmp_path / "a").touch()
    seeded = [
        numbers.shuffle(3, seed=1),
        numbers.shuffle(3, reshuffle_each_iteration=False),
        Dataset.sample_from_datasets([numbers, numbers], seed=1),
        Dataset.list_files(str(tmp_path / "a"), seed=1),
        Dataset.list_files(str(tmp_path / "a"), shuffle=False),
    ]
    for ds in seeded:
        ds.cache().shuffle(3)


def test_all_that_draws_without_a_seed_is_named(tmp_path: Path) -> None:
    numbers = Dataset.range(3)
    (tmp_path / "a").touch()
    for ds, name in [
        (Dataset.sample_from_datasets([numbers, numbers]), "sample_from_datasets"),
        (Dataset.list_files(str(tmp_path / "a")), r"list_files\(1\)"),
        (Dataset.zip(numbers, numbers.shuffle(3).batch(2).unbatch()), r"shuffle\(3\)"),
    ]:
        with pytest.warns(CacheWarning, match=f"^{name} draws new random values"):
            kept = ds.cache()
        kept.map(lambda *x: x).cache()  # of one order by now: told of no more


def test_spec_and_length_are_the_input_s(where: str | None) -> None:
    ds = Dataset.range(5).cache(where)
    assert ds.element_spec == Dataset.range(5).element_spec
    assert len(ds) == 5


# ----------------------------------------------------------------------------------------------------------- failures


def failing(calls: Calls, good: Callable[[], bool]) -> Dataset:
    path = calls.path + ".good"

    def picky(x: int) -> int:
        calls.note()
        if x == 5 and not os.path.exists(path):
            raise ValueError("five")
        return x

    return Dataset.range(10).map(picky)


def test_a_failing_element_ends_the_recording_and_the_next_pass_tries_it_again(calls: Calls, where: str | None) -> None:
    ds = failing(calls, lambda: False).cache(where)
    with pytest.warns(CacheWarning, match="failed, behind 5 that are recorded"):
        found = outcomes(ds)
    assert [x if isinstance(x, Exception) else int(x) for x in found[:5]] == [0, 1, 2, 3, 4]
    assert isinstance(found[5], ValueError)
    assert [int(x) for x in found[6:]] == [6, 7, 8, 9]
    assert calls.count == 10
    Path(calls.path + ".good").touch()
    assert [int(x) for x in ds] == list(range(10))
    assert [int(x) for x in ds] == list(range(10))
    assert calls.count == 15


def test_what_no_element_can_hold_is_an_error_in_its_place(where: str | None) -> None:
    ds = Dataset.range(3).map(lambda x: object() if x == 1 else x).cache(where)
    with pytest.warns(CacheWarning, match="failed"):
        found = outcomes(ds)
    assert [type(x).__name__ for x in found] == ["int64", "InvalidArgumentError", "int64"]


def test_a_pass_can_be_cancelled_while_the_function_runs(where: str | None) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(x: int) -> int:
        begun.set()
        go.wait(30)
        return x

    stage = Cache(inputs=(Dataset.range(3).map(slow).operation,), where=None, memory=_memory()).build(context())
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_error(stage)))
    thread.start()
    assert begun.wait(10)
    stage.cancel()
    go.set()
    thread.join()
    stage.close()
    assert isinstance(found[0], CancelledError) or len(found[0]) <= 1


def _error(stage: Any) -> Any:
    try:
        return stage.pull(1)
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return error


def _memory() -> Any:
    return Dataset.range(1).cache().operation.memory


# ------------------------------------------------------------------------------------------------------------- memory


def test_memory_beyond_the_limit_is_not_kept_and_told_once(calls: Calls) -> None:
    ds = squares(calls).cache(limit_bytes=20 * 58)
    with pytest.warns(CacheWarning, match="larger than the 1,160 bytes"):
        check(list(ds))
    with pytest.warns(CacheWarning, match="larger than"):
        check(list(ds))
    assert N <= calls.count <= 2 * N


def test_memory_goes_with_the_dataset(calls: Calls) -> None:
    import gc
    import weakref

    ds = squares(calls).cache()
    list(ds)
    kept = weakref.ref(ds.operation.memory)
    del ds
    gc.collect()
    assert kept() is None


def test_copies_of_a_pipeline_in_one_process_share_their_memory(calls: Calls) -> None:
    ds = squares(calls).cache()
    list(ds)
    graph = serialise(ds.operation)
    copy = Dataset(restore(graph.definition, lambda digest: b""))
    check(list(copy))
    assert calls.count == N


@pytest.mark.slow
def test_the_passes_of_a_process_that_was_sent_a_pipeline_share_its_memory(calls: Calls) -> None:
    import gc

    ds = squares(calls).cache()
    graph = serialise(ds.operation)
    del ds
    gc.collect()
    for _ in range(3):  # each pass of a worker restores the pipeline
        check(list(Dataset(restore(graph.definition, lambda digest: b""))))
        gc.collect()
    assert calls.count == N


def test_shards_of_a_pipeline_do_not_share_their_memory() -> None:
    from dsnb.pipeline.sharding import sharded

    ds = Dataset.range(10).map(lambda x: x).cache()
    for index in range(2):
        shard = Dataset(sharded(ds.operation, "DATA", 2, index))
        for _ in range(2):
            assert [int(x) for x in shard] == list(range(index, 10, 2))


# ---------------------------------------------------------------------------------------------------------- directory


def test_another_dataset_object_of_the_same_pipeline_reads_the_recording(calls: Calls, tmp_path: Path) -> None:
    check(list(squares(calls).cache(tmp_path / "cache")))
    check(list(squares(calls).cache(str(tmp_path / "cache"))))
    assert calls.count == N


def test_a_changed_pipeline_never_reads_an_old_recording(tmp_path: Path) -> None:
    def scaled(factor: int) -> list[int]:
        return [int(x) for x in Dataset.range(4).map(lambda x: x * factor).cache(tmp_path / "cache")]

    assert scaled(2) == [0, 2, 4, 6]
    with pytest.warns(
        CacheWarning, match=r"has changed: map\(<lambda>\), function, closure factor: 3 against 2 before"
    ):
        assert scaled(3) == [0, 3, 6, 9]
    assert scaled(2) == [0, 2, 4, 6]


def test_another_pipeline_in_the_same_directory_is_no_changed_one(calls: Calls, tmp_path: Path) -> None:
    check(list(squares(calls).cache(tmp_path / "cache")))
    assert [int(x) for x in Dataset.range(3).cache(tmp_path / "cache")] == [0, 1, 2]
    check(list(squares(calls).cache(tmp_path / "cache")))
    assert calls.count == N


def test_a_directory_of_a_newer_version_is_refused_at_the_call_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "dsnb-recordings.json").write_text('{"format": 2}')
    with pytest.raises(FailedPreconditionError, match="newer version"):
        Dataset.range(3).cache(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["dsnb-recordings.json"]


# ------------------------------------------------------------------------------------------------ limits of a directory


def recorded(tmp_path: Path, start: int, limit: int | None = None) -> Dataset:
    rows = Dataset.range(start, start + 10).map(lambda x: np.full(12_500, x))
    return rows.cache(tmp_path / "cache", limit_bytes=limit)


def starts(tmp_path: Path) -> list[str]:
    from dsnb.cache.recordings.catalogue import entries

    return sorted(entry.pipeline.split("(")[1].split(",")[0] for entry in entries(str(tmp_path / "cache")))


@pytest.mark.filterwarnings("ignore:the pipeline has changed")
def test_the_longest_unused_recordings_are_evicted_to_stay_within_the_limit(tmp_path: Path) -> None:
    for start in (100, 200, 300):
        list(recorded(tmp_path, start))
    list(recorded(tmp_path, 100))  # used again
    list(recorded(tmp_path, 400, limit=3_500_000))
    assert starts(tmp_path) == ["100", "300", "400"]


@pytest.mark.filterwarnings("ignore:the pipeline has changed")
def test_what_somebody_reads_is_never_evicted(tmp_path: Path) -> None:
    list(recorded(tmp_path, 100))
    with iter(recorded(tmp_path, 100)) as elements:
        next(elements)
        with pytest.warns(CacheWarning, match="larger than the 1,500,000 bytes"):
            assert len(list(recorded(tmp_path, 200, limit=1_500_000))) == 10
        assert "100" in starts(tmp_path)
        assert len(list(elements)) == 9


def test_a_dataset_larger_than_the_limit_is_read_whole_and_kept_as_far_as_it_fits(tmp_path: Path) -> None:
    ds = recorded(tmp_path, 0, limit=500_000)
    for _ in range(2):
        with pytest.warns(CacheWarning, match="would be larger than the 500,000 bytes"):
            assert [int(row[0]) for row in ds] == list(range(10))


@pytest.mark.parametrize("content", [False, True])
def test_a_changed_file_is_another_recording(tmp_path: Path, content: bool) -> None:
    from dsnb import TextLineDataset

    path = tmp_path / "lines.txt"
    ds = TextLineDataset(str(path)).cache(tmp_path / "cache", content=content)
    path.write_text("a\nb\n")
    assert list(ds) == ["a", "b"]
    path.write_text("c\nd\n")
    os.utime(path, ns=(1, 1))
    with pytest.warns(CacheWarning, match=f"has changed: the file {path} changed"):
        assert list(ds) == ["c", "d"]
    os.utime(path, ns=(2, 2))
    before = len(list((tmp_path / "cache").iterdir()))
    with nullcontext() if content else pytest.warns(CacheWarning, match="has changed"):
        assert list(ds) == ["c", "d"]
    assert (len(list((tmp_path / "cache").iterdir())) == before) is content


def test_what_has_no_value_is_refused_at_the_call(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        ds = Dataset.range(3).map(lambda x: print(x, file=log) or x)
        with pytest.raises(FailedPreconditionError, match="log"):
            ds.cache(tmp_path / "cache")
        assert [int(x) for x in ds.cache()] == [0, 1, 2]


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "it").touch()
    with pytest.raises(InvalidArgumentError, match="is a file"):
        Dataset.range(3).cache(tmp_path / "it")


@pytest.mark.parametrize("where", [3, b"folder", ["a"]])
def test_where_must_be_a_path(where: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="where"):
        Dataset.range(3).cache(where)


def test_where_may_be_called_filename_and_be_empty_as_in_tf_data(calls: Calls, tmp_path: Path) -> None:
    for _ in range(2):
        check(list(squares(calls).cache(filename=tmp_path / "cache")))
    assert calls.count == N
    for ds in (squares(calls).cache(""), squares(calls).cache(filename="")):
        assert repr(ds).startswith("Dataset(range(50) | map(square) | cache()")
        for _ in range(2):
            check(list(ds))
    assert calls.count == 3 * N
    with pytest.raises(InvalidArgumentError, match="both `where` and `filename`"):
        Dataset.range(3).cache(tmp_path, filename=tmp_path)


@pytest.mark.parametrize("where", [None, "", "memory://place"])
def test_an_expiry_is_refused_where_nothing_expires(where: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expire_seconds"):
        Dataset.range(3).cache(where, expire_seconds=1)


def test_what_nobody_reads_in_a_directory_expires(calls: Calls, tmp_path: Path) -> None:
    where = tmp_path / "cache"
    ds = squares(calls).cache(where, expire_seconds=1000)
    check(list(ds))
    list(Dataset.range(3).cache(where))
    for used in where.glob("*/used"):
        os.utime(used, (0, 0))
    with iter(ds) as elements:  # it is read, so it stays until it is not
        check([next(elements)], last=1)
        assert calls.count == N + 1, "it had expired"
        for used in where.glob("*/used"):
            os.utime(used, (0, 0))
        list(Dataset.range(3).cache(where))
        check(list(elements), first=1)
    check(list(ds))
    assert calls.count == 2 * N
    assert len(list(where.glob("*/000001"))) == 2, "what was given no expiry stays"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["files", "segments", "folders"])
@pytest.mark.parametrize("when", ["between", "within"])
def test_a_recording_that_somebody_removed_is_recorded_anew(calls: Calls, tmp_path: Path, what: str, when: str) -> None:
    where = tmp_path / "cache"

    def remove() -> None:
        if what == "folders":
            shutil.rmtree(where)
        for path in list(where.rglob("*.seg" if what == "segments" else "*")):
            if path.is_file():
                os.remove(path)

    ds = squares(calls).cache(where, chunk_bytes=5 * 58)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        if when == "between":
            check(list(ds))
            remove()
            check(list(ds))
        else:
            with iter(ds) as elements:
                found = [next(elements) for _ in range(N // 2)]
                remove()
                check(found + list(elements))
        assert calls.count <= 2 * N
        check(list(ds))
    before = calls.count
    check(list(ds))
    assert calls.count == before


def test_a_search_over_values_is_told_of_once_and_an_edit_each_time(tmp_path: Path) -> None:
    def train(rate: float) -> None:
        list(Dataset.range(3).map(lambda x: x * rate).cache(tmp_path / "cache"))

    train(0.0)
    with pytest.warns(CacheWarning, match=r"closure rate: 1.0 against 0.0 before"):
        train(1.0)
    for rate in range(2, 10):
        train(float(rate))
    for edit in ("x + 1", "x + 2", "x + 3"):
        function: Any = eval(f"lambda x: {edit}")
        with nullcontext() if edit == "x + 1" else pytest.warns(CacheWarning, match="has changed"):
            list(Dataset.range(3).map(function).cache(tmp_path / "edited"))


@pytest.mark.parametrize(
    "arguments",
    [{"limit_bytes": -1}, {"limit_bytes": 1.5}, {"content": 1}, {"chunk_bytes": 0}, {"lease_seconds": 0}],
    ids=str,
)
def test_other_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        Dataset.range(3).cache(**arguments)


def test_a_cell_that_is_run_again_makes_the_same_pipeline(tmp_path: Path) -> None:
    from dsnb.code.fingerprint.fingerprint import fingerprint

    def digest(where: Path | None) -> str:
        return fingerprint(Dataset.range(3).cache(where).batch(2).operation).digest

    assert digest(None) == digest(None) != digest(tmp_path)
    assert digest(tmp_path) == digest(tmp_path)


@pytest.fixture
def segment(tmp_path: Path) -> Callable[[], Path]:
    return lambda: max((tmp_path / "cache").rglob("*.seg"))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_recording_is_never_served_but_recorded_anew(
    calls: Calls, tmp_path: Path, segment: Callable[[], Path], damage: str
) -> None:
    ds = squares(calls).cache(tmp_path / "cache", chunk_bytes=10 * 58)
    check(list(ds))
    path = segment()
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[200] ^= 1
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    # What was compared with its checksum is not compared again for the same dataset; another one looks for itself.
    ds = squares(calls).cache(tmp_path / "cache", chunk_bytes=10 * 58)
    with pytest.warns(CacheWarning, match=path.name):
        check(list(ds))
    assert N < calls.count <= 2 * N
    before = calls.count
    check(list(ds))
    assert calls.count == before
    assert [path.name for path in (tmp_path / "cache").glob("*/0*")] == ["000002"], "the damaged one is gone by now"


@pytest.mark.parametrize("name", ["manifest", "log/00000000", "log/00000001"])
def test_a_damaged_log_is_never_believed(calls: Calls, tmp_path: Path, name: str) -> None:
    ds = squares(calls).cache(tmp_path / "cache")
    if name == "manifest":
        check(list(ds))
    else:
        check(list(ds.take(3)), last=3)
    (path,) = (tmp_path / "cache").glob(f"*/000001/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.warns(CacheWarning, match="damaged"):
        check(list(ds))
    before = calls.count
    check(list(ds))
    assert calls.count == before


def test_a_pipeline_that_cannot_be_repeated_is_recorded_anew_after_an_early_stop(tmp_path: Path) -> None:
    ds = Dataset.range(N).map(lambda x: x, num_parallel_calls=2, deterministic=False).cache(tmp_path / "cache")
    assert len(list(ds.take(5))) == 5
    first = [int(x) for x in ds]
    assert sorted(first) == list(range(N))
    assert [int(x) for x in ds] == first


def test_elements_are_read_as_views_that_do_not_die_with_the_iterator(calls: Calls, tmp_path: Path) -> None:
    ds = squares(calls).cache(tmp_path / "cache")
    list(ds)
    kept = [element["rows"] for element in ds]
    assert all(not rows.flags.writeable and not rows.flags.owndata for rows in kept)
    assert [rows.tolist() for rows in kept] == [[[x] * 3] * 2 for x in range(N)]


def test_who_was_stopped_while_evicting_a_recording_holds_nobody_up(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(squares(calls).cache(tmp_path / "cache"))
    monkeypatch.setattr("dsnb.cache.recordings.recording_directory._EVICTION_S", 0.1)
    (lock,) = (tmp_path / "cache").glob("*/lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        check(list(squares(calls).cache(tmp_path / "cache")))
    assert calls.count == N


def test_an_idle_writer_gives_its_lease_back(calls: Calls, tmp_path: Path) -> None:
    ds = squares(calls).cache(tmp_path / "cache", lease_seconds=0.2)
    with iter(ds) as elements:
        check([next(elements)], last=1)
        log = next((tmp_path / "cache").glob("*/000001/log"))
        wait_for(lambda: any(b"release" in path.read_bytes() for path in log.iterdir()), what="the release")
        check(list(elements), first=1)
    check(list(ds))
    assert calls.count == N


def test_a_read_only_folder_is_read_and_not_written(calls: Calls, tmp_path: Path, read_only: Any) -> None:
    ds = squares(calls).cache(tmp_path / "cache")
    list(ds)
    with read_only(tmp_path / "cache"):
        check(list(ds))
    assert calls.count == N


def test_where_nothing_can_be_written_the_pass_runs_without_the_cache(
    calls: Calls, tmp_path: Path, read_only: Any
) -> None:
    ds = squares(calls).cache(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    with read_only(tmp_path / "cache"), pytest.warns(CacheWarning, match="failed: Read-only file system"):
        check(list(ds))
    assert calls.count == N


@pytest.fixture
def read_only() -> Any:
    """A folder whose file system refuses writes: root, who runs tests in containers, is refused by nothing else."""
    import errno
    from contextlib import contextmanager

    from dsnb.storage.failpoints import failpoint_hook

    @contextmanager
    def refused(folder: Path) -> Iterator[None]:
        def hook(name: str, when: str) -> None:
            if when == "before":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with failpoint_hook(hook):
            yield

    return refused


@pytest.mark.slow
@pytest.mark.parametrize(
    "step,number",
    [(step, n) for step in ("slot write", "slot sync", "slot name", "segment write", "segment sync") for n in (0, 3)]
    + [("segment make", 0)],
)
def test_a_full_disk_ends_the_recording_and_not_the_pass(calls: Calls, tmp_path: Path, step: str, number: int) -> None:
    import errno

    from dsnb.storage.failpoints import failpoint_hook

    left = [number]

    def hook(name: str, when: str) -> None:
        if (name, when) == (step, "before"):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ds = squares(calls).cache(tmp_path / "cache", chunk_bytes=5 * 58)
    with failpoint_hook(hook), pytest.warns(CacheWarning, match="No space left on device"):
        check(list(ds))
    assert calls.count == N
    check(list(ds))
    check(list(ds))
    assert calls.count <= 2 * N


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dsnb.errors.CacheWarning")
@pytest.mark.parametrize("rate", [0.02, 0.2, 1.0])
def test_a_disk_that_fails_at_any_moment_stops_no_pass(calls: Calls, tmp_path: Path, rate: float) -> None:
    import errno

    from dsnb.storage.failpoints import failpoint_hook

    def failing(seed: int) -> Callable[[str, str], None]:
        draw = random.Random(seed)

        def hook(name: str, when: str) -> None:
            if when == "before" and draw.random() < rate:
                code = draw.choice([errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE, errno.ESTALE])
                raise OSError(code, os.strerror(code))

        return hook

    for seed in range(15):
        ds = squares(calls).cache(tmp_path / f"{seed}-{rate}", chunk_bytes=5 * 58)
        with failpoint_hook(failing(seed)):
            for _ in range(3):
                before = calls.count
                check(list(ds))
                assert calls.count - before <= 2 * N, f"seed {seed}"
        check(list(ds))
        before = calls.count
        check(list(ds))
        assert calls.count == before, f"seed {seed}: it is used again"


def test_a_stage_that_is_drained_twice_stays_at_its_end(calls: Calls, where: str | None) -> None:
    stage = squares(calls, 5).cache(where).operation.build(context())
    assert len(drain(stage, [2])) == 5
    stage.close()


def test_a_recording_knows_that_its_order_is_free_where_the_options_of_the_pipeline_say_so() -> None:
    def said(deterministic: bool, calls: int) -> bool:
        data = Dataset.range(3).map(lambda x: x, calls)
        return recording_start(data.operation, BuildContext(entropy=0, deterministic=deterministic)).repeatable

    assert [said(True, 2), said(False, 2), said(False, 1)] == [True, False, True]

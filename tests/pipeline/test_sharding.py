"""Worker i of n produces its shard: the rewriting of pipelines, without any worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import TextLineDataset
from dsnb.pipeline.graph import describe, restore, serialise
from dsnb.pipeline.modes import ShardingSupport
from dsnb.pipeline.operations.with_options import build_pipeline
from dsnb.pipeline.sharding import opens_files, sharded, sharding_support
from tests.pipeline.driving import context, drain, plain

ENTROPY = 4711
"""What all workers of one pass have in common."""

HINT = dsnb.SHARD_HINT


def shard(ds: Dataset, mode: str, count: int, index: int) -> list[Any]:
    """What one worker produces of a pipeline that came to it as bytes."""
    arrived = restore(serialise(ds.operation).definition, {}.__getitem__)
    stage = build_pipeline(sharded(arrived, mode, count, index), context(entropy=ENTROPY))
    try:
        return [plain(element) for element in drain(stage, (3, 64))]
    finally:
        stage.close()


def shards(ds: Dataset, mode: str, count: int) -> list[list[Any]]:
    return [shard(ds, mode, count, index) for index in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten files of ten records each: 0 to 99."""
    for file in range(10):
        (tmp_path / f"{file}.txt").write_text("".join(f"{10 * file + record}\n" for record in range(10)))
    return tmp_path


def listed(folder: Path, **options: Any) -> Dataset:
    return Dataset.list_files(str(folder / "*.txt"), **options)


def records(*files: int) -> list[str]:
    return [str(10 * file + record) for file in files for record in range(10)]


# ---- DATA


@pytest.mark.slow
@given(st.integers(0, 30), st.integers(1, 7))
def test_shards_of_data_are_slices(length: int, count: int) -> None:
    expected = [list(range(length))[index::count] for index in range(count)]
    assert shards(Dataset.range(length), "DATA", count) == expected


IN_ANY_ORDER = dsnb.Options()
IN_ANY_ORDER.deterministic = False
ORDERS: dict[str, Dataset] = {
    "unseeded shuffle": Dataset.range(50).shuffle(20),
    "a shuffle in each pass": Dataset.range(25).shuffle(10).repeat(2),
    "batches of a shuffle": Dataset.range(50).shuffle(50).batch(3),
    "a map in any order": Dataset.range(50).map(lambda x: x, num_parallel_calls=4, deterministic=False).batch(2),
    "options for any order": Dataset.range(5)
    .flat_map(lambda n: Dataset.range(10 * n, 10 * n + 10).map(lambda x: x, num_parallel_calls=4))
    .batch(2)
    .with_options(IN_ANY_ORDER),
    "an interleave in any order": Dataset.range(5).interleave(
        lambda n: Dataset.range(n, n + 10).shuffle(10), 3, num_parallel_calls=3, deterministic=False
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_all_workers_agree_on_the_order_that_they_cut(name: str) -> None:
    stage = ORDERS[name].operation.build(context(entropy=1))
    everything = [plain(x) for x in drain(stage)]
    stage.close()

    def flat(elements: list[Any]) -> list[int]:
        return sorted(x for element in elements for x in (element if isinstance(element, list) else [element]))

    assert flat([x for part in shards(ORDERS[name], "DATA", 3) for x in part]) == flat(everything)


def test_the_cut_is_made_before_what_only_changes_elements() -> None:
    seen: list[int] = []
    ds = Dataset.range(20).filter(lambda x: x % 2 == 0).map(lambda x: seen.append(int(x)) or x).prefetch(1)
    operation = sharded(ds.operation, "DATA", 5, 1)
    assert describe(operation).endswith("| shard(5, 1) | map(<lambda>) | prefetch(1)")
    assert [int(x) for x in Dataset(operation)] == seen == [2, 12]


def test_an_early_cut_gives_what_a_late_one_would_errors_included() -> None:
    def picky(x: int) -> int:
        if x % 3 == 0:
            raise RuntimeError(f"{x} is bad")
        return x

    ds = Dataset.range(20).map(picky)
    late = [Dataset(ds.shard(4, index).operation) for index in range(4)]
    for index, part in enumerate(shards(ds, "DATA", 4)):
        assert part == [plain(x) for x in drain(late[index].operation.build(context()))]


# ---- FILE


@pytest.mark.parametrize("mode", ["FILE", "FILE_OR_DATA"])
def test_each_worker_reads_its_files_in_order(folder: Path, mode: str) -> None:
    names = sorted(map(str, folder.glob("*.txt")))
    for ds in (
        TextLineDataset(names),
        listed(folder, shuffle=False).flat_map(TextLineDataset),
        listed(folder, shuffle=False).flat_map(lambda name: TextLineDataset([name])),
        Dataset.from_tensor_slices(names).flat_map(TextLineDataset),
    ):
        assert shard(ds, mode, 5, 3) == records(3, 8)
        assert sorted(x for part in shards(ds, mode, 3) for x in part) == sorted(records(*range(10)))


def test_shuffled_file_names_are_divided_before_they_are_shuffled(folder: Path) -> None:
    names = sorted(map(str, folder.glob("*.txt")))
    for ds in (
        listed(folder, shuffle=True).flat_map(TextLineDataset),
        Dataset.from_tensor_slices(names).shuffle(10).interleave(lambda name: TextLineDataset(name, "", 4096)),
    ):
        assert sorted(shard(ds, "FILE", 5, 3)) == sorted(records(3, 8))


def test_both_sides_of_a_zip_and_all_parts_of_a_concatenation_are_divided(folder: Path) -> None:
    lines = listed(folder, shuffle=False).flat_map(TextLineDataset)
    assert shard(Dataset.zip(lines, lines), "FILE", 5, 3) == [(x, x) for x in records(3, 8)]
    assert shard(lines.concatenate(lines), "FILE_OR_DATA", 5, 3) == 2 * records(3, 8)


def test_what_is_behind_the_files_is_left_as_it_is(folder: Path) -> None:
    ds = listed(folder, shuffle=False).interleave(TextLineDataset, cycle_length=10).map(int).batch(4)
    numbers = [30, 80, 31, 81, 32, 82, 33, 83, 34, 84, 35, 85, 36, 86, 37, 87, 38, 88, 39, 89]
    assert shard(ds, "FILE", 5, 3) == [numbers[at : at + 4] for at in range(0, 20, 4)]


def test_without_files_there_is_nothing_to_divide_by_file() -> None:
    for ds in (Dataset.range(20), Dataset.zip(Dataset.range(3), Dataset.range(4)).map(lambda x, y: x)):
        with pytest.raises(NotFoundError, match=r"Found an unshardable source dataset: range\("):
            shard(ds, "FILE", 2, 0)
        assert shard(ds, "FILE_OR_DATA", 2, 1) == shard(ds, "DATA", 2, 1)


@pytest.mark.parametrize("mode", ["FILE", "FILE_OR_DATA"])
def test_fewer_files_than_workers_are_refused(folder: Path, mode: str) -> None:
    names = sorted(map(str, folder.glob("*.txt")))
    for ds in (listed(folder), TextLineDataset(names), Dataset.from_tensor_slices(names).flat_map(TextLineDataset)):
        assert len(shards(ds, mode, 10)) == 10
        with pytest.raises(InvalidArgumentError, match="not enough for the required 11 shards/workers"):
            shard(ds, mode, 11, 0)
    assert len(shard(listed(folder), "DATA", 11, 10)) == 0


# ---- HINT


@pytest.mark.parametrize("index", [HINT, 0, 5])
def test_a_hint_is_filled_in(index: int) -> None:
    assert shard(Dataset.range(20).shard(HINT, index), "HINT", 5, 1) == [1, 6, 11, 16]


def test_a_hint_is_filled_in_where_it_stands(folder: Path) -> None:
    before = listed(folder, shuffle=False).shard(HINT, HINT).flat_map(TextLineDataset)
    behind = listed(folder, shuffle=False).flat_map(TextLineDataset).shard(HINT, HINT)
    assert shard(before, "HINT", 5, 3) == records(3, 8)
    assert shard(behind, "HINT", 5, 3) == [str(x) for x in range(3, 100, 5)]


def test_numbers_of_the_user_are_used_as_they_are() -> None:
    assert shard(Dataset.range(20).shard(1, 0), "HINT", 5, 1) == list(range(20))


def test_what_is_before_a_hint_has_one_order_for_all() -> None:
    ds = Dataset.range(30).shuffle(30).shard(HINT, HINT).map(lambda x: x)
    assert sorted(x for part in shards(ds, "HINT", 4) for x in part) == list(range(30))


@pytest.mark.parametrize("mode", ["FILE_OR_DATA", "DATA"])
def test_a_hint_in_another_mode_is_refused(mode: str) -> None:
    with pytest.raises(FailedPreconditionError, match=rf"`processing_mode` is {mode}(.|\n)*ShardingPolicy\.HINT"):
        shard(Dataset.range(20).shard(HINT, HINT), mode, 2, 0)


# ---- all modes


@pytest.mark.parametrize("mode", ["OFF", "DYNAMIC"])
def test_modes_without_shards_leave_the_pipeline_alone(mode: str) -> None:
    operation = Dataset.range(20).map(lambda x: x).operation
    assert sharded(operation, mode, 0, 0) is operation


def test_the_number_of_workers_and_the_place_among_them_are_checked() -> None:
    operation = Dataset.range(20).operation
    with pytest.raises(InvalidArgumentError, match="num_workers should be >= 1, currently 0"):
        sharded(operation, "DATA", 0, 0)
    for index in (5, -1):
        with pytest.raises(InvalidArgumentError, match=f"index should be >= 0 and < 2, currently {index}"):
            sharded(operation, "DATA", 2, index)


def test_one_worker_has_everything(folder: Path) -> None:
    lines = listed(folder, shuffle=False).flat_map(TextLineDataset)
    for mode in ("FILE", "DATA", "FILE_OR_DATA", "HINT"):
        assert shards(lines, mode, 1) == [records(*range(10))]


def test_what_a_pipeline_offers_is_plain_data(folder: Path) -> None:
    files = listed(folder)
    names = Dataset.from_generator(lambda: map(str, folder.glob("*.txt")))
    nothing = "Found an unshardable source dataset: range(3) reads no files"
    assert sharding_support(Dataset.range(3).operation) == ShardingSupport(no_files_reason=nothing)
    assert sharding_support(files.operation) == ShardingSupport(file_count=10)
    assert sharding_support(names.flat_map(TextLineDataset).operation) == ShardingSupport()
    assert sharding_support(files.shard(HINT, 0).batch(2).operation) == ShardingSupport(
        file_count=10, has_shard_hint=True
    )


# ---- functions that open files


def opener(path: str) -> Dataset:
    return TextLineDataset(path)


def of_an_opener(path: str) -> Dataset:
    return opener(path).take(1)


def endless(path: str) -> Dataset:
    return endless(path)


OPENING: dict[str, tuple[Callable[..., Any], bool]] = {
    "the class": (TextLineDataset, True),
    "with arguments": (partial(TextLineDataset, compression_type="GZIP"), True),
    "by its name": (lambda path: TextLineDataset([path]), True),
    "in its module": (lambda path: dsnb.TextLineDataset([path]), True),
    "a function that calls one": (of_an_opener, True),
    "not at all": (lambda x: Dataset.range(x, 9), False),
    "a function of itself": (endless, False),
    "built in": (len, False),
}


@pytest.mark.parametrize("name", OPENING)
def test_functions_that_open_files_are_found(name: str) -> None:
    function, expected = OPENING[name]
    assert opens_files(function) is expected

"""A user who interrupts a cell and reads on has lost nothing, whatever operations stand behind the one that ran."""

from __future__ import annotations

import gzip
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import _base as futures
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsnb.pipeline import splits
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.engine.iterator import ElementIterator
from dsnb.pipeline.engine.stage import as_list
from dsnb.pipeline.file_datasets import ParquetDataset, TextLineDataset, TFRecordDataset, WebDataset
from dsnb.pipeline.parquet import row_groups
from dsnb.pipeline.sources import compressed, web_samples
from dsnb.pipeline.tfrecord import reader
from dsnb.pipeline.tfrecord.writer import TFRecordWriter
from dsnb.storage import read_ahead, urls
from tests.faults.chaos import paced
from tests.pipeline.driving import MOST, context, drain, plain, run
from tests.pipeline.test_dataset import CHAIN_STEPS
from tests.support.interrupting import interrupted_at, interrupted_often
from tests.support.marks import slow
from tests.support.parquet import write_numbers
from tests.support.requires import require_module
from tests.support.shards import shard


class Stop:
    """Interrupts the call number `at`, once: as a key that a user presses while it runs."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt


def interrupted(dataset: Dataset, wants: list[int]) -> list[Any]:
    """What comes for one who reads on behind interrupts."""
    stage = dataset.operation.build(context())
    out: list[Any] = []
    try:
        for pull in range(MOST):
            try:
                pulled = as_list(stage.pull(wants[min(pull, len(wants) - 1)]))
            except KeyboardInterrupt:
                continue
            if not pulled:
                return [plain(x) for x in out]
            out += pulled
    finally:
        stage.close()
    raise AssertionError(f"no end after {MOST} pulls")


WANTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
# What has threads is told of interrupts there as of any other error.
SERIAL = sorted(name for name in CHAIN_STEPS if name not in {"parallel map", "prefetch"})
OFTEN = {"rebatch", "parallel map"}
"""The operations that each run of `pytest` interrupts anywhere."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SERIAL)
@given(st.integers(0, 25), WANTS)
@settings(max_examples=30)
def test_an_interrupted_input_gives_the_rest_later(name: str, at: int, wants: list[int]) -> None:
    stop = Stop(at)
    whole = [plain(x) for x in run(CHAIN_STEPS[name](Dataset.range(20).map(lambda x: x)))]
    assert interrupted(CHAIN_STEPS[name](Dataset.range(20).map(lambda x: stop() or x)), wants) == whole


CALLING: dict[str, Callable[[Callable[[], None]], Dataset]] = {
    "scan": lambda stop: Dataset.range(12).scan(0, lambda state, x: stop() or (state + x, state)),
    "take_while": lambda stop: Dataset.range(12).take_while(lambda x: stop() or x < 9),
    "group_by_window": lambda stop: Dataset.range(12).group_by_window(lambda x: stop() or x % 2, lambda _, w: w, 3),
    "window_size_func": lambda stop: Dataset.range(12).group_by_window(
        lambda x: x % 2, lambda _, w: w, window_size_func=lambda _: stop() or 2
    ),
    "bucket_by_sequence_length": lambda stop: Dataset.range(12).bucket_by_sequence_length(
        lambda x: stop() or int(x), [5], [2, 3]
    ),
    "flat_map": lambda stop: Dataset.range(6).flat_map(lambda x: stop() or Dataset.range(x % 3)),
    "interleave": lambda stop: Dataset.range(6).interleave(lambda x: stop() or Dataset.range(x % 3), 2),
    "choose_from_datasets": lambda stop: Dataset.choose_from_datasets(
        [Dataset.range(6)] * 2, Dataset.range(12).map(lambda x: stop() or x % 2)
    ),
}


@pytest.mark.parametrize("name", CALLING)
@given(st.integers(0, 14), WANTS)
@settings(max_examples=30)
def test_an_interrupted_function_is_called_again(name: str, at: int, wants: list[int]) -> None:
    whole = [plain(x) for x in run(CALLING[name](lambda: None))]
    assert interrupted(CALLING[name](Stop(at)), wants) == whole


READING = [compressed, reader, web_samples, row_groups, read_ahead, urls, tarfile, gzip, futures]
"""Where the bytes of files are read and taken apart, by dsnb and by the standard library."""
TAKING_AND_READING = [splits, *READING]
"""Also where the next file is taken."""
PARTS = [f"{number:02}".encode() * 100 for number in range(12)]
LONG_PARTS = [part * 600 for part in PARTS]  # several blocks of a store


def lines(folder: Path, pack: Callable[[bytes], bytes] = bytes, parts: list[bytes] = PARTS) -> list[str]:
    for name in "ab":
        (folder / name).write_bytes(pack(b"".join(name.encode() + part + b"\n" for part in parts)))
    return [str(folder / name) for name in "ab"]


def records(folder: Path, compression: str = "", parts: list[bytes] = PARTS) -> list[str]:
    for name in "ab":
        with TFRecordWriter(str(folder / name), compression) as writer:
            for part in parts:
                writer.write(name.encode() + part)
    return [str(folder / name) for name in "ab"]


def damaged_records(folder: Path) -> list[str]:
    paths = records(folder)
    data = bytearray(Path(paths[0]).read_bytes())
    data[3 * (len(data) // len(PARTS)) + 20] ^= 1
    Path(paths[0]).write_bytes(data)
    return paths


def samples(folder: Path, suffix: str = ".tar", parts: list[bytes] = PARTS[:4]) -> list[str]:
    files = [(f"{number}.{kind}", part) for number, part in enumerate(parts) for kind in ("jpg", "cls")]
    return [shard(folder / f"{name}{suffix}", [(name + file, data) for file, data in files]) for name in "ab"]


def stored(paths: list[str]) -> list[str]:
    """The same files in a store."""
    require_module("fsspec")
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe({path: Path(path).read_bytes() for path in paths})
    return [f"memory://{path}" for path in paths]


FILES: dict[str, Callable[[Path], Dataset]] = {
    "lines": lambda folder: TextLineDataset(lines(folder), buffer_size=300),
    "lines, gzip": lambda folder: TextLineDataset(lines(folder, gzip.compress), "GZIP", buffer_size=10),
    "lines, zlib": lambda folder: TextLineDataset(lines(folder, zlib.compress), "ZLIB", buffer_size=10),
    "lines in a store": lambda folder: TextLineDataset(stored(lines(folder, parts=LONG_PARTS))),
    "records": lambda folder: TFRecordDataset(records(folder), buffer_size=300),
    "records, gzip": lambda folder: TFRecordDataset(records(folder, "GZIP"), "GZIP", buffer_size=10),
    "records, one damaged": lambda folder: TFRecordDataset(damaged_records(folder), buffer_size=300),
    "records in a store": lambda folder: TFRecordDataset(stored(records(folder, parts=LONG_PARTS))),
    "samples": lambda folder: WebDataset(samples(folder)),
    "samples, gzip": lambda folder: WebDataset(samples(folder, ".tar.gz")),
    "samples in a store": lambda folder: WebDataset(stored(samples(folder, parts=LONG_PARTS[:6]))),
    "row groups": lambda folder: ParquetDataset(write_numbers(folder, 2, 30), batch_size=4),
    "row groups in a store": lambda folder: ParquetDataset(stored(write_numbers(folder, 2, 30)), batch_size=4),
}


def read_on(elements: ElementIterator, when_interrupted: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """What the rest of an iteration gives, errors in their places."""
    for _ in range(MOST):
        try:
            yield plain(next(elements))
        except StopIteration:
            return
        except KeyboardInterrupt:
            when_interrupted()
        except Exception as error:  # noqa: BLE001 - what a pipeline raises is part of what it gives
            yield plain(error)
    raise AssertionError(f"no end after {MOST} elements")


def read_interrupted(
    dataset: Dataset,
    at: int,
    when_interrupted: Callable[[], None] = lambda: None,
    modules: Sequence[ModuleType] | None = READING,
    *,
    at_once: bool = False,
) -> tuple[list[Any], int, Any]:
    """What comes for one who is interrupted at a line and reads on; how much came before that, and the state then."""
    found: list[Any] = []
    before: list[tuple[int, Any]] = []
    with interrupted_at(modules, at, at_once=at_once), closing(iter(dataset)) as elements:

        def note() -> None:
            before.append((len(found), elements.state_dict()))
            when_interrupted()

        found.extend(read_on(elements, note))
    return found, *(before[0] if before else (0, None))


def check_any_line(build: Callable[[], Dataset], samples: int) -> None:
    """Interrupt at lines all over a pipeline; read on here, and elsewhere from the state."""
    with closing(iter(build())) as elements:
        whole = list(read_on(elements))
    with interrupted_at(None, None) as count, closing(iter(build())) as elements:
        assert list(read_on(elements)) == whole
    for at in range(0, count.lines, max(1, count.lines // samples)):
        found, begin, state = read_interrupted(build(), at, modules=None)
        assert found == whole, f"interrupted at line {at} of {count.lines}"
        if state is not None:
            with closing(iter(build())) as elsewhere:
                elsewhere.load_state_dict(state)
                assert list(read_on(elsewhere)) == whole[begin:], f"interrupted at line {at} of {count.lines}"


@pytest.mark.parametrize("name", [name if name in OFTEN else slow(name) for name in CHAIN_STEPS])
def test_an_interrupt_anywhere_in_a_pipeline_loses_nothing(name: str) -> None:
    check_any_line(lambda: CHAIN_STEPS[name](Dataset.range(20).map(lambda x: x)), samples=40)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda ds: ds.map(paced(0.001), num_parallel_calls=2), id="parallel calls"),
        pytest.param(lambda ds: ds.map(paced(0.001)).prefetch(1), id="prefetch", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_of_a_wait_leaves_its_lock_as_it_should_be(build: Callable[[Dataset], Dataset]) -> None:
    """Python's own `Condition` would not: it may stay locked, or be released twice."""

    def read(at: int | None) -> int:
        with closing(iter(build(Dataset.range(4)))) as elements, interrupted_at([threading], at) as count:
            assert list(read_on(elements)) == list(range(4)), f"interrupted at line {at}"
        return count.lines

    lines = read(None)
    for at in range(lines):
        read(at)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAIN_STEPS)
def test_an_interrupt_anywhere_in_a_long_pipeline_loses_nothing(name: str) -> None:
    def build() -> Dataset:
        some = Dataset.range(30).map(lambda x: x).batch(4).map(lambda batch: batch + 1).unbatch()
        chained: Dataset = CHAIN_STEPS[name](some)
        return chained.map(lambda x: {"x": int(x), "row": np.arange(3) + x}).batch(3)

    check_any_line(build, samples=25)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SERIAL, "prefetch", "parallel map"])
def test_reading_on_after_many_interrupts_loses_nothing(name: str) -> None:
    def build() -> Dataset:
        chained: Dataset = CHAIN_STEPS[name](Dataset.range(20).map(lambda x: x))
        return chained.repeat(150).batch(2)

    with closing(iter(build())) as elements:
        whole = list(read_on(elements))
    interrupts = 0

    def read() -> Iterator[Any]:
        nonlocal interrupts
        while True:
            try:
                yield from elements  # not `next`: its caller may be interrupted before it has the element
                return
            except KeyboardInterrupt:
                interrupts += 1

    with closing(iter(build())) as elements, interrupted_often():
        found = list(read())
    assert [plain(element) for element in found] == whole, f"after {interrupts} interrupts"


def test_an_interrupted_generator_gives_what_it_had_yielded_and_then_says_that_it_ended() -> None:
    stop = Stop(5)
    elements = iter(Dataset.from_generator(lambda: (stop() or x for x in range(12))))
    found: list[Any] = []
    states: list[Any] = []
    found.extend(read_on(elements, lambda: states.append((len(found), elements.state_dict()))))
    assert found == [0, 1, 2, 3, 4, "FailedPreconditionError"]
    [(begin, state)] = states
    elsewhere = iter(Dataset.from_generator(lambda: (stop() or x for x in range(12))))
    elsewhere.load_state_dict(state)
    assert list(read_on(elsewhere)) == list(range(12))[begin:]


def test_an_interrupted_generator_within_another_iterator_does_not_end_the_epoch_silently() -> None:
    stop = Stop(5)
    elements = iter(Dataset.from_generator(lambda: map(int, (stop() or x for x in range(12)))))
    assert list(read_on(elements)) == [0, 1, 2, 3, 4, "FailedPreconditionError"]


def test_an_interrupt_while_a_generator_is_opened_is_no_empty_epoch() -> None:
    stop = Stop(0)
    elements = iter(Dataset.from_generator(lambda: stop() or iter([1, 2])))
    assert list(read_on(elements)) == ["FailedPreconditionError"]


def test_an_interrupted_iterator_that_is_no_generator_goes_on() -> None:
    stop = Stop(5)

    class Numbers:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Numbers:
            return self

        def __next__(self) -> int:
            stop()
            if self.at == 12:
                raise StopIteration
            self.at += 1
            return self.at

    assert list(read_on(iter(Dataset.from_generator(Numbers)))) == list(range(1, 13))


# A file that was just opened is left to the garbage collector.
lost_files_are_no_matter = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@lost_files_are_no_matter
@pytest.mark.parametrize("name", [name if name == "records" else slow(name) for name in FILES])
def test_an_interrupted_read_of_files_goes_on_here_and_elsewhere(name: str, tmp_path: Path) -> None:
    dataset = FILES[name](tmp_path)
    with interrupted_at(TAKING_AND_READING, None) as count, closing(iter(dataset)) as elements:
        whole = list(read_on(elements))
    for at in range(0, count.lines, max(1, count.lines // 30)):
        found, begin, state = read_interrupted(dataset, at, modules=TAKING_AND_READING)
        assert found == whole, f"interrupted at line {at} of {count.lines}"
        if state is not None:
            with closing(iter(dataset)) as elsewhere:
                elsewhere.load_state_dict(state)
                assert list(read_on(elsewhere)) == whole[begin:], f"interrupted at line {at} of {count.lines}"


@lost_files_are_no_matter
@pytest.mark.parametrize("name", ["lines, gzip", "records", "samples"])
@pytest.mark.parametrize("kept", [None, 0.3], ids=["removed", "cut off"])
def test_a_file_that_changed_since_the_interrupt_is_one_error(name: str, kept: float | None, tmp_path: Path) -> None:
    dataset = FILES[name](tmp_path)
    first = Path(dataset.operation.files[0])  # type: ignore[attr-defined]  # of a source of files
    with interrupted_at(READING, None) as count, closing(iter(dataset)) as elements:
        whole = list(read_on(elements))

    def change() -> None:
        data = first.read_bytes()
        first.unlink()
        if kept is not None:
            first.write_bytes(data[: int(len(data) * kept)])

    found, *_ = read_interrupted(dataset, count.lines * 4 // 10, change, at_once=True)
    lost_at = found.index("FileNotFoundError" if kept is None else "DataLossError")
    assert 0 < lost_at <= len(whole) // 2  # all of its elements may have been read, if not yet its end
    assert found[:lost_at] + found[lost_at + 1 :] == whole[:lost_at] + whole[len(whole) // 2 :]


@lost_files_are_no_matter
def test_the_pull_after_an_interrupted_one_returns_no_more_than_is_wanted(tmp_path: Path) -> None:
    dataset = FILES["records"](tmp_path)
    whole = run(dataset)
    with interrupted_at(READING, None) as count:
        run(dataset)
    stage = dataset.operation.build(context())
    with interrupted_at(READING, count.lines // 2), pytest.raises(KeyboardInterrupt):
        stage.pull(1024)
    try:
        assert drain(stage, [2]) == whole  # checks the length of each run
    finally:
        stage.close()

"""A recording is out of date when a file that it was made from has changed, also one whose name was an element."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.cache.opened_files import OpenedFiles, track_opened_files
from dsnb.errors import CacheWarning
from tests.cache.test_freshness import CHANGES, changed_to_the_same_length, lines
from tests.support.processes import PythonProcess
from tests.support.redis import RedisServer
from tests.support.requires import require_module


@pytest.fixture(params=["directory", "redis", "fsspec"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Somewhere to record that other processes find."""
    if request.param == "redis":
        require_module("redis")
        (tmp_path / "server").mkdir()
        with RedisServer(tmp_path / "server") as server:
            yield server.url
    elif request.param == "fsspec":
        require_module("fsspec")
        yield f"file://{tmp_path / 'remote'}"
    else:
        yield str(tmp_path / "recordings")


class Passes:
    """Passes over a recorded dataset of the lines of a file whose name is an element; counts the lines produced."""

    def __init__(self, file: Path, where: str | None, *, content: bool = False) -> None:
        self.file = file
        self.where = where
        self.content = content
        self.calls = Path(f"{file}.calls")
        self.calls.touch()

    def dataset(self) -> dsnb.Dataset:
        calls = str(self.calls)

        def note(line: str) -> str:
            with open(calls, "ab", buffering=0) as file:
                file.write(b".")
            return line

        names = dsnb.Dataset.from_tensor_slices([str(self.file)])
        return names.interleave(dsnb.TextLineDataset).map(note).cache(self.where, content=self.content)

    def read(self, warned: str = "", dataset: dsnb.Dataset | None = None) -> tuple[list[str], int]:
        """A pass, with this warning or none: its lines, and how many were produced."""
        before = self.calls.stat().st_size
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = [str(line) for line in dataset or self.dataset()]
        texts = [str(warning.message) for warning in told if issubclass(warning.category, CacheWarning)]
        assert bool(texts) == bool(warned), texts
        assert all(warned in text for text in texts), texts
        return found, self.calls.stat().st_size - before


def test_a_recording_is_made_anew_when_a_file_whose_name_is_an_element_has_changed(tmp_path: Path, place: str) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), place)
    assert passes.read() == (["one", "two"], 2)
    assert passes.read() == (["one", "two"], 0)
    lines(passes.file, "new", "new", "new")
    assert passes.read(f"the file {passes.file} has changed since it was read") == (["new"] * 3, 3)
    assert passes.read() == (["new"] * 3, 0)


@pytest.mark.parametrize("change", [change for change in CHANGES if "time" not in change.__name__])
def test_by_size_and_time_of_change(tmp_path: Path, change: Any) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), str(tmp_path / "cache"))
    passes.read()
    change(passes.file)
    assert passes.read("has changed since it was read")[0] == passes.file.read_text().split()


@pytest.mark.parametrize("change", CHANGES)
def test_or_by_content(tmp_path: Path, change: Any) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), str(tmp_path / "cache"), content=True)
    assert passes.read() == (["one", "two"], 2)
    os.utime(passes.file, ns=(1, 1))
    assert passes.read() == (["one", "two"], 0), "a file that was only touched is the same"
    change(passes.file)
    found = passes.file.read_text().split()
    assert passes.read("has changed since it was read") == (found, len(found))
    assert passes.read() == (found, 0)


def test_a_file_that_is_gone_is_a_change(tmp_path: Path) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), str(tmp_path / "cache"))
    passes.read()
    passes.file.unlink()
    with pytest.warns(CacheWarning), pytest.raises(FileNotFoundError):
        list(passes.dataset())


def test_a_part_of_a_pass_is_made_anew_too(tmp_path: Path) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two", "three"), str(tmp_path / "cache"))
    with iter(passes.dataset()) as elements:
        assert [str(line) for line in islice(elements, 1)] == ["one"]
    lines(passes.file, "1", "2", "3")
    assert passes.read("has changed since it was read")[0] == ["1", "2", "3"]


@pytest.mark.slow
def test_a_new_process_looks_at_the_files_too(tmp_path: Path) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), str(tmp_path / "cache"))
    passes.read()
    code = (
        "import sys, dsnb\n"
        f"names = dsnb.Dataset.from_tensor_slices([{str(passes.file)!r}])\n"
        f"def note(line):\n    open({str(passes.calls)!r}, 'ab').write(b'.')\n    return line\n"
        f"print(*names.interleave(dsnb.TextLineDataset).map(note).cache({passes.where!r}))\n"
    )
    for text in ("one", "two"), ("ONE", "two"), ("ONE", "two"):
        if text != tuple(passes.file.read_text().split()):
            changed_to_the_same_length(passes.file)
        with PythonProcess(["-W", "ignore", "-c", code]) as process:
            assert process.wait_for_exit(timeout=60) == 0, process.describe()
            assert process.stdout.split() == list(text)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["parallel_epochs", "distributed_epoch"])
def test_workers_look_at_the_files_of_a_recording(tmp_path: Path, mode: str) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), str(tmp_path / "cache"))
    names = [str(passes.file), str(lines(tmp_path / "more.txt", "three"))]

    def read(service: dsnb.DataService) -> list[str]:
        ds = dsnb.Dataset.from_tensor_slices(names).flat_map(dsnb.TextLineDataset).cache(passes.where)
        return sorted(str(line) for line in ds.apply(dsnb.distribute(mode, service)))

    with dsnb.start(workers=1) as service:
        if mode == "distributed_epoch":
            split = dsnb.Dataset.from_tensor_slices(names).flat_map(dsnb.TextLineDataset)
            assert split.operation.split_local, "each file is a split of its own"
        assert read(service) == read(service) == ["one", "three", "two"]
        changed_to_the_same_length(passes.file)
        with pytest.warns(CacheWarning, match="has changed since it was read"):
            assert read(service) == ["ONE", "three", "two"]
        assert read(service) == ["ONE", "three", "two"]


@pytest.mark.parametrize("content", [False, True])
def test_a_recording_of_what_workers_produce_is_made_anew_too(tmp_path: Path, *, content: bool) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), None)
    names = dsnb.Dataset.from_tensor_slices([str(passes.file)])
    with dsnb.start(workers=1) as service:
        ds = names.interleave(dsnb.TextLineDataset).apply(dsnb.distribute("parallel_epochs", service))
        recorded = ds.cache(tmp_path / "cache", content=content)
        assert passes.read(dataset=recorded)[0] == ["one", "two"]
        if content:
            os.utime(passes.file, ns=(1, 1))
        assert passes.read(dataset=recorded)[0] == ["one", "two"]
        changed_to_the_same_length(passes.file)
        assert passes.read("has changed since it was read", dataset=recorded)[0] == ["ONE", "two"]


def test_a_recording_in_memory_keeps_what_its_first_pass_read(tmp_path: Path) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one", "two"), None)
    ds = passes.dataset()
    assert passes.read(dataset=ds) == (["one", "two"], 2)
    changed_to_the_same_length(passes.file)
    assert passes.read(dataset=ds) == (["one", "two"], 0)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "directory"])
@pytest.mark.parametrize("recorded", [False, True])
def test_whoever_reads_a_recording_learns_of_the_files_that_it_was_made_from(
    tmp_path: Path, where: str, recorded: bool
) -> None:
    passes = Passes(lines(tmp_path / "data.txt", "one"), None if where == "memory" else str(tmp_path / "cache"))
    ds = passes.dataset()
    if recorded:
        passes.read(dataset=ds)
    asking = OpenedFiles()
    with track_opened_files(asking):
        elements = iter(ds)
    assert str(next(elements)) == "one"
    elements.close()
    assert [path for _, path, _ in asking.states("strict")] == [str(passes.file)]


@pytest.mark.slow
def test_a_change_of_prefetch_in_front_of_it_is_no_other_recording(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def note(x: int) -> int:
        with calls.open("ab") as file:
            file.write(b".")
        return x

    rows = dsnb.Dataset.range(5).map(note)
    for ds in (rows, rows.prefetch(2), rows.prefetch(1).prefetch(3)):
        assert len(list(ds.cache(tmp_path / "cache"))) == 5
    assert calls.stat().st_size == 5

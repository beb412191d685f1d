"""`Dataset.save` and `Dataset.load`: all or nothing, any elements, in order, by files."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dsnb
from dsnb import Dataset
from dsnb.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
)
from dsnb.storage.failpoints import FAILPOINTS, Fault, failpoint_hook
from dsnb.testing import assert_resumable
from tests.support.cluster import Cluster
from tests.support.processes import python_process
from tests.support.reading import numbers
from tests.support.requires import require_module


class Pair(NamedTuple):
    left: Any
    right: Any


ELEMENTS: dict[str, Dataset] = {
    "numbers": Dataset.range(1000),
    "none": Dataset.range(0),
    "arrays": Dataset.range(50).map(lambda x: np.full((3, 4), x, np.float32)),
    "large arrays": Dataset.range(5).map(lambda x: np.full(1_000_000, x)),
    "text": Dataset.range(50).map(lambda x: "ü" * int(x)),
    "bytes": Dataset.range(50).map(lambda x: bytes(int(x))),
    "ragged arrays": Dataset.range(50).map(np.arange),
    "a structure": Dataset.range(50).map(lambda x: {"x": x, "y": (str(x), [np.ones(3), x * 0.5])}),
    "a named tuple": Dataset.range(50).map(lambda x: Pair(x, {"z": x})),
    "several dtypes": Dataset.range(50).map(lambda x: np.float32(x) if x % 7 == 0 else x),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    found = np.asarray(one), np.asarray(other)
    return found[0].dtype == found[1].dtype and np.array_equal(*found)


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("file_bytes", [1, 128 << 20], ids=["many files", "one file"])
def test_what_was_saved_is_loaded_in_order(tmp_path: Path, name: str, file_bytes: int) -> None:
    dataset = ELEMENTS[name]
    wanted = list(dataset)
    dataset.save(tmp_path / "saved", file_bytes)
    loaded = Dataset.load(tmp_path / "saved")
    for _ in range(2):
        got = list(loaded)
        assert len(got) == len(wanted) == len(loaded)
        assert all(map(same, got, wanted))
    if wanted:
        assert loaded.element_spec == dataset.element_spec
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]


def test_a_loaded_dataset_continues_at_each_position(tmp_path: Path) -> None:
    Dataset.range(9000).save(tmp_path / "saved", 1)
    assert_resumable(Dataset.load(tmp_path / "saved").batch(700))


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs", dsnb.ShardingPolicy.FILE])
def test_workers_share_the_files_of_a_saved_dataset(tmp_path: Path, mode: Any) -> None:
    Dataset.range(20_000).save(tmp_path / "saved", 1)
    loaded = Dataset.load(tmp_path / "saved")
    with Cluster(2) as cluster:
        got = Counter(numbers(loaded.apply(dsnb.distribute(mode, cluster.service))))
    assert got == dict.fromkeys(range(20_000), 2 if mode == "parallel_epochs" else 1)


def test_workers_make_the_elements_that_are_saved(tmp_path: Path) -> None:
    with Cluster(2) as cluster:
        squares = Dataset.range(1000).map(lambda x: x * x)
        squares.apply(dsnb.distribute("distributed_epoch", cluster.service)).save(tmp_path / "saved")
    assert sorted(numbers(Dataset.load(tmp_path / "saved"))) == [x * x for x in range(1000)]


def test_a_path_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path / "saved")
    with pytest.raises(AlreadyExistsError, match="already started or completed"):
        Dataset.range(4).save(tmp_path / "saved")
    assert numbers(Dataset.load(tmp_path / "saved")) == [0, 1, 2]


def test_what_fails_or_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def divide(x: Any) -> Any:
        return 1 // (900 - int(x))

    with pytest.raises(ZeroDivisionError):
        Dataset.range(1000).map(divide).save(tmp_path / "saved", 1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotFoundError, match="there is no saved dataset"):
        Dataset.load(tmp_path / "saved")
    with pytest.raises(InvalidArgumentError, match="Saving an infinite dataset is not allowed"):
        Dataset.range(3).repeat().save(tmp_path / "saved")


SAVING = """
import sys, dsnb
print("READY", flush=True)
dsnb.Dataset.range(10**9).save(sys.argv[1] if len(sys.argv) > 1 else PATH, 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_ends_while_it_saves_leaves_no_dataset(tmp_path: Path, sign: int) -> None:
    saved = tmp_path / "saved"
    with python_process(SAVING.replace("PATH", repr(str(saved)))) as process:
        while not any("." in path.name and list(path.glob("*.frames")) for path in tmp_path.iterdir()):
            assert process.popen.poll() is None, process.describe()
        process.popen.send_signal(sign)
        process.wait_for_exit()
    assert not saved.exists()
    assert [path for path in tmp_path.iterdir() if sign == signal.SIGINT] == []


KILLED = """
import os, signal
from dsnb import Dataset
from dsnb.storage.failpoints import failpoint_hook
print("READY", flush=True)
def kill(*passed):
    if passed == PASSED:
        os.kill(os.getpid(), signal.SIGKILL)
with failpoint_hook(kill):
    Dataset.range(9000).save(PATH, 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", sorted(name for name in FAILPOINTS if name.startswith("saved ")))
def test_a_kill_at_any_point_leaves_all_or_nothing(tmp_path: Path, point: str, when: str) -> None:
    saved = tmp_path / "saved"
    with python_process(KILLED.replace("PASSED", repr((point, when))).replace("PATH", repr(str(saved)))) as process:
        assert process.wait_for_exit() == -signal.SIGKILL
    assert saved.exists() == (
        (point, when) in {("saved name", "after"), ("saved folder sync", "before"), ("saved folder sync", "after")}
    )
    if not saved.exists():
        Dataset.range(9000).save(saved)
    assert numbers(Dataset.load(saved)) == list(range(9000))


def test_errors_of_the_system_say_what_was_not_saved_or_read(tmp_path: Path) -> None:
    too_long = tmp_path / ("x" * 300)
    with pytest.raises(InvalidArgumentError, match=r"(?s)saving to .*name too long.*nothing was saved"):
        Dataset.range(3).save(too_long)
    with pytest.raises(FailedPreconditionError, match=r"`path`: .* cannot be read \(File name too long\)"):
        Dataset.load(too_long)

    def fill_disk(name: str, when: str) -> None:
        if (name, when) == ("saved manifest write", "before"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with (
        failpoint_hook(fill_disk),
        pytest.raises(ResourceExhaustedError, match=r"(?s)No space left.*nothing was saved"),
    ):
        Dataset.range(3).save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_synced_is_told_and_what_is_saved_is_there(tmp_path: Path) -> None:
    full = Fault("saved folder sync/before:fail")
    with failpoint_hook(full), pytest.raises(ResourceExhaustedError, match="it was saved, but"):
        Dataset.range(3).save(tmp_path / "saved")
    assert numbers(Dataset.load(tmp_path / "saved")) == [0, 1, 2]


def test_an_error_of_a_source_is_not_taken_for_one_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dsnb.TextLineDataset(tmp_path / "nothing.txt").save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_one_error_in_the_place_of_its_rest(tmp_path: Path) -> None:
    Dataset.range(20_000).save(tmp_path / "saved", 1)
    files = sorted((tmp_path / "saved").glob("*.frames"))
    assert len(files) == 5
    data = bytearray(files[1].read_bytes())
    data[-5] ^= 1
    files[1].write_bytes(data)
    files[2].write_bytes(files[2].read_bytes()[:-100])
    files[3].unlink()
    elements, got, errors = iter(Dataset.load(tmp_path / "saved")), list[int](), list[Exception]()
    while True:
        try:
            got.append(int(next(elements)))
        except StopIteration:
            break
        except (DataLossError, FileNotFoundError) as error:
            errors.append(error)
    assert got == [*range(4096), *range(4 * 4096, 20_000)]
    assert [type(error) for error in errors] == [DataLossError, DataLossError, FileNotFoundError]
    assert "00001.frames of a saved dataset is damaged" in str(errors[0])
    assert "00002.frames of a saved dataset ends in the middle" in str(errors[1])


def test_a_spec_is_compared_with_that_of_the_saved_elements(tmp_path: Path) -> None:
    Dataset.range(3).save(tmp_path / "saved")
    Dataset.load(tmp_path / "saved", dsnb.TensorSpec((), np.int64))
    with pytest.raises(InvalidArgumentError, match=r"has elements TensorSpec.*int64.*and `element_spec` is"):
        Dataset.load(tmp_path / "saved", dsnb.TensorSpec((), np.float32))


@pytest.mark.parametrize(
    "text, told", [("{", "is no description of a dataset"), ('{"format": 2}', "was saved in format 2")]
)
def test_what_cannot_be_read_is_refused_with_a_sentence(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "dsnb-dataset.json").write_text(text)
    with pytest.raises(FailedPreconditionError, match=told):
        Dataset.load(tmp_path)


def test_a_copy_at_a_url_is_read_and_saving_to_a_url_is_refused(tmp_path: Path) -> None:
    require_module("fsspec")
    import fsspec

    Dataset.range(9000).save(tmp_path / "saved", 1)
    url = f"memory://saved-{tmp_path.name}"
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "saved"), url, recursive=True)
    try:
        assert numbers(Dataset.load(url)) == list(range(9000))
    finally:
        store.rm(url, recursive=True)
    with pytest.raises(UnimplementedError, match="is a URL"):
        Dataset.range(3).save(url)
    with pytest.raises(NotFoundError, match="there is no saved dataset"):
        Dataset.load(url)


def test_a_dataset_that_was_saved_is_the_source_of_a_recording(tmp_path: Path) -> None:
    Dataset.range(100).save(tmp_path / "saved")
    cached = Dataset.load(tmp_path / "saved").map(lambda x: x + 1).cache(tmp_path / "cache")
    assert numbers(cached) == numbers(cached) == list(range(1, 101))
    os.rename(tmp_path / "saved", tmp_path / "moved")
    assert numbers(Dataset.load(tmp_path / "moved")) == list(range(100))

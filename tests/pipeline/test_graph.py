"""A pipeline becomes bytes and blobs, and comes back from them."""

from __future__ import annotations

import functools
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.graph import describe, restore, serialise
from dsnb.pipeline.operations.concatenate import Concatenate
from dsnb.pipeline.operations.map import Map
from tests.support.graphs import blob_loader, no_blobs, numbers, pipeline_with

BIG = 1 << 20


# ----------------------------------------------------------------------------------------------------------- big arrays


def test_an_array_over_a_megabyte_leaves_the_pickle_and_comes_back_read_only() -> None:
    array = np.arange(BIG // 4 + 1, dtype=np.int32)
    graph = serialise(pipeline_with(functools.partial(np.add, array)))
    restored: Any = restore(graph.definition, blob_loader(graph))
    (back,) = restored.function.args
    assert len(graph.definition) < 10_000
    assert [blob.nbytes for blob in graph.blobs] == [array.nbytes]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert not back.flags.writeable


def test_a_blob_is_a_view_of_the_users_array_and_what_comes_back_is_a_view_of_what_was_fetched() -> None:
    array = np.arange(float(BIG))
    graph = serialise(pipeline_with(functools.partial(np.add, array)))
    assert np.shares_memory(np.frombuffer(graph.blobs[0].data, np.uint8), array)
    buffer = bytearray(graph.blobs[0].data)
    restored: Any = restore(graph.definition, lambda _: buffer)
    assert np.shares_memory(restored.function.args[0], np.frombuffer(buffer, np.uint8))
    assert not restored.function.args[0].flags.writeable  # though the buffer is
    with pytest.raises(TypeError):
        graph.blobs[0].data[0] = 1


def test_an_array_of_a_megabyte_stays_in_the_pickle() -> None:
    assert not serialise(pipeline_with(functools.partial(np.add, np.zeros(BIG, np.uint8)))).blobs


def test_equal_arrays_are_one_blob_that_is_fetched_once() -> None:
    array = np.arange(float(BIG))
    graph = serialise(pipeline_with(functools.partial(max, array, [array, array.copy()])))
    asked: list[str] = []

    def fetch_counted(digest: str) -> bytes:
        asked.append(digest)
        return blob_loader(graph)(digest)

    restored: Any = restore(graph.definition, fetch_counted)
    assert len(graph.blobs) == len(asked) == 1
    np.testing.assert_array_equal(restored.function.args[1][1], array)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(BIG + 8, np.int8),
        np.zeros((2, BIG // 2 + 4), np.uint8),
        np.concatenate([np.zeros(BIG + 7, np.uint8), np.ones(1, np.uint8)]),
    ],
    ids=["dtype", "shape", "last byte"],
)
def test_arrays_that_differ_in_anything_come_back_as_they_were(other: np.ndarray[Any, Any]) -> None:
    array = np.zeros(BIG + 8, np.uint8)
    graph = serialise(pipeline_with(functools.partial(max, array, other)))
    restored: Any = restore(graph.definition, blob_loader(graph))
    for back, sent in zip(restored.function.args, (array, other), strict=True):
        assert back.dtype == sent.dtype
        np.testing.assert_array_equal(back, sent)


def test_a_blob_is_known_by_its_bytes_alone() -> None:
    array = np.arange(float(BIG))
    graph = serialise(pipeline_with(functools.partial(max, array, array.view(np.int64).reshape(2, -1))))
    assert [blob.digest for blob in graph.blobs] == [xxhash.xxh3_128_hexdigest(array.tobytes())]


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(200_000.0).reshape(500, 400)),
        np.arange(600_000.0)[::3],
        np.arange(200_000).astype("datetime64[s]"),
        np.arange(200_000).astype(">i8"),
        np.ones(200_000, np.complex128),
    ],
    ids=["fortran", "strided", "datetime", "big-endian", "complex"],
)
def test_arrays_of_any_layout_come_back_as_they_were(array: np.ndarray[Any, Any]) -> None:
    graph = serialise(pipeline_with(functools.partial(max, array)))
    restored: Any = restore(graph.definition, blob_loader(graph))
    (back,) = restored.function.args
    assert len(graph.blobs) == 1
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_arrays_of_objects_stay_in_the_pickle() -> None:
    array = np.array([None, "text"] * BIG, object)[: BIG // 4]
    assert not serialise(pipeline_with(functools.partial(max, array))).blobs


def test_a_memory_map_comes_back_as_an_array(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(BIG + 1,))
    array[-1] = 7
    graph = serialise(pipeline_with(functools.partial(max, array)))
    restored: Any = restore(graph.definition, blob_loader(graph))
    assert type(restored.function.args[0]) is np.ndarray
    assert restored.function.args[0][-1] == 7


def test_a_blob_of_the_wrong_size_is_refused() -> None:
    graph = serialise(pipeline_with(functools.partial(max, np.zeros(BIG + 1, np.uint8))))
    with pytest.raises(DataLossError, match=f"{BIG} bytes where the pipeline's array has {BIG + 1}"):
        restore(graph.definition, lambda _: bytes(BIG))


# ------------------------------------------------------------------------------------------------------------ restoring


def test_a_definition_of_another_python_is_refused_before_it_is_read() -> None:
    definition = serialise(numbers()).definition
    here = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    with pytest.raises(FailedPreconditionError, match=r"written by Python 3\.2, and this worker runs Python"):
        restore(definition.replace(here, b"3.2", 1), no_blobs)


def test_a_definition_of_another_format_is_refused_before_it_is_read() -> None:
    definition = serialise(numbers()).definition
    with pytest.raises(FailedPreconditionError, match="written by another version of dsnb"):
        restore(definition.replace(b"dsnb graph 2", b"dsnb graph 1", 1), no_blobs)


def test_bytes_that_are_no_definition_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        restore(pickle.dumps(numbers), no_blobs)


def test_a_module_that_the_worker_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "graph_library.py").write_text("def decode(x): return x\n")
    monkeypatch.syspath_prepend(str(library))
    import graph_library  # type: ignore[import-not-found]

    graph = serialise(pipeline_with(graph_library.decode))
    monkeypatch.delitem(sys.modules, "graph_library")
    shutil.rmtree(library)  # the path to it came along
    with pytest.raises(FailedPreconditionError, match="needs the module 'graph_library'"):
        restore(graph.definition, blob_loader(graph))


# ----------------------------------------------------------------------------------------------------------- what it is


def test_the_graph_carries_the_fingerprint_of_its_pipeline_which_the_worker_finds_too() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def helper(x): return x + 1\ndef f(x): return helper(x)", namespace)
    graph = serialise(pipeline_with(namespace["f"]))
    restored = restore(graph.definition, blob_loader(graph))
    assert serialise(restored).fingerprint.digest == graph.fingerprint.digest
    assert serialise(pipeline_with(len)).fingerprint.digest != graph.fingerprint.digest


REAL = {
    "range": lambda: Dataset.range(20).map(lambda x: x * 2, num_parallel_calls=2).filter(lambda x: x > 3).batch(3),
    "order": lambda: Dataset.range(20).shuffle(8, seed=1).repeat(2).skip(1).take(30).prefetch(2).enumerate(),
    "arrays": lambda: Dataset.from_tensor_slices(np.arange(float(BIG)).reshape(-1, 4)).take(5).unbatch(),
    "generator": lambda: Dataset.from_generator(lambda: iter("abc")),
    "tree": lambda: Dataset.zip((Dataset.range(3), Dataset.range(2).concatenate(Dataset.range(1)))),
    "inner": lambda: Dataset.range(3).interleave(lambda x: Dataset.range(2).map(lambda y: x + y)),
}


@pytest.mark.parametrize("make", REAL.values(), ids=REAL)
def test_a_real_dataset_reads_the_same_after_the_journey_and_is_known_again(make: Callable[[], Dataset]) -> None:
    graph = serialise(make().operation)
    restored = restore(graph.definition, blob_loader(graph))
    assert [repr(element) for element in Dataset(restored)] == [repr(element) for element in make()]
    assert fingerprint(restored) == fingerprint(make().operation) == graph.fingerprint
    assert not graph.fingerprint.unhashable


def test_a_pipeline_is_described_in_one_line() -> None:
    line = Map(function=len, inputs=(Map(function=max, inputs=(numbers(),)),))
    assert describe(line) == "range(3) | map(max) | map(len)"
    assert describe(Map(function=len, inputs=(Concatenate(inputs=(line, numbers())),))) == (
        "concatenate(range(3) | map(max) | map(len), range(3)) | map(len)"
    )

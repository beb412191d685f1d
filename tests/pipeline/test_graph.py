"""A pipeline becomes bytes that another process can run, and what cannot go along is named."""

from __future__ import annotations

import functools
import os
import pickle
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import dsnb.errors
from dsnb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.graph import Graph, describe, restore, serialise
from dsnb.pipeline.operation import Operation

ROOT = str(Path(dsnb.errors.__file__).parent.parent)
BIG = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbers(Operation):
    count: int = 3

    @property
    def name(self) -> str:
        return f"numbers({self.count})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Each(Operation):
    function: Any

    @property
    def name(self) -> str:
        return f"map({getattr(self.function, '__name__', 'function')})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Zip(Operation):
    pass


def each(function: Callable[..., Any]) -> Each:
    return Each(function=function, inputs=(Numbers(),))


def there_and_back(function: Any) -> Any:
    """The function as a worker has it."""
    graph = serialise(each(function))
    restored: Any = restore(graph.definition, fetch(graph))
    return restored.function


def fetch(graph: Graph) -> Callable[[str], bytes]:
    return {blob.digest: bytes(blob.data) for blob in graph.blobs}.__getitem__


def refusal(function: Any) -> str:
    with pytest.raises(InvalidArgumentError) as refused:
        serialise(each(function))
    assert refused.value.did == "nothing was registered"
    return refused.value.what


def run(code: str, *arguments: str, path: str = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}, cwd="/",
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A package of the user's whose modules import each other and hold what cannot be pickled."""
    package = tmp_path / "graph_local"
    package.mkdir()
    (package / "__init__.py").write_text("import threading\nfrom graph_local import inner\nlock = threading.Lock()\n")
    (package / "inner.py").write_text(
        "import threading\nimport graph_local\nlock = threading.Lock()\nSCALE = 3\n"
        "class Odd(ValueError): pass\n"
        "def factor(): return graph_local.inner.SCALE\n"
        "def scale(x): return x * factor()\n"
        "def fail(x): raise Odd(x)\n"
        "def locked(x):\n    with lock: return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import graph_local  # type: ignore[import-not-found]

    yield graph_local
    for name in [name for name in sys.modules if name.startswith("graph_local")]:
        del sys.modules[name]


# ------------------------------------------------------------------------------------------------------- by value

CELL = """
import sys
from dataclasses import dataclass
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.graph import serialise
import numpy as np
import graph_cell_helper

SCALE = 10
BIG = np.arange(200_000.0)

@dataclass(frozen=True, kw_only=True)
class Each(Operation):
    function: object
    @property
    def name(self): return "map"

class Augment:
    def __init__(self, offset): self.offset = offset
    def __call__(self, x): return helper(x) + self.offset

def helper(x): return graph_cell_helper.prepare(x) * SCALE + BIG[x]

graph = serialise(Each(function=Augment(0.5)))
open(sys.argv[1], "wb").write(graph.definition)
(blob,) = graph.blobs
open(sys.argv[2], "wb").write(blob.data)
"""

WORKER = """
import sys
from dsnb.pipeline.graph import restore
definition, blob = (open(name, "rb").read() for name in sys.argv[1:])
operation = restore(definition, lambda digest: blob)
try:
    import graph_cell_helper
except ModuleNotFoundError:
    print(operation.name, operation.function(2))
"""


def test_a_pipeline_of_a_cell_runs_in_a_process_that_has_neither_the_cell_nor_its_helper_module(tmp_path: Path) -> None:
    (tmp_path / "graph_cell_helper.py").write_text("OFFSET = 5\ndef prepare(x): return x + OFFSET\n")
    files = str(tmp_path / "definition"), str(tmp_path / "blob")
    run(f"exec(compile({CELL!r}, '<cell>', 'exec'))", *files, path=f"{ROOT}{os.pathsep}{tmp_path}")
    assert run(WORKER, *files) == "map 72.5"


def test_a_function_sees_its_globals_as_they_were_when_it_was_written_down() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("SCALE = 2\ndef scale(x): return x * SCALE", namespace)
    graph = serialise(each(namespace["scale"]))
    namespace["SCALE"] = 100
    restored: Any = restore(graph.definition, fetch(graph))
    assert restored.function(3) == 6


def test_of_modules_that_import_each_other_only_what_functions_ask_goes_along(helpers: types.ModuleType) -> None:
    """Their locks cannot be pickled, and nobody needs them."""
    namespace = {"__name__": "__main__", "graph_local": helpers}
    exec("def scale(x): return graph_local.inner.scale(x)", namespace)
    restored = there_and_back(namespace["scale"])
    module = restored.__globals__["graph_local"]
    assert restored(2) == 6
    assert module is not helpers
    assert not hasattr(module, "lock")
    assert not hasattr(module.inner, "lock")


def test_what_a_modules_function_needs_and_cannot_be_pickled_is_named(helpers: types.ModuleType) -> None:
    namespace = {"__name__": "__main__", "graph_local": helpers}
    exec("def guard(x): return graph_local.inner.locked(x)", namespace)
    assert refusal(namespace["guard"]) == (
        "map(guard) cannot be sent to the workers: its variable 'lock' (_thread.lock), reached by way of "
        "'graph_local.inner.locked', cannot be pickled"
    )


def test_dsnb_itself_goes_by_reference_though_it_runs_from_a_checkout() -> None:
    restored: Any = restore(serialise(Numbers()).definition, {}.__getitem__)
    assert isinstance(restored, Operation)
    assert there_and_back(dsnb.errors.DsnbError) is dsnb.errors.DsnbError
    assert there_and_back(describe) is describe


def test_pickling_by_value_ends_with_the_dump(helpers: types.ModuleType) -> None:
    serialise(each(helpers.inner.scale))
    assert cloudpickle.list_registry_pickle_by_value() == set()
    with pytest.raises(InvalidArgumentError):
        serialise(each(helpers.inner.locked))
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_what_the_user_registered_with_cloudpickle_stays_registered(helpers: types.ModuleType) -> None:
    cloudpickle.register_pickle_by_value(helpers)  # type: ignore[no-untyped-call]
    try:
        serialise(each(helpers.inner.scale))
        assert cloudpickle.list_registry_pickle_by_value() == {"graph_local"}
    finally:
        cloudpickle.unregister_pickle_by_value(helpers)  # type: ignore[no-untyped-call]


def test_restoring_a_class_in_the_kernel_that_made_it_leaves_the_kernels_class_alone() -> None:
    """cloudpickle would write the pickled methods, with a frozen copy of their globals, into the class in use."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("SCALE = 1\nclass Scale:\n    seen = 0\n    def __call__(self, x): return x * SCALE", namespace)
    Scale = namespace["Scale"]
    restored = there_and_back(Scale())
    namespace["SCALE"] = 10
    Scale.seen = 5
    assert there_and_back(Scale())(2) == 20
    assert (Scale()(2), Scale.seen) == (20, 5)
    assert restored(2) == 2
    assert type(restored) is not Scale


def test_an_exception_of_the_users_is_the_same_class_in_the_kernel_that_made_it(helpers: types.ModuleType) -> None:
    """So that `except MyError` works around a loop that reads from a worker in this process."""
    fail = there_and_back(helpers.inner.fail)
    before = dict(vars(helpers.inner.Odd))
    with pytest.raises(helpers.inner.Odd):
        fail(1)
    assert dict(vars(helpers.inner.Odd)) == before


def test_a_dataclass_of_the_users_can_be_derived_from_on_the_worker() -> None:
    @dataclass
    class Settings:
        scale: int

    def derive() -> Any:
        return dataclass(type("More", (Settings,), {"__annotations__": {"offset": int}}))

    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        there_and_back(derive)()()


def test_a_pipeline_of_a_thousand_operations_goes_along() -> None:
    operation: Operation = Numbers()
    for _ in range(1000):
        operation = Each(function=len, inputs=(operation,))
    restored = restore(serialise(operation).definition, {}.__getitem__)
    assert describe(restored).count("map(len)") == 1000


def test_an_input_that_is_used_twice_is_one_input_afterwards() -> None:
    source = Numbers()
    restored = restore(serialise(Zip(inputs=(source, source))).definition, {}.__getitem__)
    assert restored.inputs[0] is restored.inputs[1]


# ------------------------------------------------------------------------------------------------------- big arrays


def test_an_array_over_a_megabyte_leaves_the_pickle_and_comes_back_read_only() -> None:
    array = np.arange(BIG // 4 + 1, dtype=np.int32)
    graph = serialise(each(functools.partial(np.add, array)))
    restored: Any = restore(graph.definition, fetch(graph))
    (back,) = restored.function.args
    assert len(graph.definition) < 10_000
    assert [blob.nbytes for blob in graph.blobs] == [array.nbytes]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert not back.flags.writeable


def test_a_blob_is_a_view_of_the_users_array_and_what_comes_back_is_a_view_of_what_was_fetched() -> None:
    array = np.arange(float(BIG))
    graph = serialise(each(functools.partial(np.add, array)))
    assert np.shares_memory(np.frombuffer(graph.blobs[0].data, np.uint8), array)
    buffer = bytearray(graph.blobs[0].data)
    restored: Any = restore(graph.definition, lambda _: buffer)
    assert np.shares_memory(restored.function.args[0], np.frombuffer(buffer, np.uint8))
    with pytest.raises(TypeError):
        graph.blobs[0].data[0] = 1


def test_an_array_of_a_megabyte_stays_in_the_pickle() -> None:
    assert not serialise(each(functools.partial(np.add, np.zeros(BIG, np.uint8)))).blobs


def test_equal_arrays_are_one_blob_that_is_fetched_once() -> None:
    array = np.arange(float(BIG))
    graph = serialise(each(functools.partial(max, array, [array, array.copy()])))
    asked: list[str] = []

    def fetch_counted(digest: str) -> bytes:
        asked.append(digest)
        return fetch(graph)(digest)

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
def test_arrays_that_differ_in_anything_are_two_blobs(other: np.ndarray[Any, Any]) -> None:
    array = np.zeros(BIG + 8, np.uint8)
    graph = serialise(each(functools.partial(max, array, other)))
    restored: Any = restore(graph.definition, fetch(graph))
    assert len({blob.digest for blob in graph.blobs}) == 2
    assert restored.function.args[1].dtype == other.dtype
    np.testing.assert_array_equal(restored.function.args[1], other)


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
    graph = serialise(each(functools.partial(max, array)))
    restored: Any = restore(graph.definition, fetch(graph))
    (back,) = restored.function.args
    assert len(graph.blobs) == 1
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_arrays_of_objects_stay_in_the_pickle() -> None:
    array = np.array([None, "text"] * BIG, object)[: BIG // 4]
    assert not serialise(each(functools.partial(max, array))).blobs


def test_a_memory_map_comes_back_as_an_array(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(BIG + 1,))
    array[-1] = 7
    graph = serialise(each(functools.partial(max, array)))
    restored: Any = restore(graph.definition, fetch(graph))
    assert type(restored.function.args[0]) is np.ndarray
    assert restored.function.args[0][-1] == 7


def test_a_blob_of_the_wrong_size_is_refused() -> None:
    graph = serialise(each(functools.partial(max, np.zeros(BIG + 1, np.uint8))))
    with pytest.raises(DataLossError, match=f"{BIG} bytes where the pipeline's array has {BIG + 1}"):
        restore(graph.definition, lambda _: bytes(BIG))


# ------------------------------------------------------------------------------------------------ what cannot go


def test_a_lock_is_named_with_the_operation_and_the_way_to_it() -> None:
    lock = threading.Lock()

    def decode(x: int) -> int:
        with lock:
            return x

    assert refusal(decode) == (
        "map(decode) cannot be sent to the workers: its variable 'lock' (_thread.lock) cannot be pickled"
    )


def test_a_helper_of_a_helper_is_searched_even_where_they_call_each_other() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "guard": threading.Lock()}
    exec("def a(x): return b(x)\ndef b(x): return (a, c)\ndef c(x): return guard", namespace)
    assert "its variable 'guard' (_thread.lock), reached by way of 'b' and 'c', cannot" in refusal(namespace["a"])


def test_defaults_attributes_and_containers_are_searched() -> None:
    class Augment:
        def __init__(self) -> None:
            self.parts = {"log": [threading.Lock()]}

    augment = Augment()
    lock = threading.Lock()

    def with_default(x: int, guard: Any = lock) -> int:
        return x

    assert "its variable 'guard' (_thread.lock) cannot" in refusal(with_default)
    assert "its variable \"augment.parts['log'][0]\" (_thread.lock) cannot" in refusal(lambda x: augment)
    assert "its variable 'self.parts" in refusal(types.MethodType(lambda self, x: x, augment)).replace('"', "'")
    assert "its variable 'guard' (_thread.lock)" in refusal(functools.partial(with_default, guard=lock))


@pytest.mark.parametrize("mode", ["r", "rb", "w"])
def test_an_open_file_is_refused_and_not_read_in_its_place(tmp_path: Path, mode: str) -> None:
    (tmp_path / "list.txt").write_text("a\n")
    with (tmp_path / "list.txt").open(mode) as names:
        with pytest.raises(InvalidArgumentError, match="its variable 'names'") as refused:
            serialise(each(lambda x: names))
    assert refused.value.hint == "pass the file's path, and open the file inside the function"


def test_the_hint_fits_what_was_found() -> None:
    hints = {}
    with socket.socket() as sock:
        for found in (sock, (x for x in "ab"), threading.Lock()):
            with pytest.raises(InvalidArgumentError) as refused:
                serialise(each(lambda x, found=found: x))
            hints[type(found).__name__] = refused.value.hint.partition(",")[0]
    assert hints == {
        "socket": "pass the address",
        "generator": "pass a function that makes the generator",
        "lock": "make it inside the function",
    }


def test_an_object_whose_reduction_raises_anything_is_named() -> None:
    class Model:
        def __reduce__(self) -> str:
            raise LookupError("weights are gone")

    model = Model()
    with pytest.raises(InvalidArgumentError, match=r"its variable 'model' \(.*Model\) cannot be pickled") as refused:
        serialise(each(lambda x: model))
    assert isinstance(refused.value.__cause__, LookupError)


def test_data_that_is_nested_too_deeply_is_named_by_its_variable() -> None:
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    try:
        assert "its variable 'tree' (list) is nested too deeply to be pickled" in refusal(lambda x: tree)
    finally:
        while tree:  # freed level by level: the interpreter's own way is recursive
            tree = tree[0]


def test_the_error_of_a_source_names_the_source() -> None:
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Source(Operation):
        files: Any

    with pytest.raises(InvalidArgumentError, match=r"source cannot be sent to the workers: its variable 'files\[1\]'"):
        serialise(Each(function=len, inputs=(Source(files=["a", threading.Lock()]),)))


def test_standard_output_goes_along_as_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert isinstance(out, TextIOWrapper)
        assert there_and_back(lambda: out)() is out


# ------------------------------------------------------------------------------------------------------ restoring


def test_a_definition_of_another_python_is_refused_before_it_is_read() -> None:
    definition = serialise(Numbers()).definition
    here = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    with pytest.raises(FailedPreconditionError, match=r"written by Python 3\.2, and this worker runs Python"):
        restore(definition.replace(here, b"3.2", 1), {}.__getitem__)


def test_bytes_that_are_no_definition_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        restore(pickle.dumps(Numbers), {}.__getitem__)


def test_a_module_that_the_worker_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "graph_library.py").write_text("def decode(x): return x\n")
    monkeypatch.syspath_prepend(str(library))
    import graph_library  # type: ignore[import-not-found]

    graph = serialise(each(graph_library.decode))
    monkeypatch.delitem(sys.modules, "graph_library")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(library)])
    with pytest.raises(FailedPreconditionError, match="needs the module 'graph_library'"):
        restore(graph.definition, fetch(graph))


# ---------------------------------------------------------------------------------------------------- what it is


def test_the_graph_carries_the_fingerprint_of_its_pipeline_which_the_worker_finds_too() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def helper(x): return x + 1\ndef f(x): return helper(x)", namespace)
    graph = serialise(each(namespace["f"]))
    restored = restore(graph.definition, fetch(graph))
    assert serialise(restored).fingerprint.digest == graph.fingerprint.digest
    assert serialise(each(len)).fingerprint.digest != graph.fingerprint.digest


def test_a_pipeline_is_described_in_one_line() -> None:
    line = Each(function=len, inputs=(Each(function=max, inputs=(Numbers(count=3),)),))
    assert describe(line) == "numbers(3) | map(max) | map(len)"
    assert describe(Each(function=len, inputs=(Zip(inputs=(line, Numbers())),))) == (
        "zip(numbers(3) | map(max) | map(len), numbers(3)) | map(len)"
    )


def test_threads_may_serialise_at_the_same_time(helpers: types.ModuleType) -> None:
    sizes: list[int] = []

    def work() -> None:
        sizes.extend(len(serialise(each(helpers.inner.scale)).definition) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # By reference, as after another thread's unregistering, it would be a tenth as long.
    assert len(sizes) == 80
    assert len(set(sizes)) == 1

"""What a cell or a local module defined goes to the workers by value, and nothing here is changed by that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import cloudpickle as untyped_cloudpickle
import pytest

import dsnb.errors
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.graph import describe, restore, serialise
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.concatenate import Concatenate
from dsnb.pipeline.operations.map import Map
from tests.support.graphs import blob_loader, local_package, no_blobs, numbers, pipeline_with, round_trip

ROOT = str(Path(dsnb.errors.__file__).parent.parent)
cloudpickle: Any = untyped_cloudpickle  # it has no annotations


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[types.ModuleType]:
    with local_package(tmp_path) as package:
        yield package


def run(code: str, *arguments: str, path: str = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}, cwd="/",
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.strip()


CELL = """
import sys
from dsnb.pipeline.operations.map import Map
from dsnb.pipeline.graph import serialise
import numpy as np
import graph_cell_helper

SCALE = 10
BIG = np.arange(200_000.0)

class Augment:
    def __init__(self, offset): self.offset = offset
    def __call__(self, x): return helper(x) + self.offset

def helper(x): return graph_cell_helper.prepare(x) * SCALE + BIG[x]

graph = serialise(Map(function=Augment(0.5)))
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


@pytest.mark.slow
def test_a_pipeline_of_a_cell_runs_in_a_process_that_has_neither_the_cell_nor_its_helper_module(tmp_path: Path) -> None:
    (tmp_path / "graph_cell_helper.py").write_text("OFFSET = 5\ndef prepare(x): return x + OFFSET\n")
    files = str(tmp_path / "definition"), str(tmp_path / "blob")
    run(f"exec(compile({CELL!r}, '<cell>', 'exec'))", *files, path=f"{ROOT}{os.pathsep}{tmp_path}")
    (tmp_path / "graph_cell_helper.py").unlink()
    assert run(WORKER, *files) == "map(Augment) 72.5"


def test_a_function_keeps_the_name_of_its_file_and_so_do_the_functions_in_it() -> None:
    source = "def outer():\n    def inner(): pass\n    return inner"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "/tmp/ipykernel_1/2.py", "exec"), namespace)
    outer = round_trip(namespace["outer"])
    assert {outer.__code__.co_filename, outer().__code__.co_filename} == {"/tmp/ipykernel_1/2.py"}


def test_a_function_sees_its_globals_as_they_were_when_it_was_written_down() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("SCALE = 2\ndef scale(x): return x * SCALE", namespace)
    graph = serialise(pipeline_with(namespace["scale"]))
    namespace["SCALE"] = 100
    restored: Any = restore(graph.definition, blob_loader(graph))
    assert restored.function(3) == 6


def test_of_modules_that_import_each_other_only_what_functions_ask_goes_along(helpers: types.ModuleType) -> None:
    """Their locks cannot be pickled, and nobody needs them."""
    namespace = {"__name__": "__main__", "graph_local": helpers}
    exec("def scale(x): return graph_local.inner.scale(x)", namespace)
    restored = round_trip(namespace["scale"])
    module = restored.__globals__["graph_local"]
    assert restored(2) == 6
    assert module is not helpers
    assert not hasattr(module, "lock")
    assert not hasattr(module.inner, "lock")


def test_dsnb_itself_goes_by_reference_though_it_runs_from_a_checkout() -> None:
    restored: Any = restore(serialise(numbers()).definition, no_blobs)
    assert isinstance(restored, Operation)
    assert round_trip(dsnb.errors.DsnbError) is dsnb.errors.DsnbError
    assert round_trip(describe) is describe


def test_pickling_by_value_ends_with_the_dump(helpers: types.ModuleType) -> None:
    serialise(pipeline_with(helpers.inner.scale))
    assert cloudpickle.list_registry_pickle_by_value() == set()
    with pytest.raises(InvalidArgumentError):
        serialise(pipeline_with(helpers.inner.locked))
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_what_the_user_registered_with_cloudpickle_stays_registered(helpers: types.ModuleType) -> None:
    cloudpickle.register_pickle_by_value(helpers)
    try:
        serialise(pipeline_with(helpers.inner.scale))
        assert cloudpickle.list_registry_pickle_by_value() == {"graph_local"}
    finally:
        cloudpickle.unregister_pickle_by_value(helpers)


def test_restoring_a_class_in_the_kernel_that_made_it_leaves_the_kernels_class_alone() -> None:
    """cloudpickle would write the pickled methods, with a frozen copy of their globals, into the class in use."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("SCALE = 1\nclass Scale:\n    seen = 0\n    def __call__(self, x): return x * SCALE", namespace)
    scale_class = namespace["Scale"]
    restored = round_trip(scale_class())
    namespace["SCALE"] = 10
    scale_class.seen = 5
    assert round_trip(scale_class())(2) == 20
    assert (scale_class()(2), scale_class.seen) == (20, 5)
    assert restored(2) == 2
    assert type(restored) is not scale_class


def test_an_exception_of_the_users_is_the_same_class_in_the_kernel_that_made_it(helpers: types.ModuleType) -> None:
    """So that `except MyError` works around a loop that reads from a worker in this process."""
    before = dict(vars(helpers.inner.Odd))
    fail = round_trip(helpers.inner.fail)
    with pytest.raises(helpers.inner.Odd):
        fail(1)
    assert dict(vars(helpers.inner.Odd)) == before
    assert "scaled" in before


def test_a_dataclass_of_the_users_can_be_derived_from_on_the_worker() -> None:
    @dataclass
    class Settings:
        scale: int

    def derive() -> Any:
        return dataclass(type("More", (Settings,), {"__annotations__": {"offset": int}}))

    with pytest.raises(TypeError, match="missing 2 required positional arguments"):
        round_trip(derive)()()


@pytest.mark.parametrize(
    "member, value",
    [("def value(self): return 1", "value = Base.value"), ("__hash__ = None", "__hash__ = None"), ("value = 7",) * 2],
    ids=["function", "nothing", "constant"],
)
def test_a_class_keeps_the_members_that_its_base_holds_too(member: str, value: str) -> None:
    """In a class that has both for bases, what stands between the two may hold others."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(f"class Base:\n    {member}\nclass Same(Base):\n    {value}\n", namespace)
    graph = serialise(pipeline_with(namespace["Same"]))
    restored: Any = restore(graph.definition, blob_loader(graph))
    assert set(vars(restored.function)) == set(vars(namespace["Same"]))
    assert serialise(restored).fingerprint == graph.fingerprint


def test_a_class_keeps_what_it_took_from_a_librarys_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be pickled is there on the other side, as all of the library."""
    monkeypatch.setattr(threading.Thread, "guard", threading.Lock(), raising=False)
    namespace: dict[str, Any] = {"__name__": "__main__", "Thread": threading.Thread}
    exec("class Guarded(Thread):\n    guard = Thread.guard", namespace)
    restored = round_trip(namespace["Guarded"])
    assert vars(restored)["guard"] is vars(threading.Thread)["guard"]


def test_a_cached_function_of_the_users_goes_along_without_what_it_keeps() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import functools\n@functools.lru_cache(maxsize=7)\ndef table(x): return [x]\ndef f(x): return table(x)",
        namespace,
    )
    kept = namespace["f"](1)
    restored = round_trip(namespace["f"])
    assert restored(1) == kept
    assert restored(1) is restored(1)
    assert restored(1) is not kept
    assert restored.__globals__["table"].cache_parameters() == {"maxsize": 7, "typed": False}


def test_a_pipeline_of_a_thousand_operations_goes_along() -> None:
    operation: Operation = numbers()
    for _ in range(1000):
        operation = Map(function=len, inputs=(operation,))
    restored = restore(serialise(operation).definition, no_blobs)
    assert describe(restored).count("map(len)") == 1000


def test_an_input_that_is_used_twice_is_one_input_afterwards() -> None:
    source = numbers()
    restored = restore(serialise(Concatenate(inputs=(source, source))).definition, no_blobs)
    assert restored.inputs[0] is restored.inputs[1]


def test_standard_output_goes_along_as_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert isinstance(out, TextIOWrapper)
        assert round_trip(lambda: out)() is out


def test_threads_may_serialise_at_the_same_time(helpers: types.ModuleType) -> None:
    sizes: list[int] = []

    def work() -> None:
        sizes.extend(len(serialise(pipeline_with(helpers.inner.scale)).definition) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # By reference, as after another thread's unregistering, it would be a tenth as long.
    assert len(sizes) == 80
    assert len(set(sizes)) == 1


RAISE = """
import sys
from pathlib import Path
from dsnb.pipeline.graph import restore

for line in sys.stdin:
    operation = restore(Path(line.strip()).read_bytes(), None)
    try:
        operation.function(1)
    except ValueError as error:
        print(error.told(), flush=True)
"""


def test_a_worker_that_had_an_exception_before_an_edit_has_it_as_it_is_after(tmp_path: Path) -> None:
    """`%autoreload` writes what changed into the class that is there; by its identity nothing seems to have changed."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Odd(ValueError):\n    def told(self): return 1\ndef fail(x): raise Odd(x)", namespace)
    graphs = [serialise(pipeline_with(namespace["fail"]))]
    namespace["Odd"].told = lambda self: 2
    graphs.append(serialise(pipeline_with(namespace["fail"])))
    for number, graph in enumerate(graphs):
        (tmp_path / str(number)).write_bytes(graph.definition)
    done = subprocess.run(
        [sys.executable, "-c", RAISE], input=f"{tmp_path}/0\n{tmp_path}/1\n", capture_output=True, text=True,
        timeout=60, check=False, env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["1", "2"], "")

"""What a function imports as it runs comes along as source, and is run by nobody but the pipeline that it came with."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.code import imports
from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.pipeline.graph import restore, serialise
from tests.support.graphs import blob_loader, pipeline_with
from tests.support.notebook_folder import NotebookFolder, notebook_folder


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[NotebookFolder]:
    with notebook_folder(tmp_path / "beside") as found:
        yield found


@pytest.fixture
def package(beside: NotebookFolder) -> NotebookFolder:
    """A package whose modules import one another in all the ways there are."""
    beside.make_package("trv_pkg")
    beside.make_package("trv_pkg/deep")
    beside.write(
        trv_pkg="from .base import SCALE\nfrom . import side\n",
        trv_pkg__base="SCALE = 3\n",
        trv_pkg__side="import trv_pkg.base\ndef side(x): return x + trv_pkg.base.SCALE\n",
        trv_pkg__deep="",
        trv_pkg__deep__inner="from .. import base\nfrom ..side import side\n"
        "def scaled(x):\n    from .. import side as sibling\n    return sibling.side(x) * base.SCALE\n",
    )
    return beside


@pytest.mark.parametrize(
    "body",
    [
        "import trv_helpers\n return trv_helpers.prep(x)",
        "from trv_helpers import prep\n return prep(x)",
        "from trv_helpers import prep as p\n return p(x)",
        "import trv_helpers as h\n return h.prep(x)",
        "return g(x)\ndef g(y):\n import trv_helpers\n return trv_helpers.prep(y)",
    ],
    ids=["import", "from", "from as", "as", "in another function"],
)
def test_a_helper_module_that_is_imported_inside_a_function_comes_along(beside: NotebookFolder, body: str) -> None:
    beside.write(
        trv_helpers="import trv_more\nimport math\ndef prep(x): return trv_more.add(x) * math.floor(2.5)",
        trv_more="def add(x):\n    from trv_helpers import math\n    return x + 1",
    )
    assert beside.run_in_other_process(beside.serialise_cell(f"def f(x):\n {body}"), 3) == 8


@pytest.mark.parametrize(
    "body, result",
    [
        ("import trv_pkg\n return trv_pkg.side.side(x) + trv_pkg.SCALE", 7),
        ("import trv_pkg.deep.inner\n return trv_pkg.deep.inner.scaled(x)", 12),
        ("import trv_pkg.deep.inner as i\n return i.side(x)", 4),
        ("from trv_pkg.deep import inner\n return inner.scaled(x)", 12),
        ("from trv_pkg import side\n return side.side(x)", 4),
        ("from trv_pkg.deep.inner import scaled\n return scaled(x)", 12),
    ],
)
@pytest.mark.parametrize("imported", [False, True], ids=["not imported here", "imported here"])
def test_a_package_comes_along_with_what_its_modules_import_relatively(
    package: NotebookFolder, body: str, result: int, imported: bool
) -> None:
    source = f"def f(x):\n {body}"
    if imported:
        assert package.run_cell(source)(1) == result
    assert package.run_in_other_process(package.serialise_cell(source), 1) == result


def test_a_function_of_a_package_that_goes_by_value_imports_its_siblings(package: NotebookFolder) -> None:
    assert package.run_in_other_process(package.serialise_cell("from trv_pkg.deep.inner import scaled as f"), 1) == 12


def test_a_folder_without_an_init_is_a_package_too(beside: NotebookFolder) -> None:
    beside.write(trv_folder__part="def prep(x): return x + 1")
    assert (
        beside.run_in_other_process(
            beside.serialise_cell("def f(x):\n import trv_folder.part\n return trv_folder.part.prep(x)"), 1
        )
        == 2
    )


def test_a_dataclass_in_a_module_that_comes_along_finds_its_module(beside: NotebookFolder) -> None:
    beside.write(
        trv_data="from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "@dataclass\nclass Sample:\n    kind: ClassVar[str] = 'k'\n    x: int = 0\n"
    )
    assert (
        beside.run_in_other_process(
            beside.serialise_cell("def f(x):\n from trv_data import Sample\n return Sample(x).x"), 5
        )
        == 5
    )
    assert "trv_data" not in sys.modules


def test_two_versions_of_a_module_run_side_by_side(beside: NotebookFolder) -> None:
    source = "def f(x):\n import trv_helpers\n return trv_helpers.K"
    beside.write(trv_helpers="K = 1")
    old = beside.serialise_cell(source)
    beside.write(trv_helpers="K = 2")
    new = beside.serialise_cell(source)
    assert old.fingerprint.digest != new.fingerprint.digest
    with beside.as_other_process():
        restored: list[Any] = [restore(graph.definition, blob_loader(graph)) for graph in (old, new, old)]
        assert [each.function(0) for each in restored] == [1, 2, 1]


def test_a_module_runs_once_in_a_process_however_often_its_pipeline_comes(beside: NotebookFolder) -> None:
    beside.write(trv_helpers="import time\ntime.trv_runs = getattr(time, 'trv_runs', 0) + 1\nK = 1")
    graph = beside.serialise_cell("def f(x):\n import trv_helpers, time\n return time.trv_runs")
    results: list[int] = []
    with beside.as_other_process():
        restored: list[Any] = [restore(graph.definition, blob_loader(graph)) for _ in range(2)]
        threads = [threading.Thread(target=lambda r=r: results.append(r.function(0))) for r in restored * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [1] * 8


def test_where_the_pipeline_comes_from_the_module_itself_is_used(beside: NotebookFolder) -> None:
    """A thread worker in the kernel sees the module that the cell sees, with its state."""
    beside.write(trv_helpers="K = 1")
    graph = beside.serialise_cell("def f(x):\n import trv_helpers\n return trv_helpers")
    restored: Any = restore(graph.definition, blob_loader(graph))
    assert restored.function(0) is sys.modules["trv_helpers"]
    assert restored.function.__builtins__ is vars(__import__("builtins"))


def test_a_module_that_fails_fails_each_time_with_its_own_error(beside: NotebookFolder) -> None:
    beside.write(trv_helpers="import trv_more\n1 // 0", trv_more="")
    graph = beside.serialise_cell("def f(x):\n import trv_helpers")
    with beside.as_other_process():
        restored: Any = restore(graph.definition, blob_loader(graph))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                restored.function(0)
        assert "trv_helpers" not in sys.modules


def test_what_did_not_come_along_is_imported_as_ever(beside: NotebookFolder) -> None:
    beside.write(trv_helpers="")
    graph = beside.serialise_cell("def f(x):\n import trv_helpers, json.decoder, trv_nowhere")
    with beside.as_other_process():
        restored: Any = restore(graph.definition, blob_loader(graph))
        with pytest.raises(ModuleNotFoundError, match="trv_nowhere"):
            restored.function(0)


def test_nothing_is_put_in_the_way_of_a_pipeline_that_imports_only_libraries() -> None:
    def f(x: Any) -> Any:
        import json

        return json

    restored: Any = restore(serialise(pipeline_with(f)).definition, lambda _: b"")
    assert restored.function.__builtins__ is vars(__import__("builtins"))


def test_a_workers_process_keeps_the_newest_of_each_module_and_no_other_process_does(
    beside: NotebookFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_keeps_modules", threading.Event())
    graphs = []
    for version in (1, 2):
        beside.write(trv_helpers=f"K = {version}")
        graphs.append(beside.serialise_cell("def f(x):\n import trv_helpers\n return trv_helpers.K"))
    with beside.as_other_process():
        imports.keep_received_modules()
        for version, graph in enumerate(graphs, 1):
            restored: Any = restore(graph.definition, blob_loader(graph))
            assert restored.function(0) == version
            assert version == sys.modules["trv_helpers"].K


def test_a_library_is_not_taken_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "trv_library.py").write_text("K = 1")
    monkeypatch.syspath_prepend(str(library))

    def f(x: Any) -> Any:
        import trv_library  # type: ignore[import-not-found]

        return trv_library.K

    assert fingerprint(f).sources == ()


WORKER = """
import sys
from pathlib import Path
from dsnb.pipeline.graph import restore
before = list(sys.path)
operation = restore(Path(sys.argv[1]).read_bytes(), lambda _: Path(sys.argv[2]).read_bytes())
assert sys.path[: len(before)] == before
print(operation.function(3), len(sys.path) - len(before))
"""


def test_the_import_path_goes_along_and_is_added_behind_the_workers_own(beside: NotebookFolder, tmp_path: Path) -> None:
    """For what does not go by value: a compiled module, or one whose name is computed."""
    beside.write(trv_named="def prep(x): return x + 1")
    graph = beside.serialise_cell(
        "import importlib\ndef f(x): return importlib.import_module('trv_' + 'named').prep(x)"
    )
    (tmp_path / "graph").write_bytes(graph.definition)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path / "graph"), ""],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("4 "), done.stderr


def test_entries_that_are_there_are_not_added_again_nor_those_that_lead_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [""])
    imports.add_import_path([*imports.import_path(), "/usr", "/nowhere/at/all", "/usr"])
    assert sys.path == ["", "/usr"]


def test_a_big_array_of_a_module_goes_as_a_blob(beside: NotebookFolder) -> None:
    beside.write(trv_tables="import numpy as np\nTABLE = np.arange(200_000.0)\ndef look(x): return TABLE[x]")
    graph = beside.serialise_cell("import trv_tables\ndef f(x): return trv_tables.look(x)")
    assert [blob.nbytes for blob in graph.blobs] == [1_600_000]
    assert beside.run_in_other_process(graph, 7) == np.float64(7)


def test_a_module_that_comes_by_value_and_as_source_is_one_module(beside: NotebookFolder) -> None:
    """An instance that the cell makes is one for the module that its function imports."""
    beside.write(
        trv_models="class Sample: pass\nseen = []\ndef see(x):\n    global last\n    last = x\n    seen.append(x)\n",
        trv_helpers="import trv_models\nfrom trv_models import Sample, see\n"
        "def known(sample): return isinstance(sample, Sample), trv_models.last, trv_models.seen\n",
    )
    source = (
        "from trv_models import Sample, see\ndef f(x):\n    see(x)\n    from trv_helpers import known\n    see(x + 1)\n"
        "    return known(Sample())\n"
    )
    assert beside.run_in_other_process(beside.serialise_cell(source), 1) == (True, 2, [1, 2])


COMPILED = """
import sys
from pathlib import Path
from dsnb.code.imports import keep_received_modules
from dsnb.pipeline.graph import restore
keep_received_modules()
operation = restore(Path(sys.argv[1]).read_bytes(), None)
print(operation.function(3))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    ["from trv_pkg import fast\n return fast.K * trv", "import trv_pkg.fast\n return trv_pkg.fast.K * trv"],
    ids=["from", "import"],
)
def test_a_compiled_module_inside_a_package_that_comes_along_is_found_by_the_path(
    beside: NotebookFolder, tmp_path: Path, body: str
) -> None:
    import py_compile

    beside.make_package("trv_pkg")
    beside.write(trv_pkg="SCALE = 2", trv_pkg__fast="K = 5")
    source = beside.folder / "trv_pkg" / "fast.py"
    py_compile.compile(str(source), str(source.with_suffix(".pyc")))
    source.unlink()
    graph = beside.serialise_cell(f"def f(x):\n from trv_pkg import SCALE as trv\n {body}")
    assert b"SCALE = 2" in graph.definition
    (tmp_path / "graph").write_bytes(graph.definition)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path / "graph")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("10\n", "")


def test_a_module_may_hold_what_cannot_be_pickled_when_a_function_imports_it(beside: NotebookFolder) -> None:
    """The hint of the error says so: each worker has its own."""
    beside.write(trv_locked="import threading\nlock = threading.Lock()\ndef prep(x):\n    with lock: return x + 1")
    assert (
        beside.run_in_other_process(
            beside.serialise_cell("def f(x):\n from trv_locked import prep\n return prep(x)"), 1
        )
        == 2
    )

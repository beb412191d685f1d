"""What cells and modules beside the notebook define works on workers in processes of their own; with real kernels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsnb
from tests.support.kernel import Kernel

START = """
import dsnb, importlib, os, sys
%load_ext autoreload
%autoreload 2
svc = dsnb.start(workers=1, isolation="process", name="travel")
def read(dataset, **options):
    return list(dataset.apply(dsnb.distribute("parallel_epochs", svc, **options)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[Kernel]:
    """One kernel with one process worker for all of this module: what a worker had before is part of the matter."""
    with Kernel(folder) as kernel:
        kernel.run(START)
        yield kernel
        kernel.run("svc.stop()")


def write(path: Path, source: str) -> None:
    """Write a module as an editor does, so that its time tells of it."""
    before = path.stat().st_mtime if path.exists() else 0.0
    path.write_text(source)
    os.utime(path, (before + 10, before + 10))


READ = "print([int(x) for x in read(dsnb.Dataset.range(2).map(f))])"


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, cell",
    [
        ("trv_a", "import trv_a\ndef f(x): return trv_a.prep(x)"),
        ("trv_b", "from trv_b import prep\ndef f(x): return prep(x)"),
        ("trv_c", "from trv_c import prep as f"),
        ("trv_d", "def f(x):\n    import trv_d\n    return trv_d.prep(x)"),
        ("trv_e", "def f(x):\n    from trv_e import prep\n    return prep(x)"),
    ],
    ids=["module", "function", "the function itself", "module inside", "function inside"],
)
def test_an_edited_module_runs_as_it_is_now_on_a_worker_that_has_the_older_one(
    kernel: Kernel, folder: Path, module: str, cell: str
) -> None:
    """With `%autoreload 2`, and nothing run again but the cell that reads."""
    write(folder / f"{module}.py", "from trv_offset import OFFSET\ndef prep(x): return x + OFFSET\n")
    write(folder / "trv_offset.py", "OFFSET = 1\n")
    assert kernel.run(f"{cell}\n{READ}") == "[1, 2]\n"
    write(folder / f"{module}.py", "from trv_offset import OFFSET\ndef prep(x): return 10 * x + OFFSET\n")
    assert kernel.run(READ) == "[1, 11]\n"


@pytest.mark.slow
def test_a_module_that_was_reloaded_by_hand_runs_as_it_is_now(kernel: Kernel, folder: Path) -> None:
    write(folder / "trv_reloaded.py", "K = 1\n")
    assert kernel.run(f"%autoreload 0\nimport trv_reloaded\ndef f(x): return trv_reloaded.K\n{READ}") == "[1, 1]\n"
    write(folder / "trv_reloaded.py", "K = 2\n")
    assert kernel.run(READ) == "[1, 1]\n", "an edit alone changes nothing here either"
    assert kernel.run(f"importlib.reload(trv_reloaded)\n{READ}\n%autoreload 2") == "[2, 2]\n"


def test_a_module_that_only_the_kernels_path_leads_to_is_found(kernel: Kernel, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere / "trv_named.py", "def prep(x): return x + 5\n")
    cell = f"sys.path.append({str(elsewhere)!r})\ndef f(x): return importlib.import_module('trv_named').prep(x)\n{READ}"
    assert kernel.run(cell) == "[5, 6]\n"


ELEMENTS = """
from dataclasses import dataclass
from typing import NamedTuple
import numpy as np

@dataclass
class Sample:
    image: np.ndarray
    label: int
    extra: None = None
    def doubled(self): return 2 * int(self.label)

class Pair(NamedTuple):
    sample: Sample
    name: str

def make(x): return Pair(Sample(np.full(3, x), x), f"row {x}")
def check(pair):
    assert isinstance(pair, Pair) and isinstance(pair.sample, Sample)
    return pair
ds = dsnb.Dataset.range(4).map(make).batch(2).map(check)
"""


def test_dataclasses_and_named_tuples_of_a_cell_arrive_as_the_cells_own_classes(kernel: Kernel) -> None:
    kernel.run(ELEMENTS)
    told = "elements = read(ds)\nprint(all(isinstance(e, Pair) and type(e.sample) is Sample for e in elements))"
    assert kernel.run(told) == "True\n"
    assert kernel.run("print(elements[1].sample.image.tolist(), elements[1].sample.extra)") == (
        "[[2, 2, 2], [3, 3, 3]] None\n"
    )
    kernel.run(ELEMENTS)  # the cell is run again: there are new classes by the same names
    assert kernel.run(told) == "True\n"


@pytest.mark.parametrize("where", ["", "'recording'"], ids=["memory", "directory"])
def test_a_function_behind_a_recording_is_given_the_classes_of_its_own_pipeline(kernel: Kernel, where: str) -> None:
    kernel.run(ELEMENTS)
    kernel.run(f"cached = dsnb.Dataset.range(4).map(make).cache({where}).map(check)")
    for _ in range(2):
        told = "print(all(type(e) is Pair and type(e.sample) is Sample for e in read(cached)))"
        assert kernel.run(told) == "True\n"


def test_in_another_kernel_all_elements_are_of_one_class_with_the_fields_of_the_cells(kernel: Kernel) -> None:
    kernel.run(ELEMENTS)
    dataset_id = kernel.run("print(dsnb.register_dataset(svc, ds))").strip()
    with dsnb.connect("travel") as service:
        elements: list[Any] = [
            element for _ in range(2) for element in dsnb.from_dataset_id("parallel_epochs", service, dataset_id)
        ]
    assert len({type(element) for element in elements}) == len({type(element.sample) for element in elements}) == 1
    assert [element.sample.label.tolist() for element in elements] == [[0, 1], [2, 3]] * 2
    assert (type(elements[0]).__name__, type(elements[0].sample).__name__) == ("Pair", "Sample")


ERRORS = """class Odd(ValueError):
    def __init__(self, x):
        super().__init__(f"odd {x}")
        self.x = x

def inner(x):
    raise Odd(x)

def decode(x):
    if x == 2:
        inner(x)
    return x
elements = iter(dsnb.Dataset.range(4).map(decode).apply(dsnb.distribute("parallel_epochs", svc, job_name="train")))
next(elements), next(elements)
"""


def test_an_error_shows_cell_line_and_source_and_nothing_of_dsnbs_own(kernel: Kernel) -> None:
    kernel.run(ERRORS)
    cell = kernel.begin("next(elements)").wait()
    text = cell.traceback
    (number,) = re.findall(r"^in map\(decode\), cell (\d+) line 11$", text, re.MULTILINE)
    assert f"Cell In[{number}], line 11, in decode\n    inner(x)\n" in text
    assert f"Cell In[{number}], line 7, in inner\n    raise Odd(x)\n" in text
    assert "----> 1 next(elements)" in text
    assert text.endswith(f"Odd: odd 2\nin map(decode), cell {number} line 11\non worker w0, job 'train', element 2")
    assert "dsnb/" not in text
    assert "ipykernel_" not in text
    assert kernel.run("print(int(next(elements)))") == "3\n", "and reading goes on behind it"


@pytest.mark.slow
def test_an_error_of_a_cells_own_class_is_caught_by_its_name(kernel: Kernel) -> None:
    kernel.run(ERRORS.replace("train", "again"))
    assert kernel.run("try: next(elements)\nexcept Odd as error: print(error.x, type(error) is Odd)") == "2 True\n"


@pytest.mark.slow
def test_a_users_keyboard_interrupt_is_an_error_of_its_element(kernel: Kernel) -> None:
    kernel.run("def stop(x):\n    raise KeyboardInterrupt")
    cell = kernel.begin("read(dsnb.Dataset.range(4).map(stop))").wait()
    assert cell.error.startswith("UserCodeError: the function of map(stop) raised KeyboardInterrupt")
    assert "raise KeyboardInterrupt" in cell.traceback
    assert "dsnb/" not in cell.traceback

"""The notebooks are committed as they came out of a run from top to bottom; nbval compares what a new run gives.

nbval itself runs with every `pytest`: pyproject.toml asks for it. What it would pass over in silence is held here: a
cell without an execution count is run but never compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import require_module

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    require_module("nbformat")
    import nbformat

    return nbformat.read(request.param, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_it_is_valid(notebook: Any) -> None:
    import nbformat

    nbformat.validate(notebook)


def test_every_cell_was_run_once_from_top_to_bottom(notebook: Any) -> None:
    counts = [cell.execution_count for cell in code_cells(notebook)]

    assert counts == list(range(1, len(counts) + 1))


def test_no_cell_ended_in_an_error_or_a_warning(notebook: Any) -> None:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]

    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


def test_most_of_its_cells_are_compared(notebook: Any) -> None:
    ignored = [cell for cell in code_cells(notebook) if "nbval-ignore-output" in cell.metadata.get("tags", ())]

    assert len(ignored) < len(code_cells(notebook)) / 2


def test_it_names_no_place_of_the_machine_that_ran_it(notebook: Any) -> None:
    text = str(notebook)

    assert [place for place in (str(ROOT), str(Path.home()), "/tmp/") if place in text] == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("distributed") is not None, reason="Dask is installed")
@pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
def test_a_notebook_without_its_engine_is_skipped_with_a_reason_unless_engines_are_required(required: bool) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "DSNB_REQUIRE_PEERS"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-m", "slow", "-p", "no:cacheprovider", "notebooks/10_outgrown.ipynb"],
        cwd=ROOT,
        env={**variables, "DSNB_REQUIRE_PEERS": "1"} if required else variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    skipped = "distributed is not installed (the extra dsnb[peers] has it)" in ended.stdout
    assert (skipped, ended.returncode) == (not required, int(required)), ended.stdout
    assert ("No module named" in ended.stdout) == required, ended.stdout

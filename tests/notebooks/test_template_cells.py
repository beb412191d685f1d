"""The notebook to begin with, run in a real kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsnb.notebook.template import write_notebook
from tests.support.kernel import Kernel


@pytest.mark.slow
def test_its_cells_run_and_say_what_limited_the_training(kernel: Kernel, tmp_path: Path) -> None:
    notebook = json.loads(Path(write_notebook(tmp_path / "train")).read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells = [kernel.begin(source).wait() for source in sources]
    assert [cell.error for cell in cells] == [""] * len(cells)
    assert "50,000 samples" in cells[2].stdout
    assert "Job 'train'" in cells[3].stdout
    kernel.run("del images, labels, distributed")  # the last batch holds its memory

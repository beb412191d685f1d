"""The notebook to begin with, from the command line and as JupyterLab's templates have it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dsnb.cli import main
from dsnb.errors import AlreadyExistsError, FailedPreconditionError
from dsnb.notebook.template import write_notebook
from tests.support.processes import ROOT
from tests.support.requires import require_module


def cells_of(path: str | Path) -> list[Any]:
    return list(json.loads(Path(path).read_text(encoding="utf-8"))["cells"])


def test_it_is_a_valid_notebook_without_outputs(tmp_path: Path) -> None:
    require_module("nbformat")
    import nbformat

    written = write_notebook(tmp_path / "train")
    assert written == str(tmp_path / "train.ipynb")
    nbformat.validate(nbformat.read(written, as_version=4))
    code = [cell for cell in cells_of(written) if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


def test_the_command_writes_it_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["notebook"]) == 0
    assert capsys.readouterr().out == f"notebook written to {tmp_path / 'dsnb.ipynb'}\n"
    assert main(["notebook", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"notebook": str(tmp_path / "train.ipynb")}


def test_a_notebook_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine.ipynb"
    mine.write_text("mine")
    with pytest.raises(AlreadyExistsError, match="it was left as it is"):
        write_notebook(mine)
    assert mine.read_text() == "mine"


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="no notebook was written"):
        write_notebook(tmp_path / "missing" / "a.ipynb")


def test_the_wheel_puts_it_where_jupyterlab_looks_for_templates() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared == {"dsnb/notebook/templates/dsnb.ipynb": "share/jupyter/notebook_templates/dsnb/dsnb.ipynb"}
    assert (ROOT / next(iter(shared))).exists()

"""repo2docker, with which Binder builds images, finds binder/ by itself. Neither Docker nor the network is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import require_module

pytestmark = pytest.mark.filterwarnings("ignore:pythonjsonlogger:DeprecationWarning")  # an import of repo2docker

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def buildpack(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The first of repo2docker's kinds of images, in its own order, that recognises this repository."""
    require_module("repo2docker")
    from repo2docker.app import Repo2Docker

    monkeypatch.chdir(ROOT)  # it looks around in the current folder
    app = Repo2Docker()
    found = (kind(app.base_image) for kind in app.buildpacks)
    return next(kind for kind in found if kind.detect())


def test_binder_installs_what_is_written_in_its_folder_and_not_in_the_root(buildpack: Any) -> None:
    assert type(buildpack).__name__ == "PythonBuildPack"
    assert buildpack.binder_dir == "binder"
    installs = " ".join(command for _, command in buildpack.get_assemble_scripts())
    assert "-r " in installs
    assert "binder/requirements.txt" in installs


def test_binder_takes_a_python_that_dsnb_supports_and_runs_the_start_script(buildpack: Any) -> None:
    assert f'"Programming Language :: Python :: {buildpack.python_version}"' in (ROOT / "pyproject.toml").read_text()
    assert buildpack.get_start_script() == "${REPO_DIR}/binder/start"
    assert (ROOT / "binder" / "start").stat().st_mode & 0o111

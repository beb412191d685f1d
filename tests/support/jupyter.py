"""A real JupyterLab or Notebook 7 under a base URL, as behind a JupyterHub, with nobody's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.requires import require_module
from tests.support.waiting import answers, wait_for

BASE = "/user/me/"
Application = Literal["jupyterlab", "notebook"]


@contextmanager
def running_lab(
    folder: Path, env: Mapping[str, str] | None = None, application: Application = "jupyterlab"
) -> Iterator[str]:
    """Its address; it is ended at the end, and so are its kernels and what its proxy has started."""
    port = unused_port()
    with lab_process(folder, port, env, application):
        yield address_at(port)


def address_at(port: int) -> str:
    """Where a Lab on that port is."""
    return f"http://127.0.0.1:{port}{BASE}"


@contextmanager
def lab_process(
    folder: Path, port: int, env: Mapping[str, str] | None = None, application: Application = "jupyterlab"
) -> Iterator[PythonProcess]:
    """Its process, once it answers; ended at the end, if nobody has killed it."""
    for module in (application, "jupyter_server_proxy", "ipywidgets", "panel"):
        require_module(module)
    with PythonProcess(
        _arguments(folder, port, application), env={**_isolated_settings(folder), **(env or {})}
    ) as jupyter:
        wait_for(lambda: answers(f"{address_at(port)}api"), what=f"{application} to answer", timeout=60)
        yield jupyter
        if jupyter.popen.poll() is None:
            jupyter.terminate()
            jupyter.wait_for_exit()


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook of cells that were not run."""
    made = [
        {"cell_type": "code", "id": f"c{at}", "source": code, "metadata": {}, "outputs": [], "execution_count": None}
        for at, code in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.write_text(json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))


def _arguments(folder: Path, port: int, application: Application) -> list[str]:
    options = {"ip": "127.0.0.1", "port": port, "port_retries": 0, "root_dir": folder, "base_url": BASE}
    secrets = ["--IdentityProvider.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True"]
    given = [f"--ServerApp.{name}={value}" for name, value in options.items()]
    news = ["--LabApp.news_url="] if application == "jupyterlab" else []
    return ["-m", application, "--no-browser", "--allow-root", *news, *given, *secrets]


def _isolated_settings(folder: Path) -> dict[str, str]:
    """Settings of nobody's, and none that a person has."""
    jupyter = (f"JUPYTER_{kind}_DIR" for kind in ("CONFIG", "DATA", "RUNTIME"))
    names = (*jupyter, "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")
    return {"JUPYTERHUB_SERVICE_PREFIX": BASE} | {name: str(folder / ".jupyter" / name.lower()) for name in names}

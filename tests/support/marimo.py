"""A real marimo server with nobody's settings, in which a notebook's cells run as soon as it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import Literal

from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.requires import require_module
from tests.support.waiting import answers, wait_for

Theme = Literal["light", "dark"]


def write_marimo_notebook(path: Path, *cells: str) -> None:
    """A notebook of cells; marimo finds out itself which names each of them defines and uses."""
    bodies = [f"@app.cell\ndef _():\n{indent(dedent(cell).strip(), '    ')}\n    return\n" for cell in cells]
    path.write_text("\n\n".join(["import marimo\n\napp = marimo.App()", *bodies]) + "\n")


@contextmanager
def running_marimo(notebook: Path, theme: Theme = "light") -> Iterator[str]:
    """Its address; it is ended at the end, and its kernel with it."""
    require_module("marimo")
    port = unused_port()
    places = notebook.parent / ".marimo"
    (places / "marimo").mkdir(parents=True, exist_ok=True)
    settings = f'[runtime]\nauto_instantiate = true\n[display]\ntheme = "{theme}"\n[save]\nautosave = "off"\n'
    (places / "marimo" / "marimo.toml").write_text(settings)
    env = {f"XDG_{kind}_HOME": str(places) for kind in ("CONFIG", "CACHE", "STATE", "DATA")}
    options = ["--headless", "--no-token", "--skip-update-check", "--host", "127.0.0.1", "--port", str(port)]
    address = f"http://127.0.0.1:{port}/"
    with PythonProcess(["-m", "marimo", "edit", str(notebook), *options], env=env) as server:
        wait_for(lambda: answers(f"{address}health"), what="marimo to answer", timeout=60)
        yield address
        server.terminate()
        server.wait_for_exit()

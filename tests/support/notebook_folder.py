"""A user's modules beside the notebook, and a process that does not have them."""

from __future__ import annotations

import importlib
import linecache
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsnb.code import imports
from dsnb.pipeline.graph import Graph, restore, serialise
from tests.support.graphs import blob_loader, pipeline_with


class NotebookFolder:
    """The folder beside a notebook. Its modules are forgotten when the test ends."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        self._names: set[str] = set()

    def write(self, **modules: str) -> None:
        """Write modules, as in `write(helpers="K = 1", pkg__sub="from . import x")`."""
        for key, source in modules.items():
            path = self.folder.joinpath(*key.split("__")).with_suffix(".py")
            if path.with_suffix("").is_dir():
                path = path.with_suffix("") / "__init__.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
            self._names.add(key.partition("__")[0])
        # Written within the same second and of the same size, an edit would be taken for what was compiled before.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        linecache.clearcache()

    def make_package(self, name: str) -> None:
        """Make a folder that is to be a package."""
        (self.folder / name).mkdir()

    def run_cell(self, source: str, name: str = "f") -> Any:
        """What running a cell leaves under `name`."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, "<cell>", "exec"), namespace)
        return namespace[name]

    def serialise_cell(self, source: str) -> Graph:
        """A pipeline with the `f` that the cell leaves."""
        return serialise(pipeline_with(self.run_cell(source)))

    def unload_modules(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in self._names]:
            del sys.modules[name]

    @contextmanager
    def as_other_process(self) -> Iterator[None]:
        """Be another process for a while: one that has none of the modules, nor their files."""
        moved = self.folder.with_name(f"{self.folder.name}-away")
        with self._patch.context() as patch:
            mine = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self._names}
            self.unload_modules()
            self.folder.rename(moved)
            importlib.invalidate_caches()
            patch.setattr(imports, "_PROCESS", "another")
            try:
                yield
            finally:
                moved.rename(self.folder)
                self.unload_modules()
                sys.modules.update(mine)

    def run_in_other_process(self, graph: Graph, *arguments: Any) -> Any:
        """What the function of a pipeline gives in another process."""
        with self.as_other_process():
            restored: Any = restore(graph.definition, blob_loader(graph))
            return restored.function(*arguments)


@contextmanager
def notebook_folder(folder: Path) -> Iterator[NotebookFolder]:
    """A folder on the path, as a notebook's is."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        notebook = NotebookFolder(folder, patch)
        yield notebook
        notebook.unload_modules()

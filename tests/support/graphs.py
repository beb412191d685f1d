"""Small pipelines of the tests' own, and a worker's way to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.graph import Graph, restore, serialise
from dsnb.pipeline.operations.map import Map
from dsnb.pipeline.sources.range import Range


def numbers() -> Range:
    """A source."""
    return Range(start=0, stop=3, step=1)


def pipeline_with(function: Any) -> Map:
    """A pipeline with this function."""
    return Map(function=function, inputs=(numbers(),))


def blob_loader(graph: Graph) -> Callable[[str], bytes]:
    """Hands out a graph's blobs as copies."""
    return {blob.digest: bytes(blob.data) for blob in graph.blobs}.__getitem__


def no_blobs(digest: str) -> bytes:
    """For graphs that have none."""
    raise AssertionError(digest)


def round_trip(function: Any) -> Any:
    """The function as a worker has it."""
    graph = serialise(pipeline_with(function))
    restored: Any = restore(graph.definition, blob_loader(graph))
    return restored.function


def registration_error(function: Any) -> str:
    """What is said of a pipeline with this function."""
    with pytest.raises(InvalidArgumentError) as refused:
        serialise(pipeline_with(function))
    assert refused.value.did == "nothing was registered"
    return refused.value.what


@contextmanager
def local_package(folder: Path) -> Iterator[ModuleType]:
    """A package `graph_local` of the user's whose modules import each other and hold what cannot be pickled."""
    package = folder / "graph_local"
    package.mkdir()
    (package / "__init__.py").write_text("import threading\nfrom graph_local import inner\nlock = threading.Lock()\n")
    (package / "inner.py").write_text(
        "import threading\nimport graph_local\nlock = threading.Lock()\nSCALE = 3\n"
        "class Odd(ValueError):\n    def scaled(self): return SCALE\n"
        "def factor(): return graph_local.inner.SCALE\n"
        "def scale(x): return x * factor()\n"
        "def fail(x): raise Odd(x)\n"
        "def locked(x):\n    with lock: return x\n"
    )
    sys.path.insert(0, str(folder))
    try:
        yield __import__("graph_local")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith("graph_local")]:
            del sys.modules[name]

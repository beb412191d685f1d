"""Cells, the fingerprints of what they leave, and modules of a user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import dsnb.errors
from dsnb.code.fingerprint.fingerprint import Component, Fingerprint, fingerprint
from dsnb.pipeline.operation import Operation

ROOT = str(Path(dsnb.errors.__file__).parent.parent)
_FINGERPRINT_SCRIPT = """
import json, sys
source, name = sys.argv[1:]
exec(compile(source, name, "exec"))
from dsnb.code.fingerprint.fingerprint import fingerprint
found = fingerprint(f)
print(json.dumps([found.digest, [[c.path, c.kind, c.digest, c.detail] for c in found.components], found.unhashable]))
"""


def run_cell(source: str, name: str = "f", **given: Any) -> Any:
    """What running a cell leaves under `name`."""
    namespace: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace[name]


def digest(value: Any) -> str:
    """The digest of a value that has one."""
    found = fingerprint(value)
    assert not found.unhashable, found.unhashable
    return found.digest


def fingerprint_in_other_process(source: str, name: str, seed: str, folder: Path) -> Fingerprint:
    """What an interpreter with this hash seed finds for the `f` that the source leaves in its `__main__`."""
    done = subprocess.run(
        [sys.executable, "-c", _FINGERPRINT_SCRIPT, source, name],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": ROOT, "PYTHONHASHSEED": seed}, cwd=folder,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    found, parts, unhashable = json.loads(done.stdout)
    return Fingerprint(found, tuple(Component(*part) for part in parts), tuple(unhashable))


class Write(Protocol):
    """Writes a module into a folder on the path, and imports it unless told otherwise."""

    def __call__(self, name: str, source: str, *, imported: bool = True) -> Any: ...


@contextmanager
def local_modules(folder: Path) -> Iterator[Write]:
    """A folder on the path; modules in it whose names begin with `fingerprint_` are forgotten at the end."""

    def write(name: str, source: str, *, imported: bool = True) -> Any:
        (folder / f"{name}.py").write_text(source)
        return __import__(name) if imported else None

    sys.path.insert(0, str(folder))
    try:
        yield write
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith("fingerprint_")]:
            del sys.modules[name]


class Source(Operation, frozen=True, kw_only=True):
    """A source, with a field that only remembers."""

    size: int

    @property
    def name(self) -> str:
        return f"source({self.size})"


class Map(Operation, frozen=True, kw_only=True):
    """An operation with a function."""

    function: Any

    @property
    def name(self) -> str:
        return f"map({self.function.__name__})"

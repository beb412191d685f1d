"""Cells as a kernel runs them: compiled under a name of their own, with their source at hand."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

_numbers = itertools.count()


class Cells:
    """A kernel's `__main__`, as far as functions see it."""

    def __init__(self, **given: Any) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", **given}

    def run(self, source: str, *, hidden: bool = False) -> None:
        """Run a cell; `hidden` leaves its source not at hand."""
        name = f"<cell {next(_numbers)}>"
        if not hidden:
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), self.names)

    def __getattr__(self, name: str) -> Any:
        return self.names[name]

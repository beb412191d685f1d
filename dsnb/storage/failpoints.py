"""Failpoints: named points before and after each step that a promise depends on, where a test can stop a process.

A `Failpoint` is created at import, in the module with the step that it names. All are listed in `FAILPOINTS`, so that a
test can check that each was reached. A failpoint does nothing unless a hook is set; only tests set one, to kill,
suspend or fail the process there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

When = Literal["before", "after"]
Hook = Callable[[str, When], None]

FAILPOINTS: dict[str, Failpoint] = {}
"""All failpoints, by name."""

_hook: Hook | None = None


class Failpoint:
    """One step, as a context manager around it. The hook is called with "after" only if the step succeeded.

    Example:
        >>> rename = Failpoint("manifest rename")
        >>> with rename:
        ...     os.replace(temporary, path)
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        assert name not in FAILPOINTS, f"two steps are called {name!r}"
        self.name = name
        FAILPOINTS[name] = self

    def __enter__(self) -> None:
        if _hook is not None:
            _hook(self.name, "before")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if _hook is not None and kind is None:
            _hook(self.name, "after")


@contextmanager
def failpoint_hook(hook: Hook) -> Iterator[None]:
    """Call `hook` at each failpoint that any thread reaches, until the block ends."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before

"""Named points at which a test kills, stops or fails a process: before and after each step that a promise rests on.

A `Point` is made once, at import, beside the step that it names; all of them are in `FAILPOINTS`, so that a test can tell
whether each has been passed. Nothing happens at a point unless a hook is set, and only tests set one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

When = Literal["before", "after"]
Hook = Callable[[str, When], None]

FAILPOINTS: dict[str, Failpoint] = {}
"""All points by name."""

_hook: Hook | None = None


class Failpoint:
    """One step, as a context around it; "after" is told only where the step succeeded.

    Example:
        >>> rename = Point("manifest rename")
        >>> with rename:
        ...     os.replace(aside, path)
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
    """Call `hook` at each point that any thread passes, until the block ends."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before

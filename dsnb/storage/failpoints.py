"""Failpoints: named points before and after each step that a promise depends on, where a test can stop a process.

A `Failpoint` is created at import, in the module with the step that it names. All are listed in `FAILPOINTS`, so that a
test can check that each was reached. A failpoint does nothing unless a hook is set, or the environment variable
`DSNB_FAULT` names it. Both are for tests: they kill, suspend or fail the process there.

`DSNB_FAULT` has the form `NAME/WHEN:ACTION` or `NAME/WHEN:ACTION:COUNT`, as in `journal commit/after:kill:3`: the
process is killed after its third commit. WHEN is "before" or "after", and ACTION one of

* "kill": SIGKILL;
* "suspend": SIGSTOP;
* "fail": the error of a disk that is full, before the step. Only where `Failpoint.error` says which.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Final, Literal, get_args

When = Literal["before", "after"]
Action = Literal["kill", "suspend", "fail"]
Hook = Callable[[str, When], None]

FAULT_VARIABLE: Final = "DSNB_FAULT"
DISK_FULL: Final = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FAILPOINTS: dict[str, Failpoint] = {}
"""All failpoints, by name."""


class Failpoint:
    """One step, as a context manager around it. The hook is called with "after" only if the step succeeded.

    Args:
        name: The step.
        error: What it raises when the disk is full; None if it does not write, or if its room was reserved before.

    Example:
        >>> rename = Failpoint("manifest rename")
        >>> with rename:
        ...     os.replace(temporary, path)
    """

    __slots__ = ("error", "name")

    def __init__(self, name: str, *, error: Exception | None = DISK_FULL) -> None:
        assert name not in FAILPOINTS, f"two steps are called {name!r}"
        self.name, self.error = name, error
        FAILPOINTS[name] = self

    def __enter__(self) -> None:
        if _hook is not None:
            _hook(self.name, "before")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if _hook is not None and kind is None:
            _hook(self.name, "after")


class Fault:
    """A hook that does something to its process when a failpoint is reached for the n-th time.

    Args:
        text: What `DSNB_FAULT` says.

    Raises:
        ValueError: the text has another form.

    Example:
        >>> fault = Fault("journal commit/after:kill:3")
        >>> fault.name, fault.when, fault.action, fault.left
        ('journal commit', 'after', 'kill', 3)
    """

    def __init__(self, text: str) -> None:
        point, _, rest = text.partition(":")
        action, *count = rest.split(":")
        name, _, when = point.rpartition("/")
        known = name and when in get_args(When) and action in get_args(Action) and len(count) < 2
        if not known or (when, action) == ("after", "fail"):
            raise ValueError(f"{FAULT_VARIABLE} is {text!r}; it must be like 'journal commit/after:kill:3'")
        self.name, self.when, self.action = name, when, action
        self.left = int(count[0]) if count else 1
        """How many times the failpoint is still to be reached."""
        self._lock = threading.Lock()

    def __call__(self, name: str, when: When) -> None:
        if (name, when) != (self.name, self.when):
            return
        with self._lock:
            self.left -= 1
            due = not self.left
        if due:
            self.act()

    def act(self) -> None:
        """Kill or suspend this process, or raise the error of a full disk."""
        if self.action == "fail":
            error = FAILPOINTS[self.name].error
            assert error is not None, f"{self.name!r} meets no error of a disk"
            raise copy(error)
        os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


_hook: Hook | None = Fault(os.environ[FAULT_VARIABLE]) if os.environ.get(FAULT_VARIABLE) else None


@contextmanager
def failpoint_hook(hook: Hook) -> Iterator[None]:
    """Call `hook` at each failpoint that any thread reaches, until the block ends."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before

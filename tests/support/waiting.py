"""Wait for a condition with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar
from urllib.request import urlopen

T = TypeVar("T")


def wait_for(condition: Callable[[], T], *, what: str, timeout: float = 30.0, every: float = 0.01) -> T:
    """Call `condition` until what it gives is true, and return that.

    Args:
        condition: Something cheap that tells how things are now. What it raises is not caught.
        what: What is waited for, as in "both workers to register"; the failure is told with it.
        timeout: Seconds until the wait fails. Generous: a passing test never waits for it.
        every: Seconds between two looks.

    Raises:
        AssertionError: the deadline came first; the text has the last value seen.
    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() - began > timeout:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}; the last look gave {value!r}")
        time.sleep(every)


def standing_still(look: Callable[[], object], seconds: float) -> Callable[[], bool]:
    """A condition for `wait_for`: what `look` gives has not changed for so long."""
    last, changed_at = look(), time.monotonic()

    def stands() -> bool:
        nonlocal last, changed_at
        now = look()
        if now != last:
            last, changed_at = now, time.monotonic()
        return time.monotonic() - changed_at > seconds

    return stands


def answers(url: str) -> bool:
    """Whether an HTTP server answers at an address, for `wait_for`."""
    try:
        with urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False

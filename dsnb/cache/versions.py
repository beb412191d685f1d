"""Which versions of dsnb wrote results that this one can read."""

from __future__ import annotations

import re
import sys
from typing import Final

MINIMUM_COMPATIBLE_VERSION: Final = "0.1.0"
"""Entries of older versions are dropped when a cache is opened."""


def this_version() -> str:
    """The version of dsnb; asked of the package itself, which this room may not import."""
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def is_compatible(version: str, minimum: str = MINIMUM_COMPATIBLE_VERSION) -> bool:
    """Whether entries of a version can be used; what is no version cannot.

    Example:
        >>> is_compatible("0.1.0"), is_compatible("0.1.0.dev3")
        (True, False)
    """
    found = _sort_key(version)
    return found is not None and found >= (_sort_key(minimum) or ())


def _sort_key(version: str) -> tuple[object, ...] | None:
    """A version as a value that compares: releases by their numbers, what comes before a release below it."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)*)(.*)", version)
    if parts is None:
        return None
    numbers = [int(number) for number in parts[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    early = re.match(r"[.\-_]?(dev|a|b|c|rc|alpha|beta|pre)", parts[2])
    return tuple(numbers), early is None, parts[2]

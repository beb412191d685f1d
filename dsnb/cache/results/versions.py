"""Compatibility of stored results: which versions of dsnb wrote results that this version can read."""

from __future__ import annotations

import re
import sys
from typing import Final

MINIMUM_COMPATIBLE_VERSION: Final = "0.1.0"
"""Entries of older versions are dropped when a cache is opened."""


def this_version() -> str:
    """The version of dsnb, read from the imported package: this module may not import it."""
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def is_compatible(version: str, minimum: str = MINIMUM_COMPATIBLE_VERSION) -> bool:
    """Whether entries that a version wrote can be used; False if the text is not a version.

    Example:
        >>> is_compatible("0.1.0"), is_compatible("0.1.0.dev3")
        (True, False)
    """
    found = _sort_key(version)
    return found is not None and found >= (_sort_key(minimum) or ())


def _sort_key(version: str) -> tuple[object, ...] | None:
    """A version as a sortable value: releases by their numbers, pre-releases before their release."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)*)(.*)", version)
    if parts is None:
        return None
    numbers = [int(number) for number in parts[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    early = re.match(r"[.\-_]?(dev|a|b|c|rc|alpha|beta|pre)", parts[2])
    return tuple(numbers), early is None, parts[2]

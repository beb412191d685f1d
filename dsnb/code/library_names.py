"""Importable names and versions of library objects: all that a fingerprint includes of library code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from dsnb.code.usercode import is_user_module, namespace

_OURS = __name__.partition(".")[0]


def importable_name(value: Any) -> str:
    """The dotted name under which any process can import `value`; empty if that name is not the value's own here."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    name = getattr(value, "__qualname__", None)
    # `functools.wraps` gives a wrapper made by a library the module and name of the user's function inside it.
    if module is None or not isinstance(name, str) or is_user_module(module):
        return ""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module.__name__}.{name}" if found is value else ""


@lru_cache(maxsize=4096)
def package_of(name: str) -> tuple[str, str]:
    """The package that a dotted name belongs to, with its version; two empty strings for the standard library.

    The version is the package's `__version__`, else that of its distribution; "?" if neither is known.
    """
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names:
        return "", ""
    # A namespace package of several distributions (google of google.protobuf) has no version of its own.
    for length in range(1, len(parts) + 1):
        package = ".".join(parts[:length])
        version = installed_version(package)
        if version:
            return package, version
    return parts[0], _version_by_files(parts[0])


def installed_version(package: str) -> str:
    """The version of a package: its `__version__`, else that of its distribution; empty if it has none here."""
    module = sys.modules.get(package)
    version = namespace(module).get("__version__") if isinstance(module, ModuleType) else None
    if isinstance(version, str):
        return str(version)  # that of torch is an instance of a subclass
    from importlib import metadata  # deferred: importing it takes as long as much of dsnb

    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _version_by_files(package: str) -> str:
    if package == _OURS:
        return "?"  # runs from a checkout that was never installed
    names = _distributions().get(package, [])
    return ", ".join(sorted(f"{name} {installed_version(name)}" for name in set(names))) or "?"


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    from importlib import metadata

    # Only for packages without a version: it reads the file lists of all installed distributions, which takes 0.25 s.
    return metadata.packages_distributions()

"""Launchers: where the workers of `dsnb.start` run.

Example:
    >>> import dsnb, sys
    >>> command = dsnb.launchers.Command([sys.executable, "-m", "dsnb.worker", "{arguments}"])
    >>> with dsnb.start(workers=1, on=command) as svc:
    ...     sorted(int(x) for x in dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", svc)))
    [0, 1, 2]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsnb.launchers.command import Command as Command
    from dsnb.launchers.dask import Dask as Dask
    from dsnb.launchers.ray import Ray as Ray

# The module of each public name. tests/launchers/test_package.py checks that this agrees with the imports above.
_HOMES = {
    "Command": "dsnb.launchers.command",
    "Dask": "dsnb.launchers.dask",
    "Ray": "dsnb.launchers.ray",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

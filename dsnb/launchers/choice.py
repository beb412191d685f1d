"""`launcher_for`: the launcher for the arguments `isolation` and `on` of `dsnb.start`."""

from __future__ import annotations

from typing import Any, Final

from dsnb.arguments import short_repr
from dsnb.errors import InvalidArgumentError, did_you_mean
from dsnb.launchers.dask import Dask, is_dask
from dsnb.launchers.launcher import Launcher
from dsnb.launchers.local import Processes, Threads, ThreadsFirst
from dsnb.launchers.ray import Ray

_HINT = 'pass "ray", a Dask client or cluster, or a launcher such as dsnb.launchers.Command([...])'

_OF_THIS_HOST: Final[dict[str, type[Threads | Processes]]] = {
    "thread": Threads,
    "process": Processes,
    "auto": ThreadsFirst,
}


def launcher_for(on: Any, isolation: str) -> Launcher:
    """The launcher that `dsnb.start(on=on, isolation=isolation)` uses."""
    if isinstance(on, Launcher):
        return on
    return _OF_THIS_HOST.get(isolation, Threads)()


def launcher_or_none(name: str, value: Any) -> Any:
    """Check the argument `on`; returns None or a launcher."""
    if value is None or isinstance(value, Launcher):
        return value
    if isinstance(value, str) and value == "ray":
        return Ray()
    if is_dask(value):
        return Dask(value)
    likely = did_you_mean(value, ["ray"]) if isinstance(value, str) else ""
    raise InvalidArgumentError(f"`{name}` is {short_repr(value)}", did="nothing was started", hint=likely + _HINT)

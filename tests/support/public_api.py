"""Everything that users call: the functions, classes and methods of the public modules, by their names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import dsnb
from dsnb.errors import DsnbError
from dsnb.monitor.run_file import RunWriter
from dsnb.monitor.snapshot import Snapshot
from dsnb.pipeline.engine.iterator import ElementIterator

NOT_CALLED_BY_USERS = {
    "DispatchServer.reported_status", "DispatchServer.worker_died",  # by what started it
    "DispatchServer.announce", "DispatchServer.set_worker_pool", "DispatchServer.end_autoscaling",
    "DispatchServer.hold_new_workers", "DispatchServer.replace_workers", "DispatchServer.has_tasks",
    "WorkerServer.open",  # by its endpoints
    "LocalTrainingCache.keep", "Resource.to_cache", "Resource.from_cache",  # by the training cache
    "ElementIterator.reports",  # by workers
}  # fmt: skip
_PROTOCOLS = {"Cacheable", "TrainingCache"}
"""What users write the methods of."""
_NOT_MADE_BY_USERS = {"Explanation", "Remembered", "ShardingPolicy", "ElementIterator", "RunWriter", "Snapshot"}
"""Classes that users do not construct, or that Python's own machinery constructs."""
_PUBLIC_MODULES = (dsnb, dsnb.cache, dsnb.testing)


def public_callables() -> dict[str, Any]:
    """By names as in "start", "Dataset.map" and "Options.__init__"."""
    values = [getattr(room, name) for room in _PUBLIC_MODULES for name in dir(room)]
    found = {value.__name__: value for value in values if isinstance(value, FunctionType)}
    for cls in (*filter(inspect.isclass, values), ElementIterator, RunWriter, Snapshot):
        if not issubclass(cls, Warning | DsnbError) and cls.__name__ not in _PROTOCOLS:
            found |= {f"{cls.__name__}.{name}": getattr(cls, name) for name in _methods(cls)}
    # What a class inherits is there by the name of the class that has it.
    found = {name: value for name, value in found.items() if "." not in name or _is_defining_name(name, value, found)}
    return {name: value for name, value in found.items() if name not in NOT_CALLED_BY_USERS}


def _is_defining_name(name: str, value: Any, found: Mapping[str, Any]) -> bool:
    return min((other for other in found if found[other] is value), key=len) == name


def _methods(cls: type) -> Iterator[str]:
    if cls.__name__ not in _NOT_MADE_BY_USERS:
        yield "__init__"
    for name in dir(cls):
        member = getattr(cls, name)
        ours = str(getattr(member, "__module__", "")).startswith("dsnb")
        if not name.startswith("_") and callable(member) and ours and not inspect.isclass(member):
            yield name


def rules_of(function: Any) -> Mapping[str, Any] | None:
    """The rules of a checked function by its parameters; None where it is not checked."""
    found = inspect.unwrap(function, stop=lambda f: "bound" in getattr(f, "__code__", type(f)).co_freevars)
    code = getattr(found, "__code__", None)
    if code is None or "bound" not in code.co_freevars:
        return None
    rules: Mapping[str, Any] = inspect.getclosurevars(found).nonlocals["bound"].__self__.rules()
    return rules

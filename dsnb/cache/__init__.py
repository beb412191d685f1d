"""What outlives a run: recordings of datasets, and results of functions.

Example:
    >>> cache = dsnb.cache.LocalTrainingCache("/data/cache", max_size=500)
    >>> cache.get_cached_output_fingerprint("the key of a step") is None
    True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsnb.cache.storage import ModelStorage as ModelStorage
    from dsnb.cache.storage import Resource as Resource
    from dsnb.cache.training import Cacheable as Cacheable
    from dsnb.cache.training import LocalTrainingCache as LocalTrainingCache
    from dsnb.cache.training import TrainingCache as TrainingCache

# Where each public name lives. tests/cache/test_room.py holds this and the imports above together.
_HOMES = {
    "Cacheable": "dsnb.cache.training",
    "LocalTrainingCache": "dsnb.cache.training",
    "ModelStorage": "dsnb.cache.storage",
    "Resource": "dsnb.cache.storage",
    "TrainingCache": "dsnb.cache.training",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

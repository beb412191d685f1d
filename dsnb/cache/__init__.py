"""Caches that outlive a run: recordings of datasets, and results of functions.

Example:
    >>> @dsnb.cache.remembered
    ... def train(lr, epochs=3):
    ...     return lr / epochs
    >>> train(0.3)  # in the next kernel, from the cache
    0.09999999999999999
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsnb.cache.explain import Explanation as Explanation
    from dsnb.cache.key import fingerprint as fingerprint
    from dsnb.cache.model_storage import ModelStorage as ModelStorage
    from dsnb.cache.model_storage import Resource as Resource
    from dsnb.cache.remembered_function import Remembered as Remembered
    from dsnb.cache.remembered_function import remembered as remembered
    from dsnb.cache.training import Cacheable as Cacheable
    from dsnb.cache.training import LocalTrainingCache as LocalTrainingCache
    from dsnb.cache.training import TrainingCache as TrainingCache

# The module of each public name. tests/cache/test_room.py checks that this agrees with the imports above.
_HOMES = {
    "Cacheable": "dsnb.cache.training",
    "Explanation": "dsnb.cache.explain",
    "LocalTrainingCache": "dsnb.cache.training",
    "ModelStorage": "dsnb.cache.model_storage",
    "Remembered": "dsnb.cache.remembered_function",
    "Resource": "dsnb.cache.model_storage",
    "TrainingCache": "dsnb.cache.training",
    "fingerprint": "dsnb.cache.key",
    "remembered": "dsnb.cache.remembered_function",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

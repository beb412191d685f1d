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
    from dsnb.cache.results.explain import Explanation as Explanation
    from dsnb.cache.results.key import fingerprint as fingerprint
    from dsnb.cache.results.model_storage import ModelStorage as ModelStorage
    from dsnb.cache.results.model_storage import Resource as Resource
    from dsnb.cache.results.remembered_function import Remembered as Remembered
    from dsnb.cache.results.remembered_function import remembered as remembered
    from dsnb.cache.results.training import Cacheable as Cacheable
    from dsnb.cache.results.training import LocalTrainingCache as LocalTrainingCache
    from dsnb.cache.results.training import TrainingCache as TrainingCache

# The module of each public name. tests/cache/test_room.py checks that this agrees with the imports above.
_HOMES = {
    "Cacheable": "dsnb.cache.results.training",
    "Explanation": "dsnb.cache.results.explain",
    "LocalTrainingCache": "dsnb.cache.results.training",
    "ModelStorage": "dsnb.cache.results.model_storage",
    "Remembered": "dsnb.cache.results.remembered_function",
    "Resource": "dsnb.cache.results.model_storage",
    "TrainingCache": "dsnb.cache.results.training",
    "fingerprint": "dsnb.cache.results.key",
    "remembered": "dsnb.cache.results.remembered_function",
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

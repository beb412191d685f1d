from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dsnb.cache.results.training import LocalTrainingCache


@pytest.fixture
def open_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalTrainingCache]]:
    """Opens a cache, by default in the test's folder; all are closed at the end."""
    for name in ("DSNB_CACHE_DIRECTORY", "DSNB_CACHE_NAME", "DSNB_MAX_CACHE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as opened:

        def make(directory: Path | None = None, **settings: Any) -> LocalTrainingCache:
            return opened.enter_context(LocalTrainingCache(directory or tmp_path / "cache", **settings))

        yield make

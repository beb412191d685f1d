"""Marks the notebooks that take long: their kernels start services, train and kill processes."""

from __future__ import annotations

from pathlib import Path

import pytest

QUICK = {"01_first_service.ipynb"}
"""The notebooks that `pytest` runs as it is; the others are run by CI."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cells of the other notebooks as slow. Called with the items of all folders."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in QUICK:
            item.add_marker(pytest.mark.slow)

"""Marks for single cases of a parametrised test."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case for the slow tests of CI, because other cases of the same test, which always run, show nearly as much."""
    return pytest.param(*values, marks=pytest.mark.slow)


def soak(*values: Any) -> Any:
    """A case for `pytest -m soak`, because other cases of the same test, which CI runs, show nearly as much."""
    return pytest.param(*values, marks=pytest.mark.soak)

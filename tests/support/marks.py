"""Marks for single cases of a parametrised test."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case that CI runs and `pytest` as it is does not, because others of the same test show nearly as much."""
    return pytest.param(*values, marks=pytest.mark.slow)

"""Being written (cores and roles)."""

from __future__ import annotations


def test_taken() -> None:
    """Replaced within minutes."""

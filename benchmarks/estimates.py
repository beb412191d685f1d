"""An estimate with its interval: the median of a few measurements, and how far another few might have put it.

The interval is a bootstrap: measurements are drawn again and again from those that there are, with repetition, and it
holds 95 % of the medians of these draws. Up to five measurements it is simply the range from the least to the greatest.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_DRAWS = 2_000
_SHARE = 0.95


class Estimate(NamedTuple):
    """A median, and the ends of its interval.

    Example:
        >>> estimate([1.0, 2.0, 4.0])
        Estimate(value=2.0, low=1.0, high=4.0)
    """

    value: float
    low: float
    high: float


def estimate(measured: Sequence[float]) -> Estimate:
    """The median of some measurements, at least one; the same measurements always give the same interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(measured, k=len(measured))) for _ in range(_DRAWS))
    outside = round(_DRAWS * (1 - _SHARE) / 2)
    return Estimate(statistics.median(measured), medians[outside], medians[-1 - outside])

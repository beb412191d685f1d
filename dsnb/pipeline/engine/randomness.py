"""Random generators for shuffles and other operations that draw."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsnb.pipeline.operation import BuildContext

FIXED_SEED: Final = 0x6473_6E62
"""The seed where an order must be the same for every task or iteration and the user gave none."""
_SEED_RANGE: Final = 2**64


def generator(context: BuildContext, seed: int | None, *node_index: int) -> np.random.Generator:
    """Return a generator for one operation in one iteration.

    Args:
        context: Gives the run's entropy and the iteration.
        seed: The user's seed: the same seed gives the same draws in the same iteration of any run.
        node_index: Where in the tree the operation stands; without a seed, two operations must not draw alike.
    """
    if seed is None:
        return np.random.default_rng([*context.seed(None), context.provider, *node_index])
    return np.random.default_rng(context.seed(seed % _SEED_RANGE))


def fixed_generator(seed: int | None) -> np.random.Generator:
    """Return a generator that draws the same in every iteration of every run."""
    return np.random.default_rng([FIXED_SEED if seed is None else seed % _SEED_RANGE])

"""Random generators for shuffles and other operations that draw."""

from __future__ import annotations

from typing import Final

# NumPy imports its `random` when it is first named. That would be at the first draw, and a process that another thread
# forks meanwhile could never import it: it would wait for the lock of a thread that it does not have.
from numpy.random import Generator, default_rng

from dsnb.pipeline.operation import BuildContext

FIXED_SEED: Final = 0x6473_6E62
"""The seed where an order must be the same for every task or iteration and the user gave none."""
_SEED_RANGE: Final = 2**64


def generator(context: BuildContext, seed: int | None, *node_index: int) -> Generator:
    """Return a generator for one operation in one iteration.

    Args:
        context: Gives the run's entropy and the iteration.
        seed: The user's seed: the same seed gives the same draws in the same iteration of any run.
        node_index: Where in the tree the operation stands; without a seed, two operations must not draw alike.
    """
    if seed is None:
        return default_rng([*context.seed(None), context.provider, *node_index])
    return default_rng(context.seed(seed % _SEED_RANGE))


def fixed_generator(seed: int | None) -> Generator:
    """Return a generator that draws the same in every iteration of every run."""
    return default_rng([FIXED_SEED if seed is None else seed % _SEED_RANGE])


def iteration_key(context: BuildContext, seed: int | None) -> list[int]:
    """Return the key of what all tasks of one iteration must draw alike, although they share its splits.

    Such tasks have roots of their own. Without a seed they use a fixed one, so that no row is read twice; iterations
    differ all the same.
    """
    if seed is None:
        return context.seed(FIXED_SEED if context.splits is not None else None)
    return context.seed(seed % _SEED_RANGE)


def fixed_key(seed: int | None) -> list[int]:
    """Return a key that is the same in every iteration of every run."""
    return [FIXED_SEED if seed is None else seed % _SEED_RANGE]

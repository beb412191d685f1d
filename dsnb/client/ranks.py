"""The rank of this process among those that train together: `rank="auto"`."""

from __future__ import annotations

import os
import sys
from typing import Final

from dsnb.errors import FailedPreconditionError, InvalidArgumentError

AUTO_RANK: Final = "auto"

_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),  # torchrun, Accelerate, Lightning
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpirun of Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # mpirun of MPICH
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; without it, there is no step
)
"""Environment variables with rank and number of ranks, as launchers set them. The first pair that is set holds."""


def this_rank(world_size: int | None = None) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks.

    A framework that was set up in this process knows best: torch.distributed, then JAX; then come the environment
    variables of torchrun, MPI and SLURM.

    Args:
        world_size: The number that the user gave; None for none.

    Raises:
        FailedPreconditionError: nothing tells the rank.
        InvalidArgumentError: the number of ranks is another one than the user gave.
    """
    found = _of_torch() or _of_jax() or _of_environment()
    if found is None:
        names = ", ".join(f"{rank} and {size}" for rank, size in _VARIABLES)
        raise FailedPreconditionError(
            '`rank` is "auto", but nothing in this process tells its rank',
            hint="start the script with torchrun, mpirun or srun, call torch.distributed.init_process_group() first, "
            f"or give rank= and world_size= as numbers. The environment variables are {names}",
        )
    if world_size not in (None, found[1]):
        raise InvalidArgumentError(
            f"`world_size` is {world_size}, but this process is rank {found[0]} of {found[1]}",
            hint='leave world_size out with rank="auto"',
        )
    return found


def _of_torch() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_jax() -> tuple[int, int] | None:
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    # Otherwise the question alone would start JAX, which then takes the memory of the GPU.
    if jax is None or is_initialized is None or not is_initialized():
        return None
    return jax.process_index(), jax.process_count()


def _of_environment() -> tuple[int, int] | None:
    for rank, size in _VARIABLES:
        if os.environ.get(rank, "").isdecimal() and os.environ.get(size, "").isdecimal():
            return int(os.environ[rank]), int(os.environ[size])
    return None

"""How readers are called in texts and tables: trainers by their names, other clients by where they run.

Pure: no clock, no service.
"""

from __future__ import annotations

from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.wire.messages import ClientOrigin


def has_name(job: JobStatus) -> bool:
    """Whether the readers of a job have names: those given in `CrossTrainerCache`, or "consumer 0" and so on."""
    return job.cached or bool(job.num_consumers)


def reader_label(job: JobStatus, trainer: TrainerStatus) -> str:
    """A reader as part of a sentence.

    Args:
        job: Its job.
        trainer: The reader.

    Example:
        >>> client = TrainerStatus(trainer_id="7", clients=1, elements=0, origin=ClientOrigin(cell=3, pid=4711))
        >>> job = JobStatus(
        ...     **{"name": "a", "anonymous": True, "dataset_id": "d", "pipeline": "", "iteration": 0},
        ...     **{"state": "running", "clients": 1, "produced": 0, "consumed": 0, "trainers": (client,)},
        ... )
        >>> reader_label(job, client)
        'the client in cell 3 of process 4711'
    """
    if has_name(job):
        return trainer.trainer_id if job.num_consumers else f"trainer {trainer.trainer_id!r}"
    if trainer.origin is None:
        return f"the client with the id {trainer.trainer_id}"
    ordinal = f"{_ordinal(trainer.origin)} " if _has_neighbours(job, trainer.origin) else ""
    return f"the {ordinal}client in {origin_text(trainer.origin)}"


def reader_name(job: JobStatus, trainer: TrainerStatus) -> str:
    """A reader in a table, in one line: as in `cell 3 (2nd), process 4711`."""
    return ", ".join(filter(None, reader_name_parts(job, trainer)))


def reader_name_parts(job: JobStatus, trainer: TrainerStatus) -> tuple[str, str]:
    """A reader in a table: the shortest name, and what tells it from readers of other processes, or nothing."""
    origin = trainer.origin
    if has_name(job) or origin is None:
        return trainer.trainer_id, ""
    count = f" ({_ordinal(origin)})" if _has_neighbours(job, origin) else ""
    on_host = origin.host and f"on {origin.host}"
    if not origin.cell:
        return f"process {origin.pid}{count}", on_host
    processes = {(one.origin.host, one.origin.pid) for one in job.trainers if one.origin is not None}
    process = f"process {origin.pid} {on_host}".strip() if len(processes) > 1 else ""
    return f"cell {origin.cell}{count}", process


def origin_text(origin: ClientOrigin) -> str:
    """The place as text, as in `cell 3 of process 4711 on laptop`, without what is not known."""
    cell = f"cell {origin.cell} of " if origin.cell else ""
    return f"{cell}process {origin.pid}{origin.host and f' on {origin.host}'}"


def _has_neighbours(job: JobStatus, origin: ClientOrigin) -> bool:
    """Whether several clients of a job run in one place."""
    return sum(one.origin is not None and _place(one.origin) == _place(origin) for one in job.trainers) > 1


def _place(origin: ClientOrigin) -> tuple[str, int, int]:
    return origin.host, origin.pid, origin.cell


def _ordinal(origin: ClientOrigin) -> str:
    number = origin.ordinal
    ending = "th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

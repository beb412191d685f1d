"""What to change where the workers have too much to do, with how many of them would do and what there is room for."""

from __future__ import annotations

from math import ceil

from dsnb.monitor.case import Case
from dsnb.monitor.snapshot import StageStatus

_IN_PARALLEL = ("map(", "interleave(")
"""Operations that take num_parallel_calls, by the beginning of their names."""


def relief(case: Case, stage: StageStatus) -> str:
    """What helps an operation where there are processors left."""
    parallel = not stage.threads and stage.name.startswith(_IN_PARALLEL)
    besides = ", let it run in parallel (num_parallel_calls=dsnb.AUTOTUNE)," if parallel else ""
    return f"Make it cheaper{besides} or have more workers: {enough(case)}"


def taken(case: Case) -> str:
    """That the processors are taken, as a sentence with the space before it; empty where they are not."""
    there = case.processors
    return f" {_all(there.there)} taken ({there.free:.1f} free)." if there.taken else ""


def _all(number: int) -> str:
    return "The one processor is" if number == 1 else f"All {number} processors are"


def instead(case: Case, stage: StageStatus | None = None) -> str:
    """What helps where more workers would only take turns."""
    keep = "keep what comes out of it (cache)" if stage is not None else "keep elements for the next epoch (cache)"
    shared = "" if case.job.cached else ", let trainers share one pass (CrossTrainerCache)"
    return (
        f"More workers here would only take turns. Make {'it' if stage is not None else 'the pipeline'} cheaper, {keep}"
        f"{shared}, or add workers on other machines (`dsnb worker --help`)."
    )


def enough(case: Case) -> str:
    """How to have as many workers as would do at the present pace of each, or as many as there is room for."""
    here = max(1, len(case.workers))
    made = max(case.rates.produced, case.rates.consumed)
    wanted = max(here + 1, ceil(here * case.demand / made)) if made else here + 1
    room = case.processors.room
    if room is None or wanted <= here + room:
        return more_workers(case, wanted, "would do")
    return more_workers(case, here + max(1, room), f"is what the {case.processors.there} processors have room for")


def more_workers(case: Case, number: int, does: str) -> str:
    """How to have so many workers."""
    if case.now.scalable:
        return f"svc.scale({number}) {does}."
    return f"{number} {does} (`dsnb worker --dispatcher {case.now.target.removeprefix('grpc://')}` adds one)."

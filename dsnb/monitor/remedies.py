"""Remedies for saturated workers: how many workers are needed, and how many the CPUs can run."""

from __future__ import annotations

from math import ceil

from dsnb.monitor.evidence import Evidence
from dsnb.wire.messages import StageReport

_PARALLEL_OPERATIONS = ("map(", "interleave(")
"""How the names of operations that accept `num_parallel_calls` begin."""


def speed_up_remedy(evidence: Evidence, stage: StageReport) -> str:
    """The remedy for a slow operation if the CPUs are not exhausted."""
    parallel = not stage.threads and stage.name.startswith(_PARALLEL_OPERATIONS)
    parallel_hint = ", run it in parallel (num_parallel_calls=dsnb.AUTOTUNE)," if parallel else ""
    return f"Make it cheaper{parallel_hint} or add workers: {scale_remedy(evidence)}"


def busy_cpus_text(evidence: Evidence) -> str:
    """A sentence, with a leading space, that the CPUs are exhausted; empty if they are not."""
    capacity = evidence.cpu_capacity
    return f" {_all_cpus_text(capacity.total)} busy ({capacity.free:.1f} idle)." if capacity.exhausted else ""


def _all_cpus_text(number: int) -> str:
    return "The only CPU is" if number == 1 else f"All {number} CPUs are"


def cpu_bound_remedy(evidence: Evidence, stage: StageReport | None = None) -> str:
    """The remedy if more workers would only compete for the CPUs."""
    keep = "cache its results" if stage is not None else "cache the elements for the next epoch"
    shared = "" if evidence.job.cached else ", share one pass between trainers (CrossTrainerCache)"
    return (
        "More workers here would only compete for the CPUs. "
        f"Make {'it' if stage is not None else 'the pipeline'} cheaper, {keep}{shared}, "
        "or add workers on other machines (`dsnb worker --help`)."
    )


def shared_workers_remedy(evidence: Evidence) -> str:
    """The remedy if other jobs use a part of the workers that this one needs."""
    weight = f"Give it a larger share: distribute(..., weight={2 * evidence.job.weight:g})"
    if evidence.cpu_capacity.exhausted:
        return f"{weight}. Or add workers on other machines (`dsnb worker --help`)."
    return f"{weight}. Or add workers: {scale_remedy(evidence)}"


def scale_remedy(evidence: Evidence) -> str:
    """How to get as many workers as the demand needs at the present rate of each, or as many as the CPUs can run."""
    current_workers = max(1, len(evidence.workers))
    rate = max(evidence.job_rates.produced, evidence.job_rates.consumed)
    wanted = max(current_workers + 1, ceil(current_workers * evidence.demand / rate)) if rate else current_workers + 1
    max_new_workers = evidence.cpu_capacity.max_new_workers
    if max_new_workers is None or wanted <= current_workers + max_new_workers:
        return workers_remedy(evidence, wanted, "is enough")
    return workers_remedy(
        evidence,
        current_workers + max(1, max_new_workers),
        f"is as many as the {evidence.cpu_capacity.total} CPUs can run",
    )


def workers_remedy(evidence: Evidence, number: int, outcome: str) -> str:
    """How to get `number` workers: by `svc.scale` if the service starts its workers, else by a command."""
    if evidence.snapshot.scalable:
        return f"svc.scale({number}) {outcome}."
    return (
        f"{number} {outcome} (`dsnb worker --dispatcher {evidence.snapshot.target.removeprefix('grpc://')}` adds one)."
    )

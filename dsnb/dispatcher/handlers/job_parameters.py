"""Compares the parameters of a job with those of a client that joins it by name, and describes the differences."""

from __future__ import annotations

import math
from itertools import zip_longest

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.state import Job
from dsnb.errors import InvalidArgumentError
from dsnb.wire.messages import DatasetInfo, JoinRequest

_ENABLED_TEXT = {True: "<enabled>", False: "<disabled>"}


def check(core: Context, job: Job, request: JoinRequest) -> str:
    """Compare a job's parameters with those of a client that wants to join it.

    Returns:
        Empty if the client may join. If the job is to be replaced, how the pipelines differ: only the pipeline differs,
        and the job has no clients.

    Raises:
        InvalidArgumentError: parameters differ; the error names all of them.
    """
    differ = _parameter_differences(job, request)
    pipeline = _pipeline_difference(core, job, request)
    if pipeline and not differ and not job.clients:
        return pipeline
    if differ or pipeline:
        all_that_differ = [*differ, f"Existing dataset: <{job.dataset_id}>; got <{request.dataset_id}>: {pipeline}"]
        raise InvalidArgumentError(
            f"Tried to create job with name {job.name}, but found an existing job with different parameters: "
            + ". ".join(all_that_differ if pipeline else differ),
            did=f"the existing job continues unchanged; {len(job.clients)} client(s) read it",
            hint="use the same parameters, another job_name, or drop the old job once it has no readers: "
            f"svc.forget({job.name!r})",
        )
    return ""


def requested_weight(request: JoinRequest) -> float:
    """The weight of a job as a request has it; a request without one asks for 1.

    Raises:
        InvalidArgumentError: it is no positive number. `distribute` refuses that too; other programs may not.
    """
    weight = request.weight or 1.0
    if not 0.0 < weight < math.inf:
        raise InvalidArgumentError(
            f"`weight` is {weight:g}", did="the job was not joined", hint="pass a positive number, as in weight=2"
        )
    return weight


def _parameter_differences(job: Job, request: JoinRequest) -> list[str]:
    differ = []
    if job.mode != request.mode:
        differ.append(f"Existing processing mode: <{job.mode}>; got <{request.mode}>")
    if job.num_consumers != request.num_consumers:
        differ.append(f"Existing num_consumers: <{job.num_consumers or None}>; got <{request.num_consumers or None}>")
    if job.ranks != request.ranks:
        differ.append(f"Existing world_size: <{job.ranks or None}>; got <{request.ranks or None}>")
    if job.at_end != request.at_end:
        differ.append(f"Existing at_end: <{job.at_end or None}>; got <{request.at_end or None}>")
    if job.on_worker_loss != request.on_worker_loss:
        existing, given = job.on_worker_loss or None, request.on_worker_loss or None
        differ.append(f"Existing on_worker_loss: <{existing}>; got <{given}>")
    if job.weight != (weight := requested_weight(request)):
        differ.append(f"Existing weight: <{job.weight:g}>; got <{weight:g}>")
    if job.cached != request.cached:
        differ.append(f"Existing cross-trainer cache: {_ENABLED_TEXT[job.cached]}; got {_ENABLED_TEXT[request.cached]}")
    if job.target_workers != request.target_workers:
        differ.append(f"Existing target workers: <{job.target_workers}>; got <{request.target_workers}>")
    if job.cached and request.cached and job.compression != request.compression:
        differ.append(f"Data type mismatch: existing compression <{job.compression}>; got <{request.compression}>")
    return differ


def _pipeline_difference(core: Context, job: Job, request: JoinRequest) -> str:
    if job.dataset_id == request.dataset_id:
        return ""
    datasets = core.state.datasets
    before, after = datasets[job.dataset_id].info, datasets[request.dataset_id].info
    return difference(before, after) or "the same pipeline, registered under two ids"


def difference(before: DatasetInfo, after: DatasetInfo) -> str:
    """How two pipelines differ, as text; empty if they are the same, compression included."""
    if not before.fingerprint or not after.fingerprint:
        return first_difference(before.pipeline, after.pipeline, "cannot be compared")
    if before.fingerprint != after.fingerprint:
        return first_difference(before.pipeline, after.pipeline)
    if before.compression != after.compression:
        return f"the same pipeline with compression {after.compression}, before it was {before.compression}"
    return ""


def first_difference(before: str, after: str, otherwise: str = "differs") -> str:
    """The first difference between two pipeline descriptions, as text; if they are equal, some value inside differs."""
    for old, new in zip_longest(before.split(" | "), after.split(" | ")):
        if old != new:
            return f"the first operation that differs is {new or 'the end'}, before it was {old or 'the end'}"
    return f"a function or value inside {after} {otherwise}"

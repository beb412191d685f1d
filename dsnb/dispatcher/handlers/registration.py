"""Registration of pipelines: the same pipeline has one id, and an id keeps the pipeline that it was first given.

Clients may read an id from anywhere and at any time. So a pipeline with the id of a different one is not registered:
its caller gets the id, and the first operation that differs.
"""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers import jobs
from dsnb.dispatcher.handlers.job_parameters import difference
from dsnb.dispatcher.records import DatasetDropped, DatasetRegistered
from dsnb.elements.spec import compatible, spec_from_json
from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, did_you_mean
from dsnb.wire.messages import DatasetInfo, ForgetRequest, RegisterReply


def register(core: Context, event: e.RegisterDataset) -> RegisterReply:
    """Register a pipeline and return its id. Without a requested id, the same pipeline is found by its fingerprint.

    Raises:
        InvalidArgumentError: the requested id has a pipeline with a different element spec.
    """
    info, known = event.info, core.state.datasets.get(event.dataset_id)
    if known is not None:
        _check_same_structure(known, info)
        return RegisterReply(dataset_id=_refresh(core, known.dataset_id), difference=difference(known.info, info))
    if not event.dataset_id and info.fingerprint:
        for dataset in core.state.datasets.values():
            if not difference(dataset.info, info):
                return RegisterReply(dataset_id=_refresh(core, dataset.dataset_id))
    dataset_id, chosen = event.dataset_id or _new_id(core), bool(event.dataset_id)
    core.record(DatasetRegistered(dataset_id=dataset_id, chosen=chosen, definition=event.definition, info=info))
    return RegisterReply(dataset_id=dataset_id)


def forget(core: Context, request: ForgetRequest) -> None:
    """Drop a job without clients; or a dataset without clients, and its jobs, so that its id can have another pipeline.

    Raises:
        NotFoundError: there is no such job or dataset.
        FailedPreconditionError: the job, or a job of the dataset, has clients.
    """
    dataset_id = request.dataset_id
    if not dataset_id:
        jobs.forget(core, request.job_name)
        return
    if dataset_id not in core.state.datasets:
        known = ", ".join(sorted(core.state.datasets)) or "none"
        raise NotFoundError(
            f"Dataset id {dataset_id} not found",
            did="nothing was changed",
            hint=f"{did_you_mean(dataset_id, core.state.datasets)}datasets of this service: {known}",
        )
    readers = [job for job in core.state.jobs.values() if job.dataset_id == dataset_id]
    read = [job for job in readers if job.clients]
    if read:
        raise FailedPreconditionError(
            f"the dataset {dataset_id!r} is read: the job {read[0].name!r} has {len(read[0].clients)} client(s)",
            did="it was kept",
            hint="close their iterators first",
        )
    for job in readers:
        jobs.drop_job(core, job)
    core.record(DatasetDropped(dataset_id=dataset_id))
    core.transient.datasets_unused_since.pop(dataset_id, None)
    core.instruct(e.Announce(level="info", text=f"the dataset {dataset_id!r} was forgotten"))


def _refresh(core: Context, dataset_id: str) -> str:
    if dataset_id in core.transient.datasets_unused_since:
        core.transient.datasets_unused_since[dataset_id] = core.now
    return dataset_id


def _new_id(core: Context) -> str:
    number = core.next_number("dataset")
    while str(number) in core.state.datasets:
        number += 1
    return str(number)


def _check_same_structure(known: DatasetRegistered, info: DatasetInfo) -> None:
    before, after = spec_from_json(known.info.element_spec), spec_from_json(info.element_spec)
    if before is not None and after is not None and not compatible(before, after):
        raise InvalidArgumentError(
            f"Datasets with the same ID should have the same structure: {known.dataset_id!r} has {before}, got {after}",
            did="nothing was registered",
            hint=f"use another dataset_id, or leave it out and let the service find the pipeline by its fingerprint; "
            f"svc.forget(dataset_id={known.dataset_id!r}) makes the id free",
        )

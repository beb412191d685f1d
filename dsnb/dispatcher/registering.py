"""Registering pipelines: the same pipeline has one id, one id has one structure.

A pipeline that is registered under the id of another one of the same structure takes its place when nobody reads it: a
cell that was changed and run again means what it says now.
"""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher import jobs
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.parameters import first_difference
from dsnb.dispatcher.records import DatasetDropped, DatasetRegistered
from dsnb.elements.spec import compatible, spec_from_json
from dsnb.errors import InvalidArgumentError


def register(core: Context, event: e.RegisterDataset) -> str:
    """The id under which a pipeline can be read; found by its fingerprint where it is registered already.

    Raises:
        InvalidArgumentError: the id that was asked for has a pipeline of another structure, or another pipeline that
            somebody reads.
    """
    known = core.state.datasets.get(event.dataset_id)
    if known is not None:
        _check_same_structure(known, event)
        if _same_pipeline(known, event):
            return _wanted_again(core, known.dataset_id)
        _make_room(core, known, event)
    if not event.dataset_id and event.fingerprint:
        for dataset in core.state.datasets.values():
            if dataset.fingerprint == event.fingerprint and dataset.compression == event.compression:
                return _wanted_again(core, dataset.dataset_id)
    dataset_id = event.dataset_id or _new_id(core)
    core.record(
        DatasetRegistered(
            dataset_id=dataset_id,
            chosen=bool(event.dataset_id),
            fingerprint=event.fingerprint,
            definition=event.definition,
            blobs=event.blobs,
            element_spec=event.element_spec,
            cardinality=event.cardinality,
            compression=event.compression,
            pipeline=event.pipeline,
            providers=event.providers,
            unsplittable=event.unsplittable,
            files=event.files,
            no_files=event.no_files,
            hinted=event.hinted,
            inexact=event.inexact,
        )
    )
    return dataset_id


def _wanted_again(core: Context, dataset_id: str) -> str:
    if dataset_id in core.live.unread_datasets:
        core.live.unread_datasets[dataset_id] = core.now
    return dataset_id


def _new_id(core: Context) -> str:
    number = core.number("dataset")
    while str(number) in core.state.datasets:
        number += 1
    return str(number)


def _check_same_structure(known: DatasetRegistered, event: e.RegisterDataset) -> None:
    before, after = spec_from_json(known.element_spec), spec_from_json(event.element_spec)
    if before is not None and after is not None and not compatible(before, after):
        raise InvalidArgumentError(
            f"Datasets with the same ID should have the same structure: {event.dataset_id!r} has {before}, got {after}",
            did="nothing was registered",
            hint="use another dataset_id, or leave it out and let the service find the pipeline by its fingerprint",
        )


def _same_pipeline(known: DatasetRegistered, event: e.RegisterDataset) -> bool:
    same = known.fingerprint == event.fingerprint != ""
    return same and known.compression == event.compression


def _make_room(core: Context, known: DatasetRegistered, event: e.RegisterDataset) -> None:
    """Drop a dataset whose id another pipeline is to have, and the jobs that nobody reads any more."""
    difference = first_difference(known.pipeline, event.pipeline)
    readers = [job for job in core.state.jobs.values() if job.dataset_id == known.dataset_id]
    read = [job.name for job in readers if job.clients]
    if read:
        raise InvalidArgumentError(
            f"the dataset id {known.dataset_id!r} has another pipeline; {difference}",
            did=f"nothing was registered: the job {read[0]!r} reads it",
            hint="close its iterators first, or use another dataset_id",
        )
    for job in readers:
        jobs.drop_job(core, job)
    core.record(DatasetDropped(dataset_id=known.dataset_id))
    core.live.unread_datasets.pop(known.dataset_id, None)
    core.instruct(e.Announce(level="info", text=f"dataset {known.dataset_id!r} was replaced: {difference}"))

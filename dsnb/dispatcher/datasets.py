"""Registering pipelines: the same pipeline has one id, one id has one structure."""

from __future__ import annotations

from dsnb.dispatcher import events as e
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.records import DatasetDropped, DatasetRegistered
from dsnb.elements.spec import compatible, spec_from_json
from dsnb.errors import InvalidArgumentError, NotFoundError


def register(core: Context, event: e.RegisterDataset) -> str:
    """The id under which a pipeline can be read; found by its fingerprint where it is registered already.

    Raises:
        InvalidArgumentError: the id that was asked for has a pipeline of another structure.
    """
    known = core.state.datasets.get(event.dataset_id)
    if known is not None:
        _check_same_structure(known, event)
        return _wanted_again(core, known.dataset_id)
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
        )
    )
    return dataset_id


def known_dataset(core: Context, dataset_id: str) -> DatasetRegistered:
    """The dataset of that id.

    Raises:
        NotFoundError: there is none.
    """
    dataset = core.state.datasets.get(dataset_id)
    if dataset is None:
        raise NotFoundError(
            f"Dataset id {dataset_id} not found",
            hint="register it with dsnb.register_dataset(service, dataset); ids belong to one service",
        )
    return dataset


def drop_unused(core: Context) -> None:
    """Let datasets go that were read once, got their id from us, and have had no job for `job_gc_timeout_ms`."""
    if core.config.job_gc_timeout_ms == -1:
        return
    used = {job.dataset_id for job in core.state.jobs.values()}
    for dataset_id, since in list(core.live.unread_datasets.items()):
        if dataset_id in used or dataset_id not in core.state.datasets:
            del core.live.unread_datasets[dataset_id]
        elif 1000 * (core.now - since) >= core.config.job_gc_timeout_ms:
            del core.live.unread_datasets[dataset_id]
            core.record(DatasetDropped(dataset_id=dataset_id))


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

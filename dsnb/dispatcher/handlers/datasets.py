"""Datasets: look one up by its id, and drop those that are no longer used."""

from __future__ import annotations

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.records import DatasetDropped, DatasetRegistered
from dsnb.errors import NotFoundError


def known_dataset(core: Context, dataset_id: str) -> DatasetRegistered:
    """The dataset with that id.

    Raises:
        NotFoundError: there is no such dataset.
    """
    dataset = core.state.datasets.get(dataset_id)
    if dataset is None:
        raise NotFoundError(
            f"Dataset id {dataset_id} not found",
            hint="register it with dsnb.register_dataset(service, dataset); ids belong to one service",
        )
    return dataset


def drop_unused(core: Context) -> None:
    """Drop datasets that were read, whose id the service chose, and that had no job for `job_gc_timeout_ms`."""
    if core.config.job_gc_timeout_ms == -1:
        return
    used = {job.dataset_id for job in core.state.jobs.values()}
    for dataset_id, since in list(core.transient.datasets_unused_since.items()):
        if dataset_id in used or dataset_id not in core.state.datasets:
            del core.transient.datasets_unused_since[dataset_id]
        elif 1000 * (core.now - since) >= core.config.job_gc_timeout_ms:
            del core.transient.datasets_unused_since[dataset_id]
            core.record(DatasetDropped(dataset_id=dataset_id))

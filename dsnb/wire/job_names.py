"""Names of jobs that are read by their dataset's id."""

from __future__ import annotations


def qualified_job_name(dataset_id: str, job_name: str) -> str:
    """The full name of a job that is read by its dataset's id. Its name is unique within that dataset only.

    Example:
        >>> qualified_job_name("images", "train")
        'images/train'
    """
    return f"{dataset_id}/{job_name}"

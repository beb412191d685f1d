"""What jobs are called."""

from __future__ import annotations


def qualified_job_name(dataset_id: str, job_name: str) -> str:
    """The name of a job that is read by its dataset's id: such a job is one of that dataset's, and of no other.

    Example:
        >>> name_within("images", "train")
        'images/train'
    """
    return f"{dataset_id}/{job_name}"

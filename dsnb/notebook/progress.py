"""`progress`: a progress bar for a loop over a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dsnb.arguments import anything, checked, short_repr
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.pipeline.dataset import Dataset


def _iterable(name: str, value: Any) -> Any:
    if not isinstance(value, Iterable):
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(value)} ({type(value).__name__}), which cannot be iterated",
            hint="pass a dataset, or an iterator over one",
        )
    return value


@checked(elements=_iterable, options=anything)
def progress(elements: Iterable[Any], **options: Any) -> Any:
    """Wrap elements in a progress bar that shows count and rate: a widget in a notebook, text elsewhere.

    Args:
        elements: A dataset, an iterator over one, or any other iterable. For a dataset of known length, the bar also
            shows the fraction done.
        **options: Passed to `tqdm.auto.tqdm`, as in `desc="epoch 3"`, `unit="batch"` or `leave=False`.

    Returns:
        A `tqdm` to iterate once; it has `set_postfix` and its other methods.

    Raises:
        FailedPreconditionError: tqdm is not installed.
        InvalidArgumentError: `elements` is not iterable, or tqdm rejects the options.

    Example:
        >>> import dsnb
        >>> [int(x) for x in dsnb.progress(dsnb.Dataset.range(3), disable=True)]
        [0, 1, 2]
    """
    if find_spec("tqdm") is None:
        raise FailedPreconditionError(
            "a progress bar needs tqdm, which this Python does not have",
            did="nothing was read",
            hint="pip install 'dsnb[notebook]', or read without dsnb.progress",
        )
    length = elements.cardinality() if isinstance(elements, Dataset) else -1
    known = {"total": length} if length >= 0 else {}
    bar = import_module("tqdm.auto").tqdm  # imported late: on import it detects whether a notebook runs
    try:
        return bar(elements, **{"unit": " elements", **known, **options})
    except Exception as error:
        raise InvalidArgumentError(
            f"`options`: tqdm does not take {short_repr(options)}: {error}", hint="see the arguments of tqdm.auto.tqdm"
        ) from error

"""A progress bar for a loop that reads, where somebody asks for one."""

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
            f"`{name}` is {short_repr(value)} ({type(value).__name__}), which no loop can read",
            hint="pass a dataset, or an iterator over one",
        )
    return value


@checked(elements=_iterable, options=anything)
def progress(elements: Iterable[Any], **options: Any) -> Any:
    """The same elements with a bar that tells how many came and how fast: in a cell a widget, elsewhere text.

    Args:
        elements: A dataset, an iterator over one, or whatever else a loop reads. Of a dataset that knows its length,
            the bar tells how far it is.
        **options: For `tqdm.auto.tqdm`, as `desc="epoch 3"`, `unit="batch"` or `leave=False`.

    Returns:
        A `tqdm`, to be looped over once; it has `set_postfix` and the like.

    Raises:
        FailedPreconditionError: tqdm is not installed.

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
    bar = import_module("tqdm.auto").tqdm  # it looks for the notebook when it is imported
    try:
        return bar(elements, **{"unit": "element", **known, **options})
    except Exception as error:
        raise InvalidArgumentError(
            f"`options`: tqdm does not take {short_repr(options)}: {error}", hint="see the arguments of tqdm.auto.tqdm"
        ) from error

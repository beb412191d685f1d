"""Element specs learned by reading, for operations whose output cannot be inferred, such as `map`."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from dsnb.elements.spec import spec_of
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.operation import Operation

_seen: WeakKeyDictionary[Operation, Any] = WeakKeyDictionary()


def note_element(operation: Operation, element: Any) -> None:
    """Remember the spec of an element that a pipeline delivered, unless the pipeline has a spec."""
    if operation in _seen or operation.element_spec is not None:
        return
    try:
        _seen[operation] = spec_of(element)
    except InvalidArgumentError:
        return  # a window is a dataset, which has no spec


def seen_spec(operation: Operation) -> Any:
    """Return the spec of the first element that was seen; None if there was none."""
    return _seen.get(operation)

"""How elements reach a framework: which leaves become what, and whether they are copied to a device ahead of the loop.

Theory of operation. An iterator yields NumPy elements whose memory belongs to its reader alone (`elements/copying`).
A placement converts their leaves. Where the framework works in the processor's own memory, that happens in `next`, and
the new object uses the same memory. Where it works on a device, a thread does it some elements ahead: it begins the
copy of an element (`begin_copy`) and passes on what the loop needs to wait for its end (`finish_copy`).

The time that `next` spends on this is measured, since a loop that copies each batch by itself looks as if it computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dsnb.stopwatch import Stopwatch


class Placement:
    """Converts the leaves of one iterator's elements, in the processor's memory; subclasses copy to a device.

    Args:
        convert_leaf: Makes the framework's object of a NumPy leaf.
        copies: Whether `convert_leaf` copies, so that a source need not.
    """

    on_device = False
    """Whether elements are copied to a device, on a thread if `ahead` is not 0."""
    ahead = 0
    """How many elements are copied ahead of the loop."""

    def __init__(self, convert_leaf: Callable[[Any], Any], *, copies: bool = False) -> None:
        self.convert_leaf = convert_leaf
        self.copies = copies
        self.clock = Stopwatch()
        """Measures the time spent on conversion, in whichever thread does it."""

    def copying(self) -> AbstractContextManager[Any]:
        """Return the context in which leaves of one element are converted."""
        return nullcontext()

    def begin_copy(self, element: Any) -> Any:
        """Return what `finish_copy` needs to wait for the copy of a converted element."""
        return element

    def finish_copy(self, begun: Any) -> Any:
        """Return the element, for use in the thread that calls this."""
        return begun


class DevicePlacement(Placement):
    """Copies elements to a device, for frameworks in which nothing has to be waited for afterwards.

    Args:
        convert_leaf: Copies a NumPy leaf to the device.
        ahead: How many elements are copied ahead of the loop.
        copies: Whether the copy is complete when `convert_leaf` returns, or reads from memory of its own.
    """

    on_device = True

    def __init__(self, convert_leaf: Callable[[Any], Any], ahead: int, *, copies: bool = False) -> None:
        super().__init__(convert_leaf, copies=copies)
        self.ahead = ahead

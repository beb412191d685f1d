"""Pauses the garbage collector while a process of dsnb's own imports many modules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, for imports: the objects they create stay alive, so a search finds no garbage.

    Only for workers and commands: the collector of a user's kernel is the user's. While the modules of a role are
    imported it would run some hundred times, once over all objects. Afterwards all objects are moved to the oldest
    generation; otherwise the next collection would search everything that is new. A collector that is disabled stays
    disabled.

    Example:
        >>> with gc_paused():
        ...     import dsnb.worker.server
        >>> gc.isenabled()
        True
    """
    if not gc.isenabled():
        yield
        return
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # Only if modules were imported, for this moves garbage to the oldest generation too. Not if the user has frozen
        # objects (as before a fork): `unfreeze` would undo that.
        if len(sys.modules) > known and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()

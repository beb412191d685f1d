"""How dsnb imports much at once: with the garbage collector at rest."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the garbage collector from running, as around imports: what they make stays, so it would search in vain.

    It does so 130 times while the modules of a service are imported, once through all that there is, which takes an
    eighth of the time from `import dsnb` to the first element. Behind, all objects count as old ones, or the next
    collection would go through all that is new. A collector that somebody has switched off stays off.

    Example:
        >>> with uncollected():
        ...     import dsnb.pipeline.dataset
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
        # Not without need, for garbage grows old too; nor where somebody keeps objects from the collector, for a fork.
        if len(sys.modules) > known and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()

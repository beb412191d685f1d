"""A trainer's options in the cross-trainer cache, as a message."""

from __future__ import annotations

import msgspec


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one trainer in the cross-trainer cache; see `client.trainer_cache`.

    Attributes:
        on_lag: What happens when the trainer falls behind the window: "wait", "spill"; for any other value it skips the
            evicted elements.
        start: The trainer's first element: "newest" is the next one to be produced; any other value is the oldest one
            that is available.
        timeout_s: Seconds without reading after which other trainers no longer wait for this one; 0 for no limit.
        start_together: How many trainers must have joined before any of them gets an element.
    """

    on_lag: str = ""
    start: str = ""
    timeout_s: float = 0.0
    start_together: int = 0

"""How a trainer wants to be treated, as it travels."""

from __future__ import annotations

from dsnb.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How a trainer of the cross-trainer cache wants to be treated; see `client.trainer_cache`.

    Attributes:
        on_lag: What happens when it falls behind: "wait", "spill", or else it is moved on.
        start: Where it begins: with the "newest" element, the next to be produced, or else with the oldest there is.
        timeout_s: Seconds without a sign of life after which it no longer holds others up; 0 for none.
        start_together: Nobody is given anything before so many trainers are there.
    """

    on_lag: str = ""
    start: str = ""
    timeout_s: float = 0.0
    start_together: int = 0

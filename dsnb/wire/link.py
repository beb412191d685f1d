"""A worker's report of how one reader gets a task's elements; `monitor.snapshot.LinkStatus` describes the fields."""

from __future__ import annotations

import msgspec


class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str = ""
    trainer_id: str = ""
    transfer: str = ""
    reason: str = ""
    frame_slices: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    fallback_reason: str = ""
    sent: int = 0

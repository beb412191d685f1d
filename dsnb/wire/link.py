"""How one reader gets a task's elements, as its worker reports it; what the fields mean stands at `LinkStatus`."""

from __future__ import annotations

from dsnb.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    client: str = ""
    trainer_id: str = ""
    transfer: str = ""
    why: str = ""
    pieces: int = 0
    fallbacks: int = 0
    held_bytes: int = 0
    note: str = ""
    sent: int = 0

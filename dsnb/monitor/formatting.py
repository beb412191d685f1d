"""Numbers as a person reads them: `12,480`, `4 %`, `3.2 MB`, `2 min`; signs, levels and tables that go with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

LEVEL_SIGNS = {"good": "✓", "warn": "!", "bad": "✕"}
"""What stands before a verdict of each level: not by colour alone."""
WARN_WAIT_SHARE, BAD_WAIT_SHARE = 0.05, 0.10
"""Below the first nobody need look; above the second training is held up by its input."""
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_count(number: int) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,}"


def format_rate(per_second: float) -> str:
    """Elements per second; one decimal where it still says something."""
    return f"{per_second:,.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def format_share(part: float | None) -> str:
    """A part of one in percent; a dash where it is not known."""
    if part is None:
        return "–"
    return "<1 %" if 0 < part < 0.005 else f"{part * 100:.0f} %"


def wait_level(wait: float) -> str:
    """What it means to wait such a part of one's time: "good", "warn" or "bad"."""
    return "good" if wait < WARN_WAIT_SHARE else "warn" if wait <= BAD_WAIT_SHARE else "bad"


def format_bytes(number: float) -> str:
    """Bytes with the unit that leaves one to three digits before the point."""
    for unit in _BYTE_UNITS[:-1]:
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} {_BYTE_UNITS[-1]}"


def format_duration(seconds: float) -> str:
    """A length of time in its one fitting unit."""
    if 0 < seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def format_time(epoch: float) -> str:
    """The time of day, by the clock of the machine that serves the page."""
    return time.strftime("%H:%M:%S", time.localtime(epoch))


def natural_sort_key(name: str) -> tuple[str, int]:
    """The sort key that puts `w10` after `w9`."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def as_sentence(text: str) -> str:
    """The text with a capital at its beginning and a stop at its end; code and addresses stay as they are."""
    words = text.split()
    prose = bool(words) and words[0].isalpha() and words[1:2] != ["="]
    stripped = text.strip()
    capitalised = stripped[:1].upper() + stripped[1:] if prose else stripped
    return capitalised if capitalised.endswith((".", "?", "!", ")")) else f"{capitalised}."


def plural(number: int, word: str) -> str:
    """`1 element`, `2 elements`; irregular plurals are none of ours."""
    return f"{format_count(number)} {word}" if number == 1 else f"{format_count(number)} {word}s"


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that reads well without style or script."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"

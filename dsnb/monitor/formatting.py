"""Formats numbers for people: `12,480`, `4 %`, `3.2 MB`, `2 min`; with the signs and levels to show them."""

from __future__ import annotations

import time

LEVEL_SIGNS = {"good": "✓", "warn": "!", "bad": "✕"}
"""The sign before a verdict of each level, so that the level is not shown by colour alone."""
WARN_WAIT_SHARE, BAD_WAIT_SHARE = 0.05, 0.10
"""Waiting shares. Below the first, the input needs no attention; above the second, training is input-bound."""
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_count(number: int) -> str:
    """A whole number with separators between the thousands."""
    return f"{number:,}"


def format_rate(per_second: float) -> str:
    """Elements per second; with one decimal below 10."""
    return f"{per_second:,.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def format_share(part: float | None) -> str:
    """A share (0 to 1) in percent; a dash for None."""
    if part is None:
        return "–"
    return "<1 %" if 0 < part < 0.005 else f"{part * 100:.0f} %"


def wait_level(wait: float) -> str:
    """The level of a waiting share: "good", "warn" or "bad"."""
    return "good" if wait < WARN_WAIT_SHARE else "warn" if wait <= BAD_WAIT_SHARE else "bad"


def format_bytes(number: float) -> str:
    """Bytes in the unit that leaves one to three digits before the decimal point."""
    for unit in _BYTE_UNITS[:-1]:
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} {_BYTE_UNITS[-1]}"


def format_duration(seconds: float) -> str:
    """A duration in the one unit that fits it best."""
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
    """The time of day, in the time zone of the machine that formats it."""
    return time.strftime("%H:%M:%S", time.localtime(epoch))


def natural_sort_key(name: str) -> tuple[str, int]:
    """The sort key that puts `w10` after `w9`."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def as_sentence(text: str) -> str:
    """The text with a capital letter first and a full stop last; code and addresses at its beginning are kept."""
    words = text.split()
    prose = bool(words) and words[0].isalpha() and words[1:2] != ["="]
    stripped = text.strip()
    capitalised = stripped[:1].upper() + stripped[1:] if prose else stripped
    return capitalised if capitalised.endswith((".", "?", "!", ")")) else f"{capitalised}."


def format_mode(mode: str) -> str:
    """A processing mode as it is written in `dsnb.distribute`: the two with a name of their own, else the policy's."""
    return {"OFF": "parallel_epochs", "DYNAMIC": "distributed_epoch"}.get(mode, mode)


def plural(number: int, word: str) -> str:
    """A number with its noun: `1 element`, `2 elements`; for regular plurals only."""
    return f"{format_count(number)} {word}" if number == 1 else f"{format_count(number)} {word}s"

"""Reads metrics in the text format of Prometheus, as far as tests need it."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def samples(text: str) -> dict[str, float]:
    """The values by name and labels without the service's, as in `dsnb_job_clients{job_name="train"}`."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match, f"this is no sample: {line!r}"
            name, labels, value = match.groups()
            others = re.sub(r'^service="[^"]*",?', "", labels)
            key = f"{name}{{{others}}}" if others else name
            assert key not in found, f"{key} is there twice"
            found[key] = float(value)
    return found


def names(text: str) -> list[str]:
    """The names of all metrics, in their order."""
    return [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]


def decreased(before: str, after: str) -> list[str]:
    """The counters that are in both texts and are smaller in the later one."""
    earlier, later = samples(before), samples(after)
    return [key for key in earlier.keys() & later.keys() if "_total" in key and later[key] < earlier[key]]

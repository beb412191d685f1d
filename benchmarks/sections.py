"""Figures in the documentation: a benchmark replaces the part of a page that carries its name."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_section(page: str, name: str, text: str) -> None:
    """Replace what stands between the marks of a name on a page of `docs`."""
    path = ROOT / "docs" / page
    before, begin, rest = path.read_text(encoding="utf-8").partition(f"<!-- {name}: written by its benchmark -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not begin or not end:
        raise RuntimeError(f"{path} has no part called {name!r}")
    path.write_text(before + begin + text.strip("\n") + "\n" + end + after, encoding="utf-8")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are figures."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))


def commit() -> str:
    """What the checkout is at."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    """When, at which commit and on what something was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    python, system = platform.python_version(), platform.system()
    return (
        f"{time.strftime('%Y-%m-%d')} at {commit()}: Python {python}, {os.cpu_count()} cores, {memory:.0f} GB, {system}"
    )

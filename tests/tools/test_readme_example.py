"""The README's example runs as it stands, and prints what the README shows."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tools.readme_command import README

BLOCK = re.compile(r"## Ten lines\n\n```python\n(.*?)```.*?```\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_example_prints_what_the_readme_shows() -> None:
    found = BLOCK.search(README.read_text(encoding="utf-8"))
    assert found is not None
    code, shown = found.groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 12, "it is called ten lines"

    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=90)

    assert ran.stderr == ""
    assert without_shares(ran.stdout) == without_shares(shown)


def without_shares(text: str) -> list[str]:
    """The lines, without what depends on which trainer comes first: the order of their rows, and hits and misses."""
    lines = [re.sub(r"^(\s*lr=\S+\s+\d+) .*", r"\1", line) for line in text.splitlines()]
    rows = [line for line in lines if line.lstrip().startswith("lr=")]
    return [line for line in lines if line not in rows] + sorted(rows)

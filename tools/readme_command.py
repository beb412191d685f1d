"""Prints a command of the README, so that CI runs what readers type.

    python tools/readme_command.py tests

prints the code block after the line `<!-- command: tests -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def command(name: str, text: str) -> str:
    """The one line that the block after a marker holds.

    Raises:
        ValueError: there is no such block, or it holds more than a line.
    """
    found = re.findall(rf"<!-- command: {re.escape(name)} -->\n+```\w*\n(.*?)\n```", text, flags=re.DOTALL)
    if len(found) != 1 or "\n" in found[0]:
        raise ValueError(f"README.md has to have one block of one line after `<!-- command: {name} -->`")
    return str(found[0])


if __name__ == "__main__":
    print(command(sys.argv[1], README.read_text(encoding="utf-8")))

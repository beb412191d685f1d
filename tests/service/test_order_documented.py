"""docs/order.md shows what works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "order.md"


def test_the_examples_of_the_page_run() -> None:
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(example, names)
    names["svc"].stop()

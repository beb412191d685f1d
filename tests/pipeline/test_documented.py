"""docs/pipelines.md names every source and operation, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import dsnb

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
PUBLIC = {name for name in dir(dsnb.Dataset) if not name.startswith("_") and name != "reads_files"}


def named(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    _, _, rest = PAGE.partition(f"\n## {section}\n")
    rows = [line.split("|")[1] for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {name.removeprefix("Dataset.") for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_each_method_of_a_dataset_is_named_and_each_name_is_a_method() -> None:
    found = named("Sources") | named("Operations")
    assert {name for name in found if not name.startswith("dsnb.")} == PUBLIC


def test_what_is_named_of_dsnb_is_there() -> None:
    for name in re.findall(r"dsnb\.([A-Za-z_]\w*)", PAGE):
        assert hasattr(dsnb, name), name

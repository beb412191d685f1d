"""docs/parquet_and_shards.md, followed line by line in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.requires import require_module

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parquet_and_shards.md"


def test_the_page_about_parquet_and_shards_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_module("pyarrow")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) >= 9
    assert capsys.readouterr().out.startswith("ParquetDataset(parquet(2 files, 8 row groups), element_spec=")

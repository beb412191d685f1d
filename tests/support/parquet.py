"""Parquet files for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.requires import require_module


def write_parquet(path: Path, columns: dict[str, Any], rows_per_group: int = 10, **settings: Any) -> str:
    """Write a file, with row groups of one size, and return its path."""
    require_module("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group, **settings)
    return str(path)


def write_numbers(folder: Path, files: int, rows: int, rows_per_group: int = 10) -> list[str]:
    """Write files whose column `x` counts through all of them, beside its square as text."""
    made = []
    for number in range(files):
        x = list(range(number * rows, (number + 1) * rows))
        name = folder / f"{number:03}.parquet"
        made.append(write_parquet(name, {"x": x, "square": [str(value * value) for value in x]}, rows_per_group))
    return made


def numbers_of(elements: Sequence[Any]) -> list[int]:
    """The values of the column `x` of batches."""
    return [int(x) for element in elements for x in element["x"]]

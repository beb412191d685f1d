"""Each row of a source with numbered splits is read once in a DYNAMIC epoch that is scaled down, saved and resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

import dsnb
from tests.support.parquet import numbers_of, write_numbers

FILES, ROWS = 3, 61  # a prime: no number of workers, batches or row groups divides it


class Rows:
    """Anything with a length and items."""

    def __len__(self) -> int:
        return FILES * ROWS

    def __getitem__(self, index: int) -> Any:
        return {"x": index}


def random_access(_folder: Path, shuffle: bool) -> dsnb.Dataset:
    return dsnb.Dataset.from_random_access(Rows(), shuffle=shuffle, seed=5)


SOURCES: dict[str, Callable[[Path], dsnb.Dataset]] = {
    "indices": lambda folder: random_access(folder, False).batch(1),
    "shuffled indices": lambda folder: random_access(folder, True).batch(1),
    "batches of shuffled indices": lambda folder: random_access(folder, True).batch(4),
    "row groups": dsnb.ParquetDataset,
    "batches within row groups": lambda folder: dsnb.ParquetDataset(folder, batch_size=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("source,later", [*zip(SOURCES, cycle([1, 4]), strict=False)])
def test_each_row_is_read_once_though_workers_leave_and_reading_resumes_on_others(
    tmp_path: Path, source: str, later: int
) -> None:
    write_numbers(tmp_path, FILES, ROWS, rows_per_group=7)
    rows = SOURCES[source](tmp_path)
    got: list[Any] = []

    def read(service: Any, state: Any, scale: int) -> Any:
        """Read a few elements, scale, read a few more; return where that stopped."""
        distributed = dsnb.distribute("distributed_epoch", service, max_outstanding_requests=4)
        with iter(rows.apply(distributed)) as elements:
            if state is not None:
                elements.load_state_dict(state)
            got.extend(islice(elements, 5))
            service.scale(scale)
            got.extend(islice(elements, 3))
            state = json.loads(json.dumps(elements.state_dict()))
            if service.name == "last":
                got.extend(elements)
        return state

    with dsnb.start(workers=3, name="first") as service:
        state = read(service, None, 1)
    with dsnb.start(workers=later, name="second") as service:
        state = read(service, state, 5 - later)
    with dsnb.start(workers=2, name="last") as service:
        read(service, state, 1)
    assert Counter(numbers_of(got)) == Counter(range(FILES * ROWS))

"""The page for people who come from other loaders names only what dsnb has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import dsnb

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
OURS = "\n".join(row.split(" | ")[-1] for row in PAGE.splitlines() if row.startswith("| "))
CODE = re.findall(r"`([^`]+)`", OURS)


def test_each_name_of_dsnb_on_the_page_exists() -> None:
    named = {match for code in CODE for match in re.findall(r"\bdsnb\.([A-Z_a-z]+)", code)}
    assert len(named) > 10
    assert [name for name in named if name not in dsnb.__all__] == []


def test_each_method_of_a_dataset_on_the_page_exists() -> None:
    named = {name for code in CODE for name in re.findall(r"(?:\bds|Dataset|\)|^)\.([a-z_]+)\(", code)}
    assert {"from_random_access", "batch", "map", "cache", "to_torch"} <= named
    assert [name for name in named if not hasattr(dsnb.Dataset, name)] == []


def test_each_argument_of_distribute_and_of_datasets_on_the_page_exists() -> None:
    known = {
        name
        for function in (dsnb.distribute, dsnb.start, dsnb.ParquetDataset.__init__, *vars(dsnb.Dataset).values())
        if callable(function) or isinstance(function, staticmethod)
        for name in inspect.signature(getattr(function, "__func__", function)).parameters
    }
    known |= {"port", "dispatcher_address"}  # of the configurations
    named = {name for code in CODE for name in re.findall(r"\b([a-z_]+)=", code)} - {"train_dataset"}
    assert [name for name in named if name not in known] == []


def test_each_page_that_it_points_to_exists() -> None:
    pages = set(re.findall(r"\]\((\w+\.md)\)", PAGE))
    assert pages
    assert [page for page in pages if not (Path(__file__).parents[2] / "docs" / page).exists()] == []

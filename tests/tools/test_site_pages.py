"""The documentation site: each public name and error has a page, all pages are in the navigation, links hold."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from tools import site_pages
from tools.site_pages import error_names, generated_pages, navigation, public_names

DOCS = site_pages.ROOT / "docs"
NOT_RUN = {"ParquetDataset", "cache.Remembered", "cache.remembered"}
"""Names whose examples need an optional package, or the cache of the person who runs the test; the eighth notebook runs
those of `remembered`."""


def value_of(home: str) -> Any:
    module, _, name = home.rpartition(".")
    return getattr(importlib.import_module(module), name)


def listed(entries: Any) -> list[str]:
    """The pages of a navigation, however deep."""
    if isinstance(entries, str):
        return [entries]
    found = entries.values() if isinstance(entries, dict) else entries
    return [page for entry in found for page in listed(entry)]


def test_each_public_name_has_a_page() -> None:
    names = {name for name in dsnb.__all__ if not name.startswith("__") and name not in dsnb.errors.__all__}
    pages = generated_pages()
    assert {f"reference/{name}.md" for name in names - {"cache", "errors", "launchers", "testing"}} <= set(pages)
    assert {f"reference/cache.{name}.md" for name in dsnb.cache.__all__} <= set(pages)


def test_each_error_has_a_page_that_says_what_to_try() -> None:
    for name, home in error_names().items():
        text = (DOCS / "errors" / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"::: {home}\n")
        assert "## What to try" in text


def test_each_page_is_in_the_navigation_once() -> None:
    pages = listed(navigation())
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(pages) == sorted({*written, *generated_pages()})


def test_a_new_page_is_listed_under_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("docs", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "sharing.md").touch()
    (tmp_path / "docs" / "brand_new.md").touch()
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)

    assert {"More": ["brand_new.md"]} in navigation()
    assert {"How-to guides": ["sharing.md"]} in navigation()


def test_a_link_to_a_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.md"):
        site_pages.with_links("[here](nowhere.md)", DOCS, "page.md")


@pytest.mark.parametrize(
    "link, shown",
    [
        ("[a](sharing.md#cost)", "[a](../sharing.md#cost)"),
        ("[a](../notebooks/07_two_kernels.ipynb)", "[a](../tutorials/07_two_kernels.md)"),
        ("[a](../README.md)", "[a](../index.md)"),
        ("[the layers](../pyproject.toml)", "the layers (`pyproject.toml`)"),
        ("[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(link: str, shown: str) -> None:
    assert site_pages.with_links(link, DOCS, "folder/page.md") == shown


@pytest.mark.slow
@pytest.mark.parametrize("name, home", [pair for pair in public_names().items() if pair[0] not in NOT_RUN])
def test_the_examples_of_each_public_name_run(
    name: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see what is public, NumPy, and the names of their module; files go to a folder of their own."""
    monkeypatch.chdir(tmp_path)
    value = value_of(home)
    if not callable(value):  # a constant
        return
    names = {public: getattr(dsnb, public) for public in dsnb.__all__}
    seen = vars(sys.modules[value.__module__]) | names | {"dsnb": dsnb, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    examples = 0
    for test in doctest.DocTestFinder().find(value, name, globs=dict(seen)):
        runner.run(test, out=told.append)
        examples += len(test.examples)  # those of files that are not here are skipped

    if "pip install" in "".join(told):  # the error of a name that needs an optional package
        pytest.skip(f"an optional package of {name} is not installed")
    assert runner.failures == 0, "".join(told)
    assert examples > 0, name

"""A hook of mkdocs: the pages of the documentation site that are not files of `docs/`, and its navigation.

    mkdocs build --strict

The first page is the README, tutorials are the notebooks with their output, and each public name has a page from its
docstring; each error has one in `docs/errors`. A page of `docs/` that no group of `GROUPS` has is listed under "More":
a new page needs no change here.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GROUPS: Mapping[str, tuple[str, ...]] = {
    "How-to guides": (
        "pipelines",
        "random_access",
        "parquet_and_shards",
        "pytorch",
        "migration",
        "sharing",
        "coordinated_reads",
        "resuming",
        "recordings",
        "training_cache",
        "watching",
        "notebooks",
        "many_machines",
        "ray",
        "dask",
        "commands",
        "slurm",
        "kubernetes",
        "autoscaling",
        "security",
    ),
    "Explanations": (
        "architecture",
        "failures",
        "reliability",
        "verdict",
        "code_that_travels",
        "readers",
        "comparison",
        "performance",
        "performance_findings",
        "first_look",
        "conformance",
        "glossary",
    ),
}
"""The groups of the navigation, and the pages of `docs/` in each, without `.md`."""
MODULES = ("dsnb", "dsnb.cache", "dsnb.launchers", "dsnb.testing")
"""The modules whose public names have pages; those of `dsnb.errors` have pages of their own kind."""
_LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


# ---- the hook


def on_config(config: Any) -> Any:
    """Set the navigation, from the files that there are."""
    config["nav"] = navigation()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    for path, content in generated_pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of `docs/` to the page made of that file; show other files of the repository by their path."""
    if page.file.generated_by is not None:  # its links are right already
        return markdown
    return with_links(markdown, (ROOT / "docs" / page.file.src_uri).parent, page.file.src_uri)


# ---- navigation


def navigation() -> list[Any]:
    """All pages by group: each page of `docs/` is in one."""
    pages = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    grouped = {title: [name for name in names if name in pages] for title, names in GROUPS.items()}
    listed = {name for names in grouped.values() for name in names}
    more = [name for name in pages if name not in listed]
    return [
        {"Home": "index.md"},
        {"Tutorials": [f"tutorials/{path.stem}.md" for path in notebooks()]},
        *({title: [f"{name}.md" for name in names]} for title, names in grouped.items()),
        *([{"More": [f"{name}.md" for name in more]}] if more else []),
        {"Reference": ["reference/index.md", *({name: f"reference/{name}.md"} for name in public_names())]},
        {"Errors": ["errors/index.md", *(_error_pages())]},
        {"Project": ["project/contributing.md", "project/changelog.md", "project/benchmarks.md"]},
    ]


def _error_pages() -> list[dict[str, str]]:
    return [{name: f"errors/{name}.md"} for name in error_names() if (ROOT / "docs" / "errors" / f"{name}.md").exists()]


def notebooks() -> list[Path]:
    """The tutorials, in their order."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


# ---- pages


def generated_pages() -> dict[str, str]:
    """The pages that are not files of `docs/`: their paths on the site, and their Markdown."""
    return {
        "index.md": _page_of("README.md", "index.md"),
        "project/contributing.md": _page_of("CONTRIBUTING.md", "project/contributing.md"),
        "project/changelog.md": _page_of("CHANGELOG.md", "project/changelog.md"),
        "project/benchmarks.md": _page_of("benchmarks/README.md", "project/benchmarks.md"),
        **{f"tutorials/{path.stem}.md": notebook_page(path) for path in notebooks()},
        "reference/index.md": _index("Reference", "Every public name, with an example that is run.", public_names()),
        **{f"reference/{name}.md": _name_page(home) for name, home in public_names().items()},
        "errors/index.md": _index("Errors", "What each error means and what to try.", error_names()),
    }


def public_names() -> dict[str, str]:
    """All public names except errors, such as `cache.remembered`, with the place of the docstring of each."""
    found: dict[str, str] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        prefix = module_name.removeprefix("dsnb").removeprefix(".")
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if name.startswith("__") or isinstance(value, ModuleType) or _is_error(value):
                continue
            found[f"{prefix}.{name}" if prefix else name] = _home(module, name)
    return found


def error_names() -> dict[str, str]:
    """All errors and warnings, with the place of the docstring of each."""
    errors = importlib.import_module("dsnb.errors")
    names = [name for name in errors.__all__ if _is_error(getattr(errors, name))]
    return {name: f"dsnb.errors.{name}" for name in sorted(names)}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _home(module: ModuleType, name: str) -> str:
    """Where a public name is defined: a constant does not know, so a package says where its names come from."""
    homes: Mapping[str, str] = getattr(module, "_HOMES", {})
    value = getattr(module, name)
    home = homes.get(name) or getattr(value, "__module__", None) or module.__name__
    return f"{home}.{getattr(value, '__qualname__', name)}"


def _name_page(home: str) -> str:
    return f"::: {home}\n"


def _index(title: str, sentence: str, names: Mapping[str, str]) -> str:
    return "\n".join([f"# {title}", "", sentence, "", *(f"* [{name}]({name}.md)" for name in names), ""])


def _page_of(source: str, page: str) -> str:
    path = ROOT / source
    return with_links(path.read_text(encoding="utf-8"), path.parent, page)


# ---- notebooks


def notebook_page(path: Path) -> str:
    """A notebook with its output, as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _cell(cell)]
    return with_links("\n\n".join(parts) + "\n", path.parent, f"tutorials/{path.stem}.md")


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code" and source.strip():
        yield f"```python\n{source}\n```"
        yield from filter(None, map(_output, cell["outputs"]))


def _output(output: Mapping[str, Any]) -> str:
    """One output of a cell; an image or text, since HTML of a notebook brings styles that do not fit the site."""
    if output["output_type"] == "error":
        return _verbatim(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"])))
    data = output.get("data", {})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return _verbatim("".join(output.get("text") or data.get("text/plain", "")))


def _verbatim(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


# ---- links


def with_links(markdown: str, folder: Path, page: str) -> str:
    """The text with its links as they are on the site.

    Args:
        markdown: The text.
        folder: The folder of the file that the text is from; links are relative to it.
        page: The page of the site that the text is on.

    Raises:
        FileNotFoundError: a link leads to a file that does not exist.
    """

    def changed(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if target.startswith("data:"):
            return found[0]
        path = (folder / target).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{page}: there is no {target}")
        there = _site_path(path)
        if there is None:  # a file without a page: its path says where it is in the repository
            return f"{words[1:-1]} (`{path.relative_to(ROOT)}`)" if words[1:-1] != target else f"`{target}`"
        return f"{words}({'../' * page.count('/')}{there}{anchor})"

    return _LINK.sub(changed, markdown)


def _site_path(path: Path) -> str | None:
    """The page or file of the site for a file of the repository; None if it has none."""
    relative = path.relative_to(ROOT)
    named = {
        "README.md": "index.md",
        "CONTRIBUTING.md": "project/contributing.md",
        "CHANGELOG.md": "project/changelog.md",
        "benchmarks/README.md": "project/benchmarks.md",
    }
    if str(relative) in named:
        return named[str(relative)]
    if relative.parts[0] == "notebooks" and relative.suffix == ".ipynb":
        return f"tutorials/{relative.stem}.md"
    if relative.parts[0] == "docs" and path.is_file() and relative.suffix != ".json":
        return str(Path(*relative.parts[1:]))
    return None

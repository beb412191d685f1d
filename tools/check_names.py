"""Checks that the names of modules, classes and public functions are plain words.

A name is made of English words (`english-words`) and of the technical words that docs/glossary.md lists, and of none
that it bans.

python tools/check_names.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from english_words import get_english_words_set

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"

# Regular endings, each with what takes its place to give the word that a dictionary has.
ENDINGS = {
    "": ("",), "s": ("",), "es": ("",), "ies": ("y",), "d": ("",), "ed": ("", "e"), "ied": ("y",), "ing": ("", "e"),
    "er": ("", "e"), "est": ("", "e"),
}  # fmt: skip
DOUBLED = re.compile(r"(\w)\1(ed|ing|er|est)$")


def listed(heading: str) -> set[str]:
    """Return the words of one list of the glossary; they stand in the last paragraph under its heading."""
    section = GLOSSARY.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"[a-z]+", section.strip().rpartition("\n\n")[2]))


def words_of(name: str) -> list[str]:
    """Return the words of an identifier in lower case.

    Example:
        >>> words_of("GRPCServer_of2")
        ['grpc', 'server', 'of']
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def is_known(word: str, dictionary: set[str]) -> bool:
    """Whether the dictionary has a word, or what it is a regular form of."""
    stems = {
        word[: len(word) - len(end)] + instead
        for end, replacements in ENDINGS.items()
        if word.endswith(end)
        for instead in replacements
    }
    stems.add(DOUBLED.sub(r"\1", word))
    return len(word) == 1 or not stems.isdisjoint(dictionary)


def names(package: Path) -> Iterator[tuple[str, str]]:
    """Yield each name that is checked, with where it stands."""
    for path in sorted(package.rglob("*.py")):
        if path.stem.endswith("_pb2"):
            continue
        where = path.relative_to(package.parent).as_posix()
        yield path.stem, where
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield from ((name, f"{where}:{node.lineno}") for name in _public(node))


def _public(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
        methods = (child.name for child in node.body if isinstance(child, ast.FunctionDef))
        yield from (name for name in methods if not name.startswith("_"))
    elif not node.name.startswith("_"):
        yield node.name


def main() -> int:
    """Print each name that breaks the rule; return how many there are."""
    banned = listed("Words that are not used in names")
    dictionary = get_english_words_set(["web2", "gcide"], lower=True) | listed("Technical words in names")
    problems = []
    for name, where in names(ROOT / "dsnb"):
        for word in words_of(name):
            if word in banned:
                problems.append(f"{where}: {name}: `{word}` is banned by docs/glossary.md")
            elif not is_known(word, dictionary):
                problems.append(
                    f"{where}: {name}: `{word}` is no English word; is it a technical word of docs/glossary.md?"
                )
    print("\n".join(problems))
    return len(problems)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

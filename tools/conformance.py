"""Writes docs/conformance.md: which of the original's promises are tested, and what came of the tests.

python tools/conformance.py                   runs tests/conformance and writes the table
python tools/conformance.py --junit FILE      writes it from a run that was made with `pytest --junitxml=FILE`

tests/conformance/test_table.py fails when the table and a run of the tests disagree.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path instead

from tests.conformance.lines import DIFFERS, NOT_HERE, SECTIONS  # noqa: E402

TESTS = ROOT / "tests" / "conformance"
TABLE = ROOT / "docs" / "conformance.md"
NAME = re.compile(r"test_line_(\d{3})_(\w+)")
_ROW = re.compile(r"\| (\d+) \| (.*) \| (.*) \| (.*) \|")
_NO_TEST = "-"

_TITLE = """# Conformance

What the tests of the tf.data service check, line by line, and whether dsnb passes the same checks. This page is written
by `python tools/conformance.py`; `tests/conformance/test_table.py` fails if it disagrees with a run of the tests.

The servers of these tests use the same intervals for heartbeats and garbage collection as the tests of the tf.data
service, with one exception: `worker_timeout_ms` keeps its default of ten seconds instead of 200 ms. In the tf.data
service, a worker that is silent for that long is hidden from the metrics. In dsnb, it is lost together with the
elements that it has, and the loss is announced. With 200 ms, tests on a busy machine would lose workers that are only
slow, and a line that counts elements might see part of an epoch begin again.

A line that is left out gives the reason: it cannot apply, or the feature does not exist. If dsnb behaves differently,
the line says how. An error has the class of the tf.data service's error, or a subclass of it, and contains the words
that the tf.data service's tests look for, unless the line says otherwise.

Two sections are left out completely. Saving by the workers of a service (lines 253 to 303): in dsnb, the process that
calls `Dataset.save` writes the elements, even if a service produces them, and `Dataset.load` reads them. The autoscaler
(315 to 325): dsnb's own follows other rules, and its tests are in `tests/dispatcher/test_autoscaler.py`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; a line of the original's has as many rows as it has tests."""

    line: int
    what: str
    test: str
    passed: str

    def __str__(self) -> str:
        return f"| {self.line} | {self.what} | {self.test} | {self.passed} |"


def tests_of(section: str) -> dict[int, list[str]]:
    """The tests that a section's modules have for each line, as "module::function"."""
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.glob(f"test_{section}_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (name := NAME.fullmatch(node.name)):
                found.setdefault(int(name[1]), []).append(f"{path.stem}::{node.name}")
    return found


def rows_of(section: str, passed: Mapping[str, bool]) -> Iterator[Row]:
    """The rows of one section; a test that did not run is marked so."""
    tests = tests_of(section)
    for line in SECTIONS[section]:
        if line in NOT_HERE:
            yield Row(line, NOT_HERE[line], _NO_TEST, "left out")
        for number, test in enumerate(tests.get(line, ())):
            differs = f" (differs: {DIFFERS[line]})" if line in DIFFERS and not number else ""
            yield Row(line, _sentence_of(test) + differs, f"`{test}`", _outcome(passed.get(test)))


def render(passed: Mapping[str, bool]) -> str:
    """The whole document."""
    parts = [_TITLE]
    for section in sorted(SECTIONS):
        title = _title(section)
        parts.append(f"\n## {section.upper()}: {title}\n\n| line | what | test | passed |\n|---|---|---|---|\n")
        parts += [f"{row}\n" for row in rows_of(section, passed)]
    return "".join(parts)


def read_table(text: str) -> list[Row]:
    """The rows of a document that `render` made."""
    return [Row(int(row[1]), *row.groups()[1:]) for row in map(_ROW.fullmatch, text.splitlines()) if row]


def outcomes(cases: Iterable[tuple[str, str, bool]]) -> dict[str, bool]:
    """Which tests passed, in all their forms; cases are module, function with parameters, and whether it passed."""
    found: dict[str, bool] = {}
    for module, name, passed in cases:
        test = f"{module.rpartition('.')[2]}::{name.partition('[')[0]}"
        found[test] = found.get(test, True) and passed
    return found


def read_junit(path: Path) -> dict[str, bool]:
    """Which tests passed in a run; those that were skipped are not in it."""
    cases = ET.parse(path).iter("testcase")
    return outcomes(
        (case.get("classname", ""), case.get("name", ""), case.find("failure") is None and case.find("error") is None)
        for case in cases
        if case.find("skipped") is None
    )


def run_tests() -> dict[str, bool]:
    """Run the conformance tests, and tell which passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        # The table is about to be written again: the old one need not agree.
        without = f"--ignore={TESTS / 'test_table.py'}"
        command = [sys.executable, "-m", "pytest", "-q", str(TESTS), without, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False)
        return read_junit(report)


def _sentence_of(test: str) -> str:
    name = NAME.fullmatch(test.partition("::")[2])
    assert name is not None
    return name[2].replace("_", " ")


def _outcome(passed: bool | None) -> str:
    return "did not run" if passed is None else "yes" if passed else "no"


def _title(section: str) -> str:
    """What a section is about, by the names of its modules."""
    return ", ".join(
        path.stem.split("_", 2)[2].replace("_", " ") for path in sorted(TESTS.glob(f"test_{section}_*.py"))
    )


def main() -> int:
    """Write the table, and return how many lines are not as they should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="what a run of the tests reported")
    arguments = parser.parse_args()
    passed = run_tests() if arguments.junit is None else read_junit(arguments.junit)
    TABLE.write_text(render(passed), encoding="utf-8")
    rows = read_table(TABLE.read_text(encoding="utf-8"))
    bad = [row for row in rows if row.passed in ("no", "did not run")]
    print(*bad, f"{len(rows) - len(bad)} of {len(rows)} rows are as they should be", sep="\n")
    return len(bad)


if __name__ == "__main__":
    sys.exit(min(1, main()))

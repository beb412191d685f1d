"""The page about the verdict lists each rule, with a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(.+?)` \|.*\| `(\w+)` \|$", PAGE, re.MULTILINE)


def test_each_cause_that_the_rules_name_is_on_the_page() -> None:
    named = {
        cause
        for path in (ROOT / "dsnb" / "monitor").glob("*.py")
        for cause in re.findall(r'cause="([a-z ]+)",', path.read_text(encoding="utf-8"))
    }
    assert {cause for cause, _ in ROWS} == named


def test_each_rule_on_the_page_has_its_test_and_each_test_its_row() -> None:
    files = ("service/test_verdicts.py", "frameworks/test_conversion_verdict.py")
    tests = "\n".join((ROOT / "tests" / file).read_text(encoding="utf-8") for file in files)
    about_numbers = "test_never_more_workers_are_recommended_than_there_are_processors_for_them"
    found = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE)) - {about_numbers}
    assert sorted(test for _, test in ROWS) == sorted(found)

"""docs/conformance.md says what the tests say: which there are, and, of those of this run, what came of them."""

from __future__ import annotations

import pytest

from tests.conformance.lines import NOT_HERE, SECTIONS
from tests.conformance.outcomes import OUTCOMES
from tools.conformance import NAME, TABLE, Row, outcomes, read_table, render, rows_of


def table() -> list[Row]:
    return read_table(TABLE.read_text(encoding="utf-8"))


def test_the_table_has_each_line_and_each_test() -> None:
    there = {(row.line, row.what, row.test) for row in table()}
    wanted = {(row.line, row.what, row.test) for section in SECTIONS for row in rows_of(section, {})}

    advice = "run `python tools/conformance.py`"
    assert wanted - there == set(), advice
    assert there - wanted == set(), advice


def test_the_table_claims_of_each_line_that_it_passed_or_is_left_out() -> None:
    assert [row for row in table() if row.passed not in ("yes", "left out")] == []


def test_only_lines_with_a_reason_are_without_a_test() -> None:
    assert {row.line for row in table() if row.passed == "left out"} == set(NOT_HERE)


def test_the_table_says_what_this_run_found(request: pytest.FixtureRequest) -> None:
    """Runs last of all conformance tests; what was not run now is not compared."""
    claimed = {row.test.strip("`"): row.passed == "yes" for row in table()}
    cases = request.config.stash.get(OUTCOMES, [])
    found = {test: passed for test, passed in outcomes(cases).items() if NAME.fullmatch(test.partition("::")[2])}
    wrong = {test: passed for test, passed in found.items() if claimed.get(test) is not passed}

    assert wrong == {}, "the table claims otherwise; mend the tests, or run `python tools/conformance.py`"


def test_a_document_can_be_read_back() -> None:
    test = next(row.test.strip("`") for section in SECTIONS for row in rows_of(section, {}) if row.test != "-")
    rows = read_table(render({test: False}))

    assert [row.passed for row in rows if row.test == f"`{test}`"] == ["no"]
    assert {row.passed for row in rows} == {"no", "did not run", "left out"}


def test_a_test_has_passed_when_all_its_forms_have() -> None:
    cases = [("a.b.test_x", "test_1[p]", True), ("a.b.test_x", "test_1[q]", False), ("test_x", "test_2", True)]

    assert outcomes(cases) == {"test_x::test_1": False, "test_x::test_2": True}

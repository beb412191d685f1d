"""Where files or threads run out: how many there are, what the limit is, and what to do about it."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.processes import PythonProcess
from tests.support.waiting import wait_for

Outcome = tuple[str, list[object] | None]


def outcomes(*arguments: str) -> dict[str, list[object] | None]:
    """What came of each attempt: the error's class, whether it is dsnb's, and its text; None where it went well."""
    with PythonProcess(["-m", "tests.service.limited", *arguments]) as process:
        wait_for(lambda: process.popen.poll() is not None, what="its end", timeout=110)
        assert process.popen.returncode == 0, process.describe()
        return dict(json.loads(line) for line in process.stdout.splitlines() if line.startswith("["))


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_where_files_run_out_the_error_says_how_many_are_open_and_what_the_limit_is(isolation: str) -> None:
    found = outcomes("files", isolation)
    refused = {what: error for what, error in found.items() if error is not None}
    assert {what: error for what, error in refused.items() if not error[1]} == {}, "errors of the system, as they are"
    told = re.compile(r"process \d+ has \d+ open and may have \d+ \(ulimit -n\)")
    assert {what: error for what, error in refused.items() if not told.search(str(error[2]))} == {}
    assert len(refused) >= 6
    assert found["start with 1"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "worker"])
def test_where_no_thread_can_be_started_the_error_says_how_many_there_are_and_what_the_limit_is(where: str) -> None:
    found = outcomes("threads", where)
    told = re.compile(
        r"the system starts no more threads: process \d+ has [\d,]+ \((.*; )?this process may have [\d,]+ MiB"
    )
    for what in ("map", "prefetch") if where == "here" else ("map",):
        error = found[what]
        assert error is not None
        assert error[0] == "ResourceExhaustedError"
        assert told.search(str(error[2]))
        assert "num_parallel_calls" in str(error[2])
    assert found["goes on"] is None, "with the threads that there are"

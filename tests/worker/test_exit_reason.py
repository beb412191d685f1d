from __future__ import annotations

import signal

import pytest

from dsnb.worker.process import exit_reason, output_tail


@pytest.mark.parametrize(
    "returncode,memory_ran_out,told",
    [
        (3, False, "ended itself with exit code 3"),
        (0, True, "ended itself with exit code 0"),
        (-signal.SIGKILL, True, "SIGKILL because memory ran out"),
        (-signal.SIGKILL, False, "SIGKILL from outside; the system does that too when memory runs out"),
        (-signal.SIGTERM, True, "SIGTERM from outside"),
        (-signal.SIGSEGV, False, "SIGSEGV: native code that the pipeline calls crashed"),
        (-64, False, "SIGRTMAX from outside"),
        (-99, False, "signal 99 from outside"),
    ],
)
def test_a_return_code_becomes_a_sentence_that_names_the_likely_cause(
    returncode: int, memory_ran_out: bool, told: str
) -> None:
    assert told in exit_reason(returncode, memory_ran_out=memory_ran_out)


def test_the_last_words_of_a_crash_are_where_the_thread_stood_that_crashed() -> None:
    other = ["Thread 0x2 (most recent call first):", '  File "other.py", line 9 in wait']
    lines = ["one", "two", "Fatal Python error: Segmentation fault", "", *other, ""]
    lines += [
        "Current thread 0x1 (most recent call first):",
        '  File "mine.py", line 3 in crash',
        "",
        "Extension modules: a",
    ]
    words = output_tail(lines)
    assert words.startswith('two | Fatal Python error: Segmentation fault | File "mine.py", line 3 in crash')
    assert "other.py" not in words


def test_a_process_that_said_nothing_said_nothing() -> None:
    assert output_tail([]) == output_tail(["", " "]) == "nothing"

from __future__ import annotations

import pytest

from tools.readme_command import README, command


@pytest.mark.parametrize(
    "name,end",
    [("demo", ".venv/bin/dsnb demo"), ("tests", ".venv/bin/python -m pytest -n 3 --dist loadfile")],
)
def test_the_readme_has_both_commands_whole_in_one_line(name: str, end: str) -> None:
    line = command(name, README.read_text(encoding="utf-8"))
    assert line.startswith("python3 -m venv .venv && ")
    assert line.endswith(f" && {end}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("```\na\n```", id="no marker"),
        pytest.param("<!-- command: tests -->\n```\na\nb\n```", id="two lines"),
        pytest.param("<!-- command: tests -->\nwords\n```\na\n```", id="words between"),
        pytest.param("<!-- command: tests -->\n```\na\n```\n" * 2, id="two blocks"),
    ],
)
def test_what_is_no_one_line_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one block of one line"):
        command("tests", text)

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from dsnb.cache.database import Database
from dsnb.errors import FailedPreconditionError
from tests.support.processes import PythonProcess

SCHEMA = "\nCREATE TABLE t (x INTEGER);\nCREATE TRIGGER tr AFTER INSERT ON t BEGIN SELECT 1; END;\n"

OPEN_AT_ONCE = """
import sys
from pathlib import Path
from dsnb.cache.database import Database
while sys.stdin.readline() != "go\\n":
    pass
for number in range(20):
    database = Database(Path(sys.argv[1]) / f"{number}.db", sys.argv[2], 1)
    with database.change():
        database.do("INSERT INTO t VALUES (1)")
    database.close()
print("DONE")
"""


def test_processes_that_make_one_database_at_once_make_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        arguments = ["-c", OPEN_AT_ONCE, str(tmp_path), SCHEMA]
        processes = [stack.enter_context(PythonProcess(arguments, stdin=True)) for _ in range(4)]
        for process in processes:
            assert process.popen.stdin is not None
            process.popen.stdin.write(b"go\n")
            process.popen.stdin.flush()
        for process in processes:
            process.line("DONE", timeout=90)
            assert process.ended() == 0, process.story()
    for number in range(20):
        database = Database(tmp_path / f"{number}.db", SCHEMA, 1)
        assert database.value("SELECT count(*) FROM t") == 4
        database.close()


def test_a_database_that_was_replaced_by_another_is_not_written_to(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", SCHEMA, 1)
    for path in tmp_path.iterdir():
        path.unlink()
    other = Database(tmp_path / "a.db", SCHEMA, 1)
    with pytest.raises(FailedPreconditionError, match="was removed while"), database.change():
        pass
    other.close()
    database.close()


def test_a_closed_database_is_one_file(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", SCHEMA, 1)
    with database.change():
        database.do("INSERT INTO t VALUES (1)")
    assert {path.name for path in tmp_path.iterdir()} <= database.files()
    database.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]

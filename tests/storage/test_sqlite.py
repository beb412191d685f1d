from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsnb.errors import FailedPreconditionError, UnavailableError
from dsnb.storage.sqlite import Database, DatabaseKind
from tests.support.processes import PythonProcess

SCHEMA = "\nCREATE TABLE t (x INTEGER);\nCREATE TRIGGER tr AFTER INSERT ON t BEGIN SELECT 1; END;\n"

OPEN_AT_ONCE = """
import sys
from pathlib import Path
from dsnb.storage.sqlite import Database
from tests.storage.test_sqlite import kind
while sys.stdin.readline() != "go\\n":
    pass
for number in range(20):
    database = Database(Path(sys.argv[1]) / f"{number}.db", kind(sys.argv[2]))
    with database.transaction():
        database.execute("INSERT INTO t VALUES (1)")
    database.close()
print("DONE")
"""


def kind(*migrations: str) -> DatabaseKind:
    """A kind of database with these tables."""
    return DatabaseKind(
        application_id=7,
        migrations=migrations,
        open_error=lambda error, path: UnavailableError(f"{path}: {error}"),
        foreign_error=lambda path: FailedPreconditionError("a database of another program"),
        format_error=lambda path, found: FailedPreconditionError(f"format {found}, not {len(migrations)}"),
        removed_error=lambda path: FailedPreconditionError("the file was removed while it was open"),
    )


@pytest.mark.slow
def test_processes_that_make_one_database_at_once_make_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        arguments = ["-c", OPEN_AT_ONCE, str(tmp_path), SCHEMA]
        processes = [stack.enter_context(PythonProcess(arguments, stdin=True)) for _ in range(4)]
        for process in processes:
            assert process.popen.stdin is not None
            process.popen.stdin.write(b"go\n")
            process.popen.stdin.flush()
        for process in processes:
            process.wait_for_line("DONE", timeout=90)
            assert process.wait_for_exit() == 0, process.describe()
    for number in range(20):
        database = Database(tmp_path / f"{number}.db", kind(SCHEMA))
        assert database.value("SELECT count(*) FROM t") == 4
        database.close()


def test_a_database_that_was_replaced_by_another_is_not_written_to(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", kind(SCHEMA))
    for path in tmp_path.iterdir():
        path.unlink()
    other = Database(tmp_path / "a.db", kind(SCHEMA))
    with pytest.raises(FailedPreconditionError, match="was removed while"), database.transaction():
        pass
    other.close()
    database.close()


def test_a_closed_database_is_one_file(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", kind(SCHEMA))
    with database.transaction():
        database.execute("INSERT INTO t VALUES (1)")
    assert {path.name for path in tmp_path.iterdir()} <= Database.file_names(database.path)
    database.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_an_older_format_is_brought_up_to_date_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db", kind(SCHEMA))
    with database.transaction():
        database.execute("INSERT INTO t VALUES (7)")
    database.close()
    steps = (SCHEMA, "CREATE TABLE more (y INTEGER);\n", "CREATE TABLE last (z INTEGER);\n")
    for _ in range(2):
        newer = Database(tmp_path / "a.db", kind(*steps))
        assert newer.value("SELECT x FROM t") == 7
        assert newer.value("SELECT count(*) FROM more") == newer.value("SELECT count(*) FROM last") == 0
        newer.close()
    with pytest.raises(FailedPreconditionError, match=r"format 3, not 1"):
        Database(tmp_path / "a.db", kind(SCHEMA))


def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    mine = sqlite3.connect(path)
    with mine:
        mine.execute("CREATE TABLE notes (text TEXT)")
    mine.close()
    before = path.read_bytes()
    with pytest.raises(FailedPreconditionError, match="database of another program"):
        Database(path, kind(SCHEMA))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

"""Journals: what is committed is there again, byte for byte; what is damaged, newer or in use is refused."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import xxhash
from msgspec.structs import replace

from dsnb.dispatcher.journal import FORMAT, OLDEST_FORMAT, Journal
from dsnb.dispatcher.records import ClientLeft, Record
from dsnb.dispatcher.state import State, replay, state_from_json
from dsnb.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.storage.failpoints import Fault, failpoint_hook
from dsnb.wire.ranges import Ranges
from tests.dispatcher.simulation import Service
from tests.support.processes import python_process

HOLD = """
import sys
from pathlib import Path
from dsnb.dispatcher.journal import Journal
journal = Journal(Path({path!r}))
print("READY", flush=True)
input()
"""


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Two workers, one of them started again, and a pass that is half read."""
    service = Service()
    one, other = service.add_worker("w0"), service.add_worker("w1")
    service.join(service.register(400, 30), "train")
    for _ in range(20):
        service.ask(service.task(one), 0, 3)
        service.ask(service.task(other), 1, 1)
    service.add_worker("again", one.address)
    service.join(service.register(7, dataset_id="chosen"), "other", "OFF", iteration=3)
    return service.records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def filled(path: Path | None, records: list[Record]) -> Journal:
    journal = Journal(path)
    for record in records:
        journal.append([record])
    return journal


def loaded(path: Path) -> State:
    journal = Journal(path)
    try:
        return journal.load()
    finally:
        journal.close()


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, path: Path) -> Path | None:
    return path if request.param == "file" else None


def test_a_journal_leads_to_the_same_state_byte_for_byte(place: Path | None, records: list[Record]) -> None:
    journal = filled(place, records)

    assert journal.load().export() == replay(records).export()
    assert journal.last_number == len(records)
    journal.close()


@pytest.mark.parametrize("at", [0, 1, 20, 40])
def test_a_snapshot_and_the_records_since_lead_to_the_same_state(
    place: Path | None, records: list[Record], at: int
) -> None:
    journal = filled(place, records[:at])
    journal.compact(replay(records[:at]))
    journal.append(records[at:])

    assert journal.load().export() == replay(records).export()
    assert journal.last_number == len(records)
    journal.close()


def test_a_journal_that_was_closed_goes_on_where_it_was(path: Path, records: list[Record]) -> None:
    for at in range(0, len(records), 10):
        journal = Journal(path)
        assert journal.load().export() == replay(records[:at]).export()
        journal.append(records[at : at + 10])
        journal.close()

    assert loaded(path).export() == replay(records).export()


@pytest.mark.slow
def test_killed_at_any_moment_it_holds_what_was_answered(path: Path, tmp_path: Path, records: list[Record]) -> None:
    """What a killed process leaves is what its files hold at that moment: they are copied after each commit."""
    journal, dead = Journal(path), tmp_path / "dead"
    for at in range(1, len(records) + 1):
        journal.append(records[at - 1 : at])
        if at % 25 == 0:
            journal.compact(replay(records[:at]))
        dead.mkdir()
        for file in tmp_path.glob("journal.sqlite*"):
            shutil.copy(file, dead)
        assert loaded(dead / path.name).export() == replay(records[:at]).export()
        shutil.rmtree(dead)
    journal.close()


def test_a_torn_or_damaged_log_leads_to_an_earlier_state_or_is_refused(path: Path, records: list[Record]) -> None:
    journal = filled(path, records)
    log = path.with_name(path.name + "-wal")
    kept = {file: file.read_bytes() for file in (path, log)}
    journal.close()
    states = {replay(records[:at]).export() for at in range(len(records) + 1)}
    dice = random.Random(4)
    refused = earlier = 0
    for _ in range(60):
        for file in path.parent.iterdir():
            file.unlink()
        torn = bytearray(kept[log])
        at = dice.randrange(len(torn))
        if dice.random() < 0.5:
            del torn[at:]
        else:
            torn[at] ^= 1 << dice.randrange(8)
        path.write_bytes(kept[path])
        log.write_bytes(torn)
        try:
            state = loaded(path).export()
        except DataLossError:
            refused += 1
        else:
            earlier += 1
            assert state in states
    assert earlier > 30, f"{refused} of 60 were refused"


def test_a_damaged_file_is_refused_or_harmless(path: Path, records: list[Record]) -> None:
    """SQLite has no checksum for what lies in its file; each row has."""
    filled(path, records).close()
    whole, truth, dice = path.read_bytes(), replay(records).export(), random.Random(5)
    refused = 0
    for _ in range(60):
        spoilt = bytearray(whole)
        spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
        path.write_bytes(spoilt)
        try:
            assert loaded(path).export() == truth
        except (DataLossError, FailedPreconditionError):  # its version may be what is damaged
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    "spoil,told",
    [
        ("UPDATE records SET fields = replace(fields, 'w0', 'w1') WHERE number = 1", "corrupted record 1"),
        ("DELETE FROM records WHERE number = 5", "corrupted record: 5 is missing"),
        ("UPDATE records SET kind = 'Unheard' WHERE number = 3", "corrupted record 3"),
    ],
)
def test_a_damaged_journal_is_refused_with_what_to_do(path: Path, records: list[Record], spoil: str, told: str) -> None:
    filled(path, records).close()
    with sqlite3.connect(path) as connection:
        connection.execute(spoil)
    connection.close()
    before = path.read_bytes()

    with pytest.raises(DataLossError, match=told) as error:
        loaded(path)
    assert str(path) in error.value.what
    assert "move it away to start without it" in error.value.hint
    assert path.read_bytes() == before, "a damaged journal was changed"


def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.write_text("these are my notes, not yours\n" * 100)
    with pytest.raises(DataLossError, match="file is not a database"):
        Journal(path)
    assert path.read_text().startswith("these are my notes")
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(FailedPreconditionError, match="is an SQLite file, and no journal of dsnb"):
        Journal(path)


@pytest.mark.parametrize("version, by", [(FORMAT + 1, "a newer"), (OLDEST_FORMAT - 1, "an older")])
def test_a_journal_of_another_format_is_refused_with_what_to_do(
    path: Path, records: list[Record], version: int, by: str
) -> None:
    filled(path, records).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()

    with pytest.raises(
        FailedPreconditionError, match=rf"by {by} dsnb \(format {version}; this one reads {FORMAT}\)"
    ) as error:
        Journal(path)
    assert "install the dsnb that wrote it" in error.value.hint


def test_a_journal_of_the_oldest_format_is_read_and_its_workers_have_no_data_ports(
    path: Path, records: list[Record]
) -> None:
    filled(path, records).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {OLDEST_FORMAT}")
    connection.close()
    assert {worker.data_port for worker in loaded(path).workers.values()} == {0}
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    connection.close()


def test_one_journal_has_one_dispatcher(path: Path) -> None:
    """Also where the other one is in this process; and whoever comes second changes nothing."""
    journal = Journal(path)
    for _ in range(2):
        with pytest.raises(AlreadyExistsError, match="another dispatcher uses the journal") as error:
            Journal(path)
        assert "use another work_dir" in error.value.hint
    journal.append([ClientLeft(client_id="1")])
    journal.close()
    journal = Journal(path)
    journal.close()


def test_the_lock_dies_with_its_owner(path: Path) -> None:
    with python_process(HOLD.format(path=str(path))) as owner:
        with pytest.raises(AlreadyExistsError):
            Journal(path)
        owner.kill()
        Journal(path).close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_ends_spoils_nothing(path: Path, records: list[Record]) -> None:
    """A user's own fork ends like any interpreter: what it has of the journal must not be closed by it."""
    code = f"""
import os, sys
from pathlib import Path
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import WorkerJoined
journal = Journal(Path({str(path)!r}))
def join(uid):
    journal.append([WorkerJoined(uid=uid, name=uid, address=uid, isolation="thread", pid=1)])
join("a")
if os.fork() == 0:
    sys.exit(0)
os.wait()
join("b")
print("READY", flush=True)
input()
"""
    with python_process(code) as owner:
        with pytest.raises(AlreadyExistsError):
            Journal(path)
        owner.kill()
        assert list(loaded(path).workers) == ["a", "b"]


@pytest.mark.slow
def test_it_does_not_grow_with_history(place: Path | None, records: list[Record], path: Path) -> None:
    journal = filled(place, records)
    state = journal.load()
    for number in range(30_000):
        journal.append([ClientLeft(client_id=str(number))])
        if journal.needs_compaction:
            journal.compact(state)
    if place is not None:
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 8 << 20
        journal.compact(state)
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 64 << 10
    assert journal.last_number == len(records) + 30_000
    journal.close()


def test_a_disk_that_is_full_at_the_start_is_told_and_not_taken_for_damage(path: Path) -> None:
    full = Fault("journal commit/before:fail")
    with failpoint_hook(full), pytest.raises(ResourceExhaustedError, match=r"cannot be written .*full") as error:
        Journal(path)
    assert "free some space" in error.value.hint
    Journal(path).close()


@pytest.fixture
def full_disk(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    pages = journal.database.execute("PRAGMA page_count").fetchone()[0]
    journal.database.execute(f"PRAGMA max_page_count = {pages + 1}")
    yield journal
    journal.close()


def test_a_full_disk_is_told_and_what_was_kept_is_kept(full_disk: Journal, records: list[Record], path: Path) -> None:
    def fill() -> None:
        for record in records * 10:
            full_disk.append([record])

    with pytest.raises(UnavailableError, match=r"cannot be written \(database or disk is full\)") as error:
        fill()
    assert "free some space" in error.value.hint
    kept = full_disk.last_number
    assert kept > 0
    full_disk.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT max(number) FROM records").fetchone() == (kept,)
    connection.close()


def test_a_closed_journal_takes_nothing() -> None:
    journal = Journal()
    journal.close()
    journal.close()
    with pytest.raises(UnavailableError, match="the journal in memory cannot be written"):
        journal.append([ClientLeft(client_id="1")])


WRITE = """
from pathlib import Path
from dsnb.dispatcher.journal import Journal
from dsnb.dispatcher.records import WorkerJoined
from dsnb.dispatcher.state import State

journal, state = Journal(Path({path!r})), State()
for number in range(1_000_000):
    record = WorkerJoined(uid=str(number), name="w", address="host", isolation="thread", pid=1)
    state.apply(record)
    journal.append([record])
    print("READY", number, flush=True)
    if number % 40 == 39:
        journal.compact(state)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 39, 40, 97, 160])
def test_killed_by_the_system_it_holds_all_that_was_answered_and_at_the_most_one_more(path: Path, after: int) -> None:
    with python_process(WRITE.format(path=str(path)), ready=f"READY {after}") as writer:
        writer.kill()
        answered = int(writer.stdout.rpartition("\n")[0].splitlines()[-1].split()[1]) + 1
    state = loaded(path)
    assert len(state.workers) - answered in (0, 1)
    assert list(state.workers) == [str(number) for number in range(len(state.workers))]


# ------------------------------------------------------------------------------------------------------ records as JSON


def test_what_is_written_is_read_back_with_its_kinds_and_its_order(records: list[Record]) -> None:
    state = replay(records)
    state.jobs["öne"] = replace(state.jobs["train"], name="öne", archived_iterations=Ranges([(0, 3), (5, 8)]))
    again = state_from_json(state.export())

    assert again == state
    assert list(again.jobs) == list(state.jobs)
    assert again.export() == state.export()


def put(path: Path, kind: str, text: str) -> None:
    """Write a record whose checksum is right, whatever its text."""
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        row = (1, kind, text, xxhash.xxh3_64_hexdigest(f"1 {kind} {text}".encode()))
        connection.execute("INSERT INTO records VALUES (?, ?, ?, ?)", row)


def test_a_field_that_an_older_version_did_not_write_has_its_default(path: Path) -> None:
    put(path, "WorkerJoined", '{"uid":"u","name":"w0","address":"a:1","isolation":"thread","pid":1}')
    assert loaded(path).workers["u"].static_index == -1


@pytest.mark.parametrize(
    "kind,text,told",
    [
        ("ServiceBegun", "", "truncated"),
        ("ServiceBegun", "[]", "Expected `object`"),
        ("ServiceBegun", "{}", "missing required field"),
        ("ServiceBegun", '{"instance":1}', "Expected `str`, got `int`"),
        ("ServiceBegun", '{"instance":"a","colour":"red"}', "unknown field `colour`"),
        ("TaskPosition", '{"entropy":true}', "TaskPosition"),
        ("WorkerJoined", '{"uid":"u","name":"w0","address":"a:1","isolation":"thread","pid":true}', "got `bool`"),
        ("IterationCreated", '{"providers":[[1,2,3]]}', "length 2"),
    ],
)
def test_what_is_of_another_kind_is_refused(path: Path, kind: str, text: str, told: str) -> None:
    put(path, kind, text)
    with pytest.raises(DataLossError, match=told):
        loaded(path)

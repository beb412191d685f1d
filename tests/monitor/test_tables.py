"""Tables of snapshots, and how they are laid out."""

from __future__ import annotations

from dsnb.monitor.rates import rates
from dsnb.monitor.tables import (
    JOB,
    TRAINER,
    WORKER,
    Table,
    html_table,
    job_table,
    text_table,
    trainer_table,
    worker_table,
)
from tests.dashboard.snapshots import SECOND, job, place, snapshot, task, trainer, worker


def texts(table: Table) -> list[list[str]]:
    """The texts of all cells, by row."""
    return [[cell.text for cell in row.cells] for row in table.rows]


def test_html_table_escapes_text_of_users() -> None:
    table = Table.of_text(["a"], [["<b>"]])
    assert html_table(table) == "<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>"


def test_text_table_aligns_numbers_right_and_is_empty_without_rows() -> None:
    table = worker_table([worker("w0", produced=5), worker("w10", produced=1234)], ["worker", "produced"])
    assert text_table(table) == ["  worker  produced", "  w0             5", "  w10        1,234"]
    assert text_table(Table.of_text(["a"], [])) == []


def test_rates_are_a_dash_while_they_are_unknown() -> None:
    assert texts(worker_table([worker()], ["busy", "rate", "sent_rate"])) == [["–", "–", "–"]]
    assert texts(job_table([job()], ["rate"])) == [["–"]]
    assert texts(trainer_table(job(trainers=(trainer("a"),)), ["rate", "wait", "own_loop"])) == [["–", "–", "–"]]


def test_shares_are_of_the_last_seconds_if_rates_are_known() -> None:
    def at(seconds: int, wait: float) -> tuple[object, ...]:
        one = trainer("a", elements=seconds, active_ns=seconds * SECOND, wait_ns=int(wait * SECOND))
        return (job(trainers=(one,)),)

    before, after = (snapshot(seq, jobs=at(seq, wait)) for seq, wait in ((2, 1.0), (4, 2.5)))
    [known] = texts(trainer_table(after.jobs[0], ["wait", "own_loop"], rates(before, after)))
    assert known == ["75 %", "25 %"]
    [overall] = texts(trainer_table(after.jobs[0], ["wait", "own_loop"]))
    assert overall == ["62 %", "38 %"]


def test_a_loss_of_unknown_size_is_not_shown_as_a_number() -> None:
    readers = (trainer("a"), trainer("b", lost=7), trainer("c", lost_parts=1), trainer("d", lost=7, lost_parts=2))
    table = trainer_table(job(trainers=readers), ["lost", "skipped_and_lost"])
    assert texts(table) == [
        ["0", "0"],
        ["7", "0 + 7 lost"],
        ["unknown", "0 + unknown lost"],
        ["7 + unknown", "0 + 7 + unknown lost"],
    ]
    assert table.rows[3].cells[0].title == "of 2 parts of lost workers the number is unknown"


def test_readers_without_the_cache_are_called_clients() -> None:
    for cached, title in ((True, "trainer"), (False, "client")):
        table = trainer_table(job(cached=cached, trainers=(trainer("7"),)), ["trainer"])
        assert [column.title for column in table.columns] == [title]


def test_every_column_has_a_cell() -> None:
    one = trainer("a", lost=2, skipped=1, cursors=(place(lag=3),))
    full = job(trainers=(one,), tasks=(task(head=5),))
    tables = worker_table([worker()], WORKER), job_table([full], JOB), trainer_table(full, TRAINER)
    for table in tables:
        assert len(table.rows[0].cells) == len(table.columns)
    assert "1 + 2 lost" in texts(tables[2])[0]


def test_workers_of_several_hosts_are_shown_with_their_host() -> None:
    columns = ["worker", "host"]
    assert texts(worker_table([worker("w0", host="a"), worker("w1", host="a")], columns)) == [["w0"], ["w1"]]
    assert texts(worker_table([worker("w0", host="a"), worker("w1", host="b")], columns)) == [["w0", "a"], ["w1", "b"]]

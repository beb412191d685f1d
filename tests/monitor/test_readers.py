"""How readers are called: never by an id that only the dispatcher knows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dsnb.cli.top import screen_lines
from dsnb.dashboard.panels.cards import cards
from dsnb.dashboard.panels.trainers import trainers
from dsnb.dashboard.panels.waits import waits
from dsnb.monitor.html_report import render_html_report
from dsnb.monitor.readers import origin_text, reader_label, reader_name
from dsnb.monitor.snapshot import JobStatus, Snapshot, TrainerStatus
from dsnb.monitor.status_html import status_tables
from dsnb.monitor.status_text import status_text
from dsnb.monitor.verdict import latest_verdicts
from dsnb.wire.messages import ClientOrigin
from tests.dashboard.snapshots import SECOND, job, seen, snapshot, trainer

CELL = ClientOrigin(cell=3, pid=4711, ordinal=1)
SCRIPT = ClientOrigin(pid=4712, ordinal=1)
REMOTE = ClientOrigin(cell=3, pid=4711, host="laptop", ordinal=2)


def clients(*origins: ClientOrigin | None) -> JobStatus:
    """A job of clients that share nothing."""
    known = tuple(trainer(str(3000 + at), elements=1, origin=origin) for at, origin in enumerate(origins))
    return job(cached=False, trainers=known)


def labels(of: JobStatus) -> list[str]:
    return [reader_label(of, one) for one in of.trainers]


def names(of: JobStatus) -> list[str]:
    return [reader_name(of, one) for one in of.trainers]


def test_what_is_not_known_of_a_place_is_left_out() -> None:
    assert [*map(origin_text, (CELL, SCRIPT, REMOTE))] == [
        "cell 3 of process 4711",
        "process 4712",
        "cell 3 of process 4711 on laptop",
    ]


def test_a_client_is_called_by_its_cell_process_and_host() -> None:
    assert labels(clients(CELL, SCRIPT, REMOTE)) == [
        "the client in cell 3 of process 4711",
        "the client in process 4712",
        "the client in cell 3 of process 4711 on laptop",
    ]


def test_a_table_names_the_process_of_a_cell_only_if_there_are_several() -> None:
    assert names(clients(CELL)) == ["cell 3"]
    assert names(clients(CELL, REMOTE)) == ["cell 3, process 4711", "cell 3, process 4711 on laptop"]
    assert names(clients(CELL, SCRIPT)) == ["cell 3, process 4711", "process 4712"]


@pytest.mark.parametrize("number, word", [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (22, "22nd"), (4, "4th")])
def test_clients_of_one_cell_are_counted_through(number: int, word: str) -> None:
    found = clients(ClientOrigin(cell=3, pid=4711, ordinal=number), ClientOrigin(cell=3, pid=4711, ordinal=90))
    assert names(found) == [f"cell 3 ({word})", "cell 3 (90th)"]
    assert labels(found)[0] == f"the {word} client in cell 3 of process 4711"


def test_readers_with_a_name_keep_it() -> None:
    shared = job(trainers=(trainer("slow", origin=CELL),))
    assert (labels(shared), names(shared)) == (["trainer 'slow'"], ["slow"])
    rounds = job(cached=False, num_consumers=1, trainers=(trainer("consumer 0", origin=CELL),))
    assert (labels(rounds), names(rounds)) == (["consumer 0"], ["consumer 0"])


def test_a_client_that_has_not_reported_yet_is_called_by_its_id() -> None:
    assert (labels(clients(None)), names(clients(None))) == (["the client with the id 3000"], ["3000"])


def test_no_client_is_called_by_its_id_wherever_people_read() -> None:
    before, after = (waiting(seconds) for seconds in (2, 5))
    told = latest_verdicts([before, after])
    assert ["the client in cell 3 of process 4711 waits 90 %" in one.text for one in told] == [True]
    past = [str(one) for one in latest_verdicts([snapshot(5, jobs=(finished(after),))])]
    assert "the client in cell 3 of process 4711 waited 90 %" in past[0]
    texts = [status_text(after), status_tables(after), render_html_report([before, after], told)]
    page = seen(before, after)
    texts.append("\n".join(screen_lines([before, after], 120)))
    texts += [cards(page), waits(page), trainers(page)]
    for text in texts:
        assert "cell 3" in text
        assert "'3000'" not in text
        assert ">3000<" not in text


def waiting(seconds: int) -> Snapshot:
    """A client has waited for nine tenths of so many seconds."""
    spent = {"active_ns": seconds * SECOND, "wait_ns": int(0.9 * seconds * SECOND)}
    reader: TrainerStatus = trainer("3000", elements=seconds, origin=CELL, **spent)
    return snapshot(seconds, jobs=(job(cached=False, consumed=seconds, trainers=(reader,)),))


def finished(now: Snapshot) -> JobStatus:
    """The only job of a snapshot, after its end."""
    return replace(now.jobs[0], state="finished", clients=0)

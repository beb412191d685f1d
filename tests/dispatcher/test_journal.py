from __future__ import annotations

from dsnb.dispatcher.journal import MemoryJournal
from dsnb.dispatcher.records import ClientLeft
from dsnb.dispatcher.state import replay
from tests.dispatcher.simulation import Service


def test_a_journal_gives_its_records_back_in_order() -> None:
    service = Service()
    worker = service.add_worker("w")
    service.join(service.register(20), "train")
    service.finish(worker, service.task(worker))
    journal = MemoryJournal()
    for record in service.records:
        journal.append([record])
    assert list(journal) == service.records
    assert journal.complete
    assert replay(list(journal)).export() == service.core.state.export()


def test_a_journal_that_nobody_reads_does_not_grow_for_ever_and_says_that_it_is_not_whole() -> None:
    journal = MemoryJournal(keep=100)
    for number in range(1000):
        journal.append([ClientLeft(client_id=str(number))])
    assert len(list(journal)) <= 100
    assert not journal.complete

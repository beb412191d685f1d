"""Receipts: what was delivered of an epoch, what is missing, and what came twice."""

from __future__ import annotations

import pytest

from dsnb.dispatcher.handlers.jobs import MAX_FINISHED_ITERATIONS
from dsnb.dispatcher.handlers.receipts import receipt, requested_receipt
from dsnb.dispatcher.state import MAX_LAST_RECEIPTS
from dsnb.errors import NotFoundError
from dsnb.monitor.receipt import UNKNOWN, Receipt
from dsnb.wire.messages import ReceiptRequest
from tests.dispatcher.actors import SimClient
from tests.dispatcher.simulation import Service

AT_RANDOM = "it draws at random"


def told(service: Service, job: str = "train", epoch: int = 1) -> Receipt:
    return receipt(service.core, service.core.state.jobs[job], epoch - 1)


def read_to_the_end(service: Service, *clients: SimClient) -> None:
    """Let all workers make what is left, and the clients read it, and leave."""
    for worker in list(service.workers.values()):
        for task in list(worker.tasks.values()):
            service.exhaust(task)
    while sum(len(service.read(client)) for client in clients):
        pass  # a worker sends more when it knows what was consumed
    for worker in list(service.workers.values()):
        service.report(worker)
    for client in clients:
        service.see_end(client)
    for client in clients:
        if client.client_id in service.clients:
            service.close(client)


def test_an_epoch_in_which_nothing_happened_was_delivered_once() -> None:
    service = Service()
    service.add_worker("v")
    service.add_worker("w")
    read_to_the_end(service, service.join(service.countable(40), "train"))
    assert str(told(service)).startswith("epoch 1 of job 'train': 40 of 40 elements, each once")
    assert told(service).each_once


def test_an_epoch_that_is_read_says_how_far_it_is() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.countable(40), "train")
    service.ask(service.task(worker))
    had = len(service.read(client))
    service.report(worker)
    assert not told(service).over
    assert str(told(service)).startswith(f"epoch 1 of job 'train' is not over yet: {had} of 40 elements so far")


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_two_readers_and_a_worker_that_is_killed_make_each_element_come_once(restarts: bool) -> None:
    service = Service()
    first, _ = service.add_worker("v"), service.add_worker("w")
    dataset = service.countable(40)
    one, other = service.join(dataset, "train"), service.join(dataset, "train")
    service.ask(service.task(first), want=8)
    service.read(one, 3)
    service.read(other, 2)
    service.kill(first)
    for client in (one, other):
        service.hear(client)
    if restarts:
        service.restart()
    read_to_the_end(service, one, other)
    found = told(service)
    assert found.each_once, found
    assert sum(reader.elements for reader in found.readers) == found.expected == 40


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_what_a_lost_worker_did_not_deliver_is_counted_with_its_splits(restarts: bool) -> None:
    service = Service()
    worker, _ = service.add_worker("v"), service.add_worker("w")
    client = service.join(service.countable(40, inexact_reason=AT_RANDOM), "train")
    given = service.ask(service.task(worker), want=8)
    service.read(client, 3)
    service.report(worker)
    service.kill(worker)
    service.hear(client)
    read_to_the_end(service, client)
    if restarts:
        service.restart()
    found = told(service)
    missing = given.end - given.first - 3
    assert (found.delivered, found.missing, found.twice) == (40 - missing, missing, 0)
    lost = found.parts[0]
    assert lost.missing_at == (f"splits {given.first + 3} to {given.end - 1} of range(40)",)
    assert not lost.exact
    assert f"{missing} did not arrive (among splits {given.first + 3} to {given.end - 1} of range(40))" in str(found)


def test_the_missing_splits_are_named_exactly_if_elements_come_in_their_order() -> None:
    service = Service()
    worker, _ = service.add_worker("v"), service.add_worker("w")
    dataset = service.countable(40, in_split_order=True)
    one, other = (service.join(dataset, "train", on_worker_loss="drop") for _ in range(2))
    given = service.ask(service.task(worker), want=8)
    service.open(one)
    for hold in one.holds.values():
        service.send(one, hold, 2)
    one.receive(2)
    service.read(other, 3)
    service.report(worker)
    service.kill(worker)
    for client in (one, other):
        service.hear(client)
    service.close(one)  # it has the first two elements, and did not consume them
    read_to_the_end(service, other)
    found = told(service)
    lost = found.parts[0]
    assert (lost.exact, lost.missing_at) == (True, ("splits 0 to 1 of range(40)", "splits 5 to 7 of range(40)"))
    assert (given.first, given.end, found.missing, found.twice) == (0, 8, 5, 0)


def test_the_missing_elements_of_a_shard_are_named() -> None:
    service = Service()
    worker, _ = service.add_worker("v"), service.add_worker("w")
    client = service.join(service.register(cardinality=20), "train", mode="DATA", on_worker_loss="drop")
    service.make(service.task(worker), 4)
    had = service.read(client, 4)
    service.kill(worker)
    service.hear(client)
    read_to_the_end(service, client)
    assert told(service).parts[0].missing_at == (f"elements {len(had)} to 9 of shard 0",)


def test_a_lost_worker_of_data_of_unknown_length_makes_the_number_unknown() -> None:
    service = Service()
    worker, _ = service.add_worker("v"), service.add_worker("w")
    client = service.join(service.register(40, inexact_reason=AT_RANDOM), "train")
    service.ask(service.task(worker), want=8)
    service.read(client, 3)
    service.kill(worker)
    service.hear(client)
    read_to_the_end(service, client)
    found = told(service)
    assert (found.expected, found.missing) == (UNKNOWN, UNKNOWN)
    assert "how many did not arrive is not known" in str(found)


def test_a_reader_that_died_makes_it_unknown_what_came_twice() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.countable(40)
    doomed, other = service.join(dataset, "train"), service.join(dataset, "train")
    service.ask(service.task(worker), want=8)
    service.read(doomed, 4, tell=False)
    service.kill_client(doomed)
    service.wait(service.config.client_timeout_ms / 1000 + 1, lambda: service.keep_alive(doomed))
    read_to_the_end(service, other)
    found = told(service)
    assert (found.missing, found.twice) == (0, UNKNOWN)
    assert [reader.state for reader in found.readers] == ["died", "left"]
    assert "died without reporting the last elements consumed" in str(found)


def test_what_a_reader_that_came_back_and_another_one_had_is_counted_as_twice() -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.countable(40)
    sleeper, other = service.join(dataset, "train"), service.join(dataset, "train")
    service.ask(service.task(worker), want=8)
    had = len(service.read(sleeper, 4, tell=False))
    service.suspend(sleeper)
    service.wait(service.config.client_timeout_ms / 1000 + 1, lambda: service.keep_alive(sleeper))
    service.read(other)
    again = service.wake(sleeper)
    read_to_the_end(service, other, again)
    found = told(service)
    assert (found.delivered, found.missing, found.twice) == (40, 0, had)
    assert f"{had} came twice" in str(found)


def test_splits_that_began_again_make_it_unknown_what_came_twice_and_nothing_is_missing() -> None:
    service = Service()
    worker, _ = service.add_worker("v"), service.add_worker("w")
    client = service.join(service.countable(40, inexact_reason=AT_RANDOM), "train", on_worker_loss="repeat")
    service.ask(service.task(worker), want=8)
    service.read(client, 3, tell=False)
    service.kill(worker)
    service.hear(client)
    read_to_the_end(service, client)
    found = told(service)
    assert (found.delivered, found.missing, found.twice) == (40, 0, UNKNOWN)
    assert "unfinished splits began again 1 time: elements of these may have come twice" in str(found)


def test_consumers_of_rounds_are_counted_one_by_one() -> None:
    service = Service()
    service.add_worker("w")
    dataset = service.register(40, cardinality=40)
    for index in range(2):
        service.join(dataset, "train", num_consumers=2, consumer_index=index, at_end="drop")
    found = told(service)
    assert not found.over
    assert len(found.readers) == 2
    assert found.delivered == UNKNOWN, "they have not said it yet"


def test_each_worker_of_mode_off_has_a_line_of_its_own() -> None:
    service = Service()
    service.add_worker("v")
    service.add_worker("w")
    dataset = service.register(cardinality=10)
    read_to_the_end(service, service.join(dataset, "train", mode="OFF"))
    found = told(service)
    assert (found.expected, found.each_once) == (20, True)
    assert [part.delivered for part in found.parts] == [10, 10]
    assert "part of worker w0 (done): 10 of 10 elements" in str(found)


def test_receipts_outlast_their_epochs_and_the_dispatcher_and_end_with_the_job() -> None:
    service = Service()
    service.add_worker("w")
    dataset = service.countable(10)
    for number in range(MAX_FINISHED_ITERATIONS + 3):
        read_to_the_end(service, service.join(dataset, "train", iteration=number))
        service.tick()
    assert 0 in service.core.state.jobs["train"].archived_iterations
    before = told(service)
    assert before.each_once
    service.restart()
    assert told(service) == before
    late = service.join(dataset, "train", iteration=0)  # it finds the epoch over and empty
    service.close(late)
    assert told(service) == before
    with pytest.raises(NotFoundError, match="there is no receipt of epoch 99 of job 'train'"):
        told(service, epoch=99)


def left_by(service: Service, job: str, epoch: int = 0) -> Receipt:
    """The receipt as a user asks for it."""
    return requested_receipt(service.core, ReceiptRequest(job_name=job, epoch=epoch))


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarted"])
def test_a_cancelled_job_leaves_what_had_been_consumed_by_then(restarts: bool) -> None:
    service = Service()
    worker = service.add_worker("w")
    dataset = service.countable(40)
    client = service.join(dataset, "train")
    service.ask(service.task(worker), want=8)
    had = len(service.read(client, 5))
    service.report(worker)
    service.keep_alive(client)
    service.cancel("train")
    if restarts:
        service.restart()
    found = left_by(service, "train")
    assert str(found) == (
        f"epoch 1 of job 'train' was cancelled by anna: {had} of 40 elements had been reported as consumed by then"
    )
    assert (found.each_once, found.over, found.missing, found.twice) == (False, False, UNKNOWN, UNKNOWN)
    with pytest.raises(NotFoundError, match="the job is gone, and left only the receipt of its newest epoch, 1"):
        left_by(service, "train", epoch=2)
    service.join(dataset, "train")
    assert not left_by(service, "train").stopped, "that of the new job"


def test_a_job_that_is_cancelled_after_its_last_epoch_leaves_that_receipt() -> None:
    service = Service()
    service.add_worker("w")
    read_to_the_end(service, service.join(service.countable(40), "train"))
    before = told(service)
    service.cancel("train")
    assert left_by(service, "train") == before
    assert before.each_once


def test_an_anonymous_job_leaves_its_receipt() -> None:
    service = Service()
    worker = service.add_worker("w")
    client = service.join(service.countable(40))
    read_to_the_end(service, client)
    assert client.job not in service.core.state.jobs
    assert left_by(service, client.job).each_once
    early = service.join(service.countable(40))
    service.ask(service.task(worker), want=8)
    had = len(service.read(early, 5))
    service.close(early)
    expected = f"was left by its reader: {had} of 40 elements had been reported as consumed by then"
    assert expected in str(left_by(service, early.job))


def test_only_the_newest_receipts_of_jobs_that_are_gone_are_kept() -> None:
    service = Service()
    service.add_worker("w")
    dataset, names = service.countable(2), list[str]()
    for _ in range(MAX_LAST_RECEIPTS + 1):
        client = service.join(dataset)
        names.append(client.job)
        read_to_the_end(service, client)
    assert list(service.core.state.last_receipts) == names[1:]
    with pytest.raises(NotFoundError, match="there is no job"):
        left_by(service, names[0])


def receipt_of_two(*digests: bytes, cached: bool = False) -> Receipt:
    """The receipt of an epoch whose readers had these digests."""
    service = Service()
    worker = service.add_worker("w")
    dataset = service.countable(10)
    ids = [f"trainer{number}" if cached else "" for number in range(len(digests))]
    clients = [service.join(dataset, "train", cached=cached, trainer_id=trainer) for trainer in ids]
    service.ask(service.task(worker), want=4)
    for client, digest in zip(clients, digests, strict=True):
        client.digest = digest
        service.read(client, 2)
    read_to_the_end(service, *clients)
    return told(service)


@pytest.mark.parametrize(
    "digests, cached, digest, note",
    [
        pytest.param((b"\x01", b"\x02"), False, f"{3:032x}", "", id="sum"),
        pytest.param((b"\x01", b""), False, "", "not every reader reported a digest of contents", id="one without"),
        pytest.param((b"", b""), False, "", "", id="none"),
        pytest.param((b"\x01", b"\x01"), True, f"{1:032x}", "", id="same for trainers"),
        pytest.param((b"\x01", b"\x02"), True, "", "trainers consumed different contents", id="trainers differ"),
    ],
)
def test_the_digests_of_readers_are_added_and_those_of_trainers_compared(
    digests: tuple[bytes, ...], cached: bool, digest: str, note: str
) -> None:
    found = receipt_of_two(*digests, cached=cached)
    assert found.digest == digest
    assert note in str(found)
    assert ("digest" in str(found) or "contents" in str(found)) == bool(digest or note)

"""A window that takes over from one whose worker died: each element reaches each trainer once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from dsnb.wire.messages import CachePolicy, IndexRange, ReaderPosition, TrainerPosition
from dsnb.wire.ranges import Ranges, split_ranges
from dsnb.worker.shared_log import FIRST_GRANT, SharedLog

WAIT = CachePolicy(on_lag="wait")


@dataclass
class Client:
    """A reader as it is: what it received in order, and how much of that it consumed."""

    name: str
    trainer: str
    received: list[int] = field(default_factory=list)
    consumed: int = 0
    acknowledged: int = 0
    alive: bool = True

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(index, index + 1) for index in self.received]

    def consume(self, count: int) -> list[int]:
        taken = self.received[self.consumed : self.consumed + count]
        self.consumed += len(taken)
        return taken

    def position(self) -> ReaderPosition:
        held = split_ranges(self.ranges, self.consumed)[1]
        return ReaderPosition(
            client_id=self.name, received=len(self.received), held=tuple(IndexRange(first=a, end=b) for a, b in held)
        )


class World:
    """Clients that outlive the windows they read from."""

    def __init__(self, seed: int, *, keep: bool) -> None:
        self.random = random.Random(seed)
        self.keep = keep
        self.length = self.random.randint(1, 400)
        trainers = ["a", "b", "c"] if keep else [""]
        self.clients = [
            Client(f"{trainer}{n}", trainer) for trainer in trainers for n in range(self.random.randint(1, 2))
        ]
        self.seen: dict[str, Counter[int]] = {trainer: Counter() for trainer in trainers}
        self.uncertain: set[int] = set()
        """Elements that a client consumed and did not acknowledge before it died."""
        self.window = self._window(0)
        self._attach()

    def _window(self, first: int) -> SharedLog:
        return SharedLog(capacity=1 << 20, read_ahead_bytes=1 << 12, keep=self.keep, first=first)

    def _attach(self) -> None:
        for client in self.alive:
            received, consumed = len(client.received), client.consumed
            self.window.attach(client.name, client.trainer, received, consumed, WAIT if self.keep else CachePolicy())
            client.acknowledged = consumed

    @property
    def alive(self) -> list[Client]:
        return [client for client in self.clients if client.alive]

    def step(self) -> None:
        if self.window.wants_more() and self.random.random() < 0.5:
            self.produce()
        client = self.random.choice(self.alive)
        granted = len(client.received) + self.random.randint(0, 90)
        if self.random.random() < 0.7:
            client.acknowledged = client.consumed
        self.window.credit(client.name, granted, client.acknowledged, 1 << 20)
        self.window.validate()
        for taken in self.window.take_all(client.name):
            client.received += range(taken.index, taken.index + taken.count)
        self.window.validate()
        self.seen[client.trainer].update(client.consume(self.random.randint(0, 40)))

    def produce(self) -> None:
        count = min(self.random.randint(1, 30), self.length - self.window.head)
        if count:
            self.window.append(object(), count, count * 4)
        if self.window.head == self.length:
            self.window.finish()
        self.window.validate()

    def kill_a_client(self) -> None:
        client = self.random.choice(self.alive)
        client.alive = False
        self.uncertain |= set(client.received[client.acknowledged : client.consumed])
        self.window.leave(client.name)
        successor = Client(client.name + "'", client.trainer)
        self.clients.append(successor)
        self.window.attach(successor.name, successor.trainer, cache_policy=WAIT if self.keep else CachePolicy())
        self.window.validate()

    def move(self) -> None:
        """The worker dies: another one takes over with what was reported, and what living clients tell."""
        reported = {
            name: (self.window.offset(name), Ranges(t.consumed_ranges)) for name, t in self.window.trainers.items()
        }
        first = min(offset for offset, _ in reported.values())
        positions = []
        for name, (offset, done) in reported.items():
            readers = [client for client in self.alive if client.trainer == name]
            for client in readers:
                done.update(split_ranges(client.ranges, client.consumed)[0])
            positions.append(
                TrainerPosition(
                    trainer_id=name,
                    offset=offset,
                    consumed=tuple(IndexRange(first=a, end=b) for a, b in done if b > first),
                    readers=tuple(client.position() for client in readers),
                )
            )
        self.window = self._window(first)
        self.window.take_over(positions)
        self.window.validate()
        if self.random.random() < 0.5:
            self.produce()  # before its readers have come
        self._attach()

    def finish(self) -> None:
        for _ in range(20_000):
            for client in self.alive:
                self.seen[client.trainer].update(client.consume(50))
                client.acknowledged = client.consumed
                self.window.credit(client.name, len(client.received) + 50, client.consumed, 1 << 20)
                for taken in self.window.take_all(client.name):
                    client.received += range(taken.index, taken.index + taken.count)
            if self.window.wants_more():
                self.produce()
            ended = all(self.window.at_end(client.name) for client in self.alive)
            if ended and all(client.consumed == len(client.received) for client in self.alive):
                return
        raise AssertionError("the end never comes")


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("seed", range(300))
def test_each_element_reaches_each_trainer_once_though_workers_and_readers_die(seed: int, keep: bool) -> None:
    world = World(seed, keep=keep)
    for _ in range(world.random.randint(1, 120)):
        world.step()
        if world.random.random() < 0.04:
            world.move()
        elif world.random.random() < 0.02:
            world.kill_a_client()
    world.finish()
    for seen in world.seen.values():
        assert set(seen) == set(range(world.length)), "an element never came"
        assert {index for index, count in seen.items() if count > 1} <= world.uncertain, "an element came twice"
    assert world.window.short_by == 0
    assert keep or world.window.done


def test_a_pipeline_that_makes_fewer_elements_than_before_still_ends_and_says_so() -> None:
    window = SharedLog(capacity=1 << 20, read_ahead_bytes=1 << 12, keep=False)
    window.take_over(
        [
            TrainerPosition(
                trainer_id="",
                consumed=(IndexRange(first=0, end=3),),
                readers=(ReaderPosition(client_id="r", received=9, held=(IndexRange(first=3, end=9),)),),
            )
        ]
    )
    window.append(object(), 5, 5)
    window.finish()
    window.leave("r")
    assert window.short_by == 4
    window.attach("s", "")
    window.credit("s", 10, 0, 1 << 20)
    assert [(taken.index, taken.count) for taken in window.take_all("s")] == [(3, 2)]
    assert window.at_end("s")


def test_a_trainer_that_never_opens_the_taken_over_task_does_not_block_the_others_for_ever() -> None:
    window = SharedLog(capacity=20, read_ahead_bytes=10, keep=True, keep_all=True)
    window.take_over([TrainerPosition(trainer_id="gone", offset=2), TrainerPosition(trainer_id="here")])
    window.attach("h", "here", cache_policy=WAIT)
    window.expire(100.0)
    got = 0
    for _ in range(100):
        window.credit("h", got + 10, got, 1 << 20)
        got += sum(taken.count for taken in window.take_all("h"))
        if window.wants_more():
            window.append(object(), 1, 1)
        if window.closing:
            window.close_to_new_trainers([])
    assert window.head <= 22, "what it has not read stays for some time"
    window.expire(161.0)
    for _ in range(100):
        if window.wants_more():
            window.append(object(), 1, 1)
        window.credit("h", got + 10, got, 1 << 20)
        got += sum(taken.count for taken in window.take_all("h"))
    assert got > 60


def test_two_readers_share_a_small_pass_fairly() -> None:
    window = SharedLog(capacity=1 << 20, read_ahead_bytes=1 << 20, keep=False)
    window.attach("slow", "")
    window.credit("slow", 1 << 30, 0, 1 << 30)
    window.append(object(), 200, 200)
    window.finish()
    assert sum(taken.count for taken in window.take_all("slow")) == FIRST_GRANT
    window.attach("fast", "")
    got = 0
    for _ in range(40):
        window.credit("fast", 1 << 30, got, 1 << 30)
        got += sum(taken.count for taken in window.take_all("fast"))
    assert got == 200 - FIRST_GRANT
    assert window.at_end("fast"), "the end of one reader waits for another's consumption"
    assert not window.done


def test_bytes_are_counted_when_what_a_reader_had_before_is_consumed_before_others_come_to_it() -> None:
    window = SharedLog(capacity=1 << 20, read_ahead_bytes=1 << 12, keep=False)
    had = ReaderPosition(client_id="a", received=3, held=(IndexRange(first=5, end=8),))
    window.take_over([TrainerPosition(trainer_id="", readers=(had,))])
    window.attach("a", "", received=3)
    window.attach("b", "")
    for _ in range(8):
        window.append(object(), 1, 8)
    window.credit("b", 5, 0, 1 << 20)
    assert sum(taken.count for taken in window.take_all("b")) == 5
    window.credit("a", 3, 3, 1 << 20)
    window.credit("b", 5, 5, 1 << 20)
    window.validate()
    assert window.wants_more()


def test_what_is_evicted_while_a_trainer_is_away_counts_as_missed_when_it_returns_after_a_take_over() -> None:
    log = SharedLog(capacity=10, read_ahead_bytes=1000, keep=True)
    for trainer in ("here", "away"):
        log.attach(trainer, trainer, cache_policy=WAIT)
        log.credit(trainer, 3, 0, 1 << 30)
    taken = Counter[str]()
    log.append(object(), 3, 3)
    log.take_all("away")
    read(log, "here", taken)
    log.leave("away", 3)
    log.remove_unread_trainers()
    for _ in range(4):
        log.append(object(), 5, 5)
        read(log, "here", taken)
    assert (log.base, log.resume_index()) == (13, 13)

    successor = take_over(log, "here", taken["here"])
    successor.attach("again", "away", cache_policy=WAIT)
    successor.credit("again", 1000, 0, 1 << 30)
    successor.append(object(), 10, 10)
    successor.finish()
    assert read(successor, "again", Counter()) == 10
    trainer = successor.trainer_report("away")
    assert (trainer.consumed, trainer.skipped) == (10, 10), "it has the first 3 and the last 10 of 23"
    assert trainer.consumed_ranges == (IndexRange(first=0, end=23),), "it is counted once"
    assert successor.trainer_report("here").skipped == 0
    successor.validate()


def test_what_a_returned_client_consumed_before_the_log_begins_was_not_repeated() -> None:
    log = SharedLog(capacity=100, read_ahead_bytes=1000, keep=True, first=13)
    log.take_over([TrainerPosition(trainer_id="a", offset=13, readers=(ReaderPosition(client_id="again"),))])
    log.attach("again", "a", cache_policy=WAIT)
    assert log.reconcile("a", [(0, 13)]) == 0


@pytest.mark.parametrize("keep", [False, True], ids=["shared", "cached"])
@pytest.mark.parametrize("made_before", [0, 2, 6])
def test_what_a_returned_client_consumed_and_nobody_reported_is_not_sent_again(made_before: int, keep: bool) -> None:
    """Its worker died before it reported, and the next one took over while the client counted as lost."""
    log = SharedLog(capacity=1000, read_ahead_bytes=1000, keep=keep)
    log.take_over([TrainerPosition(trainer_id="a")])
    for _ in range(made_before):
        log.append(object(), 1, 1)
    log.attach("again", "a", cache_policy=WAIT if keep else CachePolicy())
    assert log.reconcile("a", [(0, 1), (3, 5)]) == 0
    for _ in range(6 - made_before):
        log.append(object(), 1, 1)
    log.finish()
    log.credit("again", 100, 0, 1 << 20)
    assert [taken.index for taken in log.take_all("again")] == [1, 2, 5]
    log.credit("again", 100, 3, 1 << 20)
    assert log.trainer_report("a").consumed_ranges == (IndexRange(first=0, end=6),)
    assert log.done
    log.validate()


@pytest.mark.parametrize("made_before", [0, 2, 6])
def test_what_a_returned_client_held_at_the_take_over_and_then_consumed_is_not_sent_again(made_before: int) -> None:
    log = SharedLog(capacity=1000, read_ahead_bytes=1000, keep=False)
    had = ReaderPosition(client_id="lost", received=2, held=(IndexRange(first=3, end=5),))
    log.take_over([TrainerPosition(trainer_id="a", readers=(had,))])
    for _ in range(made_before):
        log.append(object(), 1, 1)
    log.leave("lost")
    log.attach("again", "a")
    assert log.reconcile("a", [(3, 5)]) == 0
    for _ in range(6 - made_before):
        log.append(object(), 1, 1)
    log.finish()
    log.credit("again", 100, 0, 1 << 20)
    assert [taken.index for taken in log.take_all("again")] == [0, 1, 2, 5]
    log.credit("again", 100, 4, 1 << 20)
    assert log.done
    log.validate()


def test_what_is_evicted_while_elements_are_made_again_counts_as_skipped() -> None:
    log = SharedLog(capacity=10, read_ahead_bytes=1000, keep=True)
    log.take_over(
        [
            TrainerPosition(trainer_id="fast", offset=30, readers=(ReaderPosition(client_id="fast", received=30),)),
            TrainerPosition(trainer_id="slow", readers=(ReaderPosition(client_id="slow"),)),
        ]
    )
    log.attach("slow", "slow", cache_policy=CachePolicy(on_lag="skip"))
    for _ in range(30):
        log.append(object(), 1, 1)
    log.credit("slow", 1000, 0, 1 << 30)
    taken = Counter[str]()
    while read(log, "slow", taken):
        pass
    slow = log.trainer_report("slow")
    assert (slow.consumed, slow.skipped) == (10, 20)
    log.validate()


@pytest.mark.parametrize("policy", [CachePolicy(on_lag="skip"), CachePolicy(on_lag="wait", start="newest")])
def test_what_went_before_is_not_for_a_trainer_that_comes_after_a_take_over_and_does_not_want_all(
    policy: CachePolicy,
) -> None:
    log = SharedLog(capacity=100, read_ahead_bytes=1000, keep=True, keep_all=True, first=13)
    log.take_over([TrainerPosition(trainer_id="late", readers=(ReaderPosition(client_id="late"),))])
    log.attach("late", "late", cache_policy=policy)
    log.credit("late", 1000, 0, 1 << 30)
    log.append(object(), 10, 10)
    assert read(log, "late", Counter()) == 10
    assert log.trainer_report("late").skipped == 0


@pytest.mark.parametrize("leaves", [False, True])
def test_a_trainer_that_skips_after_a_take_over_is_counted_what_it_misses_and_nothing_that_it_has(leaves: bool) -> None:
    skip, length = CachePolicy(on_lag="skip"), 100
    log = SharedLog(capacity=40, read_ahead_bytes=1000, keep=True)
    held = ReaderPosition(client_id="busy", received=13, held=(IndexRange(first=20, end=30),))
    other = ReaderPosition(client_id="other")
    slow = TrainerPosition(trainer_id="slow", consumed=(IndexRange(first=15, end=18),), readers=(held, other))
    log.take_over([slow, TrainerPosition(trainer_id="fast", readers=(ReaderPosition(client_id="fast"),))])
    log.attach("busy", "slow", 13, 3, skip)
    for client, trainer in (("other", "slow"), ("fast", "fast")):
        log.attach(client, trainer, cache_policy=skip)
        log.credit(client, 1000, 0, 1 << 30)
    if leaves:
        log.leave("busy")
    taken = Counter[str]()
    for _ in range(length):
        log.append(object(), 1, 1)  # type: ignore[arg-type]  # nobody looks into it
        read(log, "fast", taken)
    log.finish()
    while read(log, "other", taken):
        pass
    if not leaves:
        log.credit("busy", 13, 13, 1 << 30)
    trainer = log.trainers["slow"]
    assert 3 + trainer.consumed + trainer.skipped == length
    log.validate()


def take_over(log: SharedLog, client: str, consumed: int) -> SharedLog:
    """The log of a worker that takes over where all trainers need nothing before, with one reader."""
    first = log.resume_index()
    assert first is not None
    successor = SharedLog(capacity=100, read_ahead_bytes=1000, keep=True, first=first)
    reader = ReaderPosition(client_id=client, received=consumed)
    reports = map(log.trainer_report, log.trainers)
    successor.take_over(
        TrainerPosition(
            trainer_id=report.trainer_id,
            consumed=report.consumed_ranges,
            readers=(reader,) if report.trainer_id == client else (),
        )
        for report in reports
    )
    return successor


def read(log: SharedLog, client: str, taken: Counter[str]) -> int:
    """Consume what is sent to a client now."""
    count = sum(part.count for part in log.take_all(client))
    taken[client] += count
    log.credit(client, 1000, taken[client], 1 << 30, taken=taken[client])
    return count

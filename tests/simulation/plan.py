"""What happens in one simulation, drawn from its seed: the job, the processes, and the faults with their times."""

from __future__ import annotations

from enum import Enum
from random import Random

import msgspec
from msgspec.structs import replace

from dsnb.client.options import ReadOptions, ShardingPolicy
from dsnb.pipeline.dataset import Dataset
from dsnb.wire.messages import CachePolicy
from tests.simulation.dispatcher import JOB
from tests.simulation.thinned import Thinned, is_kept

_TRAINER_TIMEOUT_S = 60.0
_LONG_PACE = 30.0
_PAST_LEASE_S = 11.0
_STALL_S = 45.0
_FEWEST_LONG_ELEMENTS = 30


class Fault(Enum):
    """What goes wrong."""

    CONNECTION = "a connection breaks"
    KILL_WORKER = "a worker is killed"
    STOP_WORKER = "a worker stops and hands its tasks back"
    DRAIN_WORKER = "a worker drains and leaves"
    ADD_WORKER = "a worker joins"
    SUSPEND_WORKER = "a worker is suspended, and resumed past its lease"
    KILL_CLIENT = "a client is killed"
    SUSPEND_CLIENT = "a client is suspended, and resumed past its lease"
    KILL_DISPATCHER = "the dispatcher is killed, and started again"
    SUSPEND_DISPATCHER = "the dispatcher is suspended"
    DISK_FULL = "the dispatcher's disk is full for a while"
    CLOCK_JUMP = "the clock of a process jumps forward"
    PARTITION_WORKER = "a worker reaches its clients, and not the dispatcher"
    PARTITION_CLIENT = "a client reaches its workers, and not the dispatcher"


FIRST_FAULTS = tuple(Fault)[:12]
"""The faults of the simulator's first version; `test_simulation.FOUND` has seeds that were drawn from them."""


class Event(msgspec.Struct, frozen=True):
    """A fault, and when it happens."""

    fault: Fault
    at: float
    """Simulated seconds."""
    seconds: float
    """How long it lasts, or how far a clock jumps."""
    victim: int
    """Chooses one of the processes that it can hit."""


class Plan(msgspec.Struct, frozen=True):
    """One simulation.

    Attributes:
        seed: The seed that it was drawn from.
        mode: The processing mode.
        pipeline: "range", "filtered" or "repeated".
        elements: How many numbers the range has.
        workers: How many workers there are at first.
        clients: How many clients there are.
        credit: `max_outstanding_requests`.
        on_lag: The policy of each trainer; empty for a job without the cross-trainer cache.
        element_s: How long the user of each client works on an element.
        window_bytes: Capacity of the cross-trainer cache.
        events: The faults.
        pace: How many times longer than usual workers and users take for an element.
    """

    seed: int
    mode: ShardingPolicy
    pipeline: str
    elements: int
    workers: int
    clients: int
    credit: int | None
    on_lag: tuple[str, ...]
    element_s: tuple[float, ...]
    window_bytes: int
    events: tuple[Event, ...]
    pace: float = 1.0

    @property
    def cached(self) -> bool:
        """Whether the clients are trainers of the cross-trainer cache."""
        return bool(self.on_lag)

    @property
    def faults(self) -> set[Fault]:
        """The kinds of faults."""
        return {event.fault for event in self.events}

    def dataset(self) -> Dataset:
        """The dataset that is read."""
        numbers = Dataset.range(self.elements)
        if self.pipeline == "filtered":
            return Dataset(Thinned(inputs=(numbers.operation,)))
        return numbers.repeat(2) if self.pipeline == "repeated" else numbers

    def expected(self) -> list[int]:
        """The elements of one pass over the dataset, sorted."""
        if self.pipeline == "filtered":
            return [number for number in range(self.elements) if is_kept(number)]
        return sorted([*range(self.elements)] * (2 if self.pipeline == "repeated" else 1))

    def options(self, client: int) -> ReadOptions:
        """The arguments of a client's read."""
        policy = CachePolicy(on_lag=self.on_lag[client], timeout_s=_TRAINER_TIMEOUT_S) if self.cached else None
        return ReadOptions(
            mode=self.mode,
            job_name=JOB,
            max_outstanding_requests=self.credit,
            trainer_id=f"trainer{client}" if self.cached else "",
            cache_policy=policy,
        )


def draw(seed: int, faults: tuple[Fault, ...] = tuple(Fault), most: int = 4) -> Plan:
    """Draw a plan.

    Args:
        seed: Decides everything.
        faults: The kinds of faults that may happen.
        most: The most faults.
    """
    chance = Random(f"plan {seed}")
    mode = chance.choices(
        (ShardingPolicy.DYNAMIC, ShardingPolicy.OFF, ShardingPolicy.DATA), weights=(6, 1, 2)
    )[0]  # fmt: skip
    cached = chance.random() < 0.25
    clients = chance.choice((1, 1, 2, 3))
    policies = [chance.choice(("wait", "spill", "skip")) for _ in range(clients)]
    return Plan(
        seed=seed,
        mode=ShardingPolicy.DYNAMIC if cached else mode,
        pipeline=chance.choice(("range", "range", "filtered", "repeated")),
        elements=chance.choice((0, 1, 7, 30, 60, 100)),
        workers=chance.choice((1, 2, 2, 3)),
        clients=clients,
        credit=chance.choice((None, 1, 4, 16)),
        on_lag=tuple(policies) if cached else (),
        element_s=tuple(chance.choice((0.0005, 0.003, 0.02)) for _ in range(clients + 2)),
        window_bytes=chance.choice((400, 1 << 20)),
        events=tuple(sorted((_draw_event(chance, faults) for _ in range(chance.randint(0, most))), key=lambda e: e.at)),
    )


def draw_long(seed: int, faults: tuple[Fault, ...] = tuple(Fault), most: int = 4) -> Plan:
    """Draw a plan whose pass outlasts the leases.

    A pass of `draw` takes a few seconds, and a lease 10: a worker that was suspended or cut off past its lease mostly
    comes back when its successor has delivered everything. Here the workers and users are slower, and faults last
    longer than a lease, so that both deliver at the same time, to clients whose users are busy.

    Args:
        seed: Decides everything.
        faults: The kinds of faults that may happen.
        most: The most faults.
    """
    plan = draw(seed, faults, most)
    return replace(
        plan,
        elements=max(plan.elements, _FEWEST_LONG_ELEMENTS),
        events=tuple(replace(event, seconds=max(event.seconds, _PAST_LEASE_S)) for event in plan.events),
        pace=_LONG_PACE,
    )


def draw_stalled(seed: int, faults: tuple[Fault, ...] = tuple(Fault), most: int = 2) -> Plan:
    """Draw a plan in which a worker dies while the dispatcher is suspended, for longer than anything is retried.

    Args:
        seed: Decides everything.
        faults: The kinds of other faults that may happen.
        most: The most other faults.
    """
    plan, chance = draw(seed, faults, most), Random(f"stalled {seed}")
    at = chance.choice((0.003, 0.01, 0.02, 0.05, 0.5))
    stall = Event(Fault.SUSPEND_DISPATCHER, at=at, seconds=_STALL_S, victim=0)
    death = Event(Fault.KILL_WORKER, at=at + 0.0005, seconds=0.0, victim=chance.randrange(1 << 16))
    return replace(
        plan,
        elements=max(plan.elements, _FEWEST_LONG_ELEMENTS),
        events=tuple(sorted((*plan.events, stall, death), key=lambda event: event.at)),
    )


def _draw_event(chance: Random, faults: tuple[Fault, ...]) -> Event:
    at = chance.expovariate(1 / 0.5) if chance.random() < 0.8 else chance.uniform(0.0, 15.0)
    return Event(
        fault=chance.choice(faults),
        at=at,
        seconds=chance.choice((0.3, 1.0, 3.0, 11.0, 14.0)),
        victim=chance.randrange(1 << 16),
    )

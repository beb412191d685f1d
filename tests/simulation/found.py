"""Seeds that showed faults of dsnb, with the commits that mended them: for the tests and `docs/reliability.md`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.simulation.plan import FIRST_FAULTS, Fault, Plan, draw, draw_long, draw_stalled


class Found(msgspec.Struct, frozen=True):
    """A schedule that broke a promise."""

    seed: int
    commits: tuple[str, ...]
    """The commits that mended dsnb."""
    wrong: str
    """What dsnb did wrong."""
    faults: tuple[Fault, ...] = tuple(Fault)
    """The faults that it is drawn from."""
    draw: Callable[..., Plan] = draw

    @property
    def plan(self) -> Plan:
        """The schedule."""
        return self.draw(self.seed, self.faults)

    @property
    def call(self) -> str:
        """The call that draws it."""
        faults = {tuple(Fault): "", FIRST_FAULTS: ", FIRST_FAULTS"}.get(self.faults)
        if faults is None:
            faults = f", ({', '.join(f'Fault.{fault.name}' for fault in self.faults)},)"
        return f"{self.draw.__name__}({self.seed}{faults})"


_WORKER_AFTER_END = (
    "a worker died after all clients had received the end; the pass never ended, and was read again whole"
)

FOUND = (
    Found(1161, ("2902ae2",), _WORKER_AFTER_END, FIRST_FAULTS),
    Found(
        1242,
        ("2902ae2",),
        "a worker joined after all clients had received the end; the pass never ended, and was read again whole",
        FIRST_FAULTS,
    ),
    Found(
        1649,
        ("2902ae2", "4d39f4a"),
        "the same with two workers; then a client was lost after its end, and the next one got a part again",
        FIRST_FAULTS,
    ),
    Found(2363, ("2902ae2",), "the same with three clients", FIRST_FAULTS),
    Found(
        4159,
        ("2889f11",),
        "a trainer was lost before another worker took its task over; the other trainers waited for it for ever",
        FIRST_FAULTS,
    ),
    Found(
        8161,
        ("2889f11",),
        "a client whose connection had broken after its end was to get the elements of a lost client; "
        "the pass never ended",
        FIRST_FAULTS,
    ),
    Found(
        5422,
        ("2889f11",),
        'a trainer with `on_lag="spill"` joined after the first elements were evicted; nothing was counted',
        FIRST_FAULTS,
    ),
    Found(
        3848,
        ("edd19b7",),
        "a worker that came back restored splits of an earlier incarnation, and asked for others in vain for ever",
    ),
    Found(10533, ("edd19b7",), "the same, and elements came twice"),
    Found(
        4345,
        ("d2c902b",),
        "a pass that all clients had read was delivered again after the dispatcher was started again",
    ),
    Found(
        13331,
        ("b76f8b5",),
        "elements were evicted before a trainer that had joined opened its task; the worker that had counted them died",
    ),
    Found(
        8183,
        ("1dbc9dd",),
        "a worker began a task that waited for its reassignment, without its position, and asked for splits for ever",
    ),
    Found(
        7933,
        ("d32dd53",),
        "a client gave a dead worker up while the dispatcher was down; the elements would have come later",
    ),
    Found(15224, ("d32dd53",), "the same with two clients"),
    Found(33181, ("d32dd53",), "the same after the dispatcher was suspended"),
    Found(
        173,
        ("e3e59fe",),
        "a late report of a worker that had lost its task counted elements as skipped that its successor sent",
        (Fault.PARTITION_WORKER,),
    ),
    Found(
        3161724,
        ("7b8ab3e",),
        "the same from a worker that was suspended past its lease; its report came when the task had been read to its "
        "end and dropped",
    ),
    Found(
        4060,
        ("7a17112",),
        "the dispatcher reached neither a worker nor one of its clients, and took the worker's task away; another "
        "client left the worker but kept the elements that it held; the worker sent those to the client that still "
        "read from it, and they came twice",
        draw=draw_long,
    ),
    Found(
        500490,
        ("aa81672",),
        "`max_outstanding_requests` was smaller than the number of tasks; tasks that had ended and were opened again "
        "were granted one element each, which was more in all",
    ),
    Found(
        1012918,
        ("7fe1386",),
        "a worker handled a client's first request for a task after its second, since both had waited for the task's "
        "order, and ended the second; the read failed",
    ),
    Found(
        1056459,
        ("7fe1386",),
        "the successor of a trainer's lost client was told the end before the worker had taken back what the lost one "
        "had; it did not arrive, and was not counted",
    ),
    Found(
        1072023,
        ("200dce4",),
        "workers drained; their tasks, which had been refused splits of the first repetition, were continued in the "
        "second; the rest of the first was never read",
    ),
    Found(
        1061106,
        ("cc140f6",),
        'a trainer with `on_lag="skip"` had lost two elements when its worker stopped; the worker that took the task '
        "over gave them to it, and they stayed counted as skipped",
    ),
    Found(
        4058248,
        ("721173e",),
        'elements were evicted while a trainer with `on_lag="wait"` was away; another incarnation of the task served '
        "it when it returned, and what it missed was not counted",
    ),
    Found(4150283, ("721173e",), 'the same with `on_lag="spill"`'),
    Found(3505733, ("721173e",), "the same; the tasks were suspended while no client was left"),
    Found(4501723, ("721173e",), "the same; one worker had died and another one had left before"),
    Found(
        4556512,
        ("6bebb42",),
        "a worker's connection broke while the dispatcher was suspended; the dispatcher then kept the worker for as "
        "long again as it had been suspended, and a client gave it up",
    ),
    Found(
        4212779,
        ("f3fe67d",),
        "a client was lost after another one had been told that it has reached the end; when that one had left, the "
        "pass was read again whole",
    ),
    Found(4705117, ("f3fe67d",), "the same with a pipeline that filters"),
    Found(
        2,
        ("9e539af",),
        "a worker died while the dispatcher was suspended for longer than a client tries a worker; the read failed",
        draw=draw_stalled,
    ),
    Found(
        6005919,
        ("a090e48",),
        "a client's connection broke; when it connected again, a part of what had not arrived was sent to another one "
        "that had been told that it has reached the end; that one left without it, and it was lost",
    ),
    Found(5652086, ("f8c06f8",), "a trainer missed nothing, and 5 elements were counted as missed"),
)
"""In the order in which they were found, with those of one commit together."""

OPEN: tuple[Found, ...] = ()
"""Schedules that still break a promise."""

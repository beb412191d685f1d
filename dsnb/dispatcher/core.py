"""The dispatcher's core: an event and a time go in, records and instructions come out. Pure: no threads, I/O or clock.

Theory of operation. Durable state is in `State`; only records change it. `TransientState` holds what matters only while
this process lives: the deadlines of workers and clients, and since when an iteration or a job has had no client. Time
in which the dispatcher stood still (a cell held the GIL for a minute) does not count: a tick that comes late shows it.
So a standstill of the dispatcher does not make it declare workers and clients dead.

The handlers are in `dispatcher/handlers`, one module for each concern. They work on a `Context`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsnb.dispatcher import events as e
from dsnb.dispatcher import invariants
from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers import admin, ends, jobs, membership, registration, rounds, splits
from dsnb.dispatcher.records import ServiceBegun
from dsnb.wire import messages as m


class Core(Context):
    """Makes the decisions of one service; `Context` describes the arguments."""

    def handle(self, event: e.Event, now: float, entropy: int = 0) -> e.Decision:
        """Decide what an event leads to, at the time `now` in seconds; an iteration that it creates gets `entropy`.

        Errors are returned in the decision, not raised.

        This includes bugs of dsnb: records made before the exception have changed the state already, so the journal
        must get them.
        """
        self.set_time(now)
        self.entropy = entropy
        self.records, self.instructions = [], []
        reply, error = None, None
        try:
            reply = _HANDLERS[type(event)](self, event)
            membership.offer_abandoned_passes(self)
        except Exception as mistake:  # noqa: BLE001 - a bug may be anything
            error = mistake
        return e.Decision(
            reply=reply, error=error, bug=rounds.update_schedules(self),
            records=tuple(self.records), instructions=tuple(self.instructions),
        )  # fmt: skip

    def validate(self) -> None:
        """Check the invariants that hold between any two events."""
        invariants.validate(self.state)
        passes = {(job.name, number) for job in self.state.jobs.values() for number in job.iterations}
        assert set(self.transient.consumer_states) <= passes, "consumer states are kept for an iteration that is gone"
        assert set(self.transient.worker_deadlines) == set(self.state.workers), (
            "a worker has no deadline, or a deadline no worker"
        )
        assert set(self.transient.client_deadlines) == set(self.state.clients), (
            "a client has no deadline, or a deadline no client"
        )


def _begin(core: Context, event: e.DispatcherStarts) -> None:
    if not core.state.instance:
        core.record(ServiceBegun(instance=event.instance))
    membership.assign_static_indices(core)
    membership.release_held_workers(core)


_HANDLERS: dict[type, Callable[[Context, Any], Any]] = {
    e.DispatcherStarts: _begin,
    e.RegisterDataset: registration.register,
    m.JoinRequest: jobs.join,
    m.EndRequest: ends.read_to_end,
    m.ClientReport: membership.client_reported,
    m.ForgetRequest: registration.forget,
    m.ControlRequest: admin.control,
    e.ClientDisconnected: membership.client_disconnected,
    e.WorkerArrives: membership.worker_arrives,
    m.WorkerReport: membership.worker_reported,
    e.WorkerDisconnected: membership.worker_disconnected,
    e.WorkerDrains: membership.worker_drains,
    e.HoldNewWorkers: membership.hold_new_workers,
    e.ReplaceWorkers: membership.replace_workers,
    e.WorkerLeaves: membership.worker_leaves,
    m.SplitsRequest: splits.assign_splits,
    e.Tick: membership.tick,
}

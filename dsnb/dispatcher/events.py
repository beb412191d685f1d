"""Events that the dispatcher's core handles, instructions that it returns, and the replies to callers.

The requests and reports of clients and workers are events themselves. The classes here are events that are no message,
or have more than the message.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsnb.dispatcher.records import Record
from dsnb.wire.messages import (
    ClientRelease,
    ClientReport,
    ClosedIteration,
    ControlRequest,
    DatasetInfo,
    EndRequest,
    ForgetRequest,
    JoinRequest,
    Loss,
    SplitsRequest,
    WorkerReport,
)

# ---- events


class DispatcherStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The dispatcher starts; a new service takes `instance` as its name, a restored one keeps its own."""

    instance: str


class RegisterDataset(msgspec.Struct, frozen=True, kw_only=True):
    """Register a pipeline, whose definition is stored under the digest `definition`.

    With an empty id the service chooses one; with an empty fingerprint the pipeline equals no other.
    """

    dataset_id: str
    definition: str
    info: DatasetInfo


class ClientDisconnected(msgspec.Struct, frozen=True, kw_only=True):
    """A client's control stream broke; the client may reconnect."""

    client_id: str


class WorkerArrives(msgspec.Struct, frozen=True, kw_only=True):
    """A worker opens its control stream, for the first time or again, with a first report."""

    report: WorkerReport


class WorkerDisconnected(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's control stream broke; the worker may reconnect."""

    uid: str


class WorkerDrains(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is to get no new tasks or splits."""

    uid: str


class HoldNewWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that join from now on get no work until `ReplaceWorkers`."""


class ReplaceWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """These workers finish the passes that they have begun, and those that were held get all new work.

    Without uids, the workers that were held begin to work beside the others, as if they joined now.
    """

    uids: tuple[str, ...] = ()


class WorkerLeaves(msgspec.Struct, frozen=True, kw_only=True):
    """A worker leaves; or it died, and `exit_reason` says how."""

    uid: str
    exit_reason: str = ""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Check all deadlines; the shell sends this at a fixed interval."""


Event = (
    DispatcherStarts
    | RegisterDataset
    | JoinRequest
    | EndRequest
    | ClientReport
    | ForgetRequest
    | ControlRequest
    | ClientDisconnected
    | WorkerArrives
    | WorkerReport
    | WorkerDisconnected
    | WorkerDrains
    | HoldNewWorkers
    | ReplaceWorkers
    | WorkerLeaves
    | SplitsRequest
    | Tick
)

# ---- instructions


class StartTask(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    task_id: str


class DropTask(msgspec.Struct, frozen=True, kw_only=True):
    """Order a worker to drop a task, unless it has a later incarnation of it by now."""

    worker: str
    task_id: str
    incarnation: int


class UpdateTask(msgspec.Struct, frozen=True, kw_only=True):
    """Send a worker the order of a task that it has again, because the job was paused or resumed."""

    worker: str
    task_id: str


class SendDrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order a worker to finish what it has and leave."""

    worker: str


class DisconnectWorker(msgspec.Struct, frozen=True, kw_only=True):
    """End a removed worker's control stream with an error that gives the reason."""

    worker: str
    reason: str


class NotifyCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """Notify a client that its job was cancelled, and by whom."""

    client_id: str
    cancelled_by: str


class NotifyRunning(msgspec.Struct, frozen=True, kw_only=True):
    """Notify a client that a worker runs that it cannot reach."""

    client_id: str
    worker: str


class ReleaseClient(msgspec.Struct, frozen=True, kw_only=True):
    """Have a worker take back a client's unconsumed elements; its reports then confirm the release's number."""

    worker: str
    release: ClientRelease


class ConfirmClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Tell a worker that a task's iteration is closed to new trainers, so that it may evict the first elements."""

    worker: str
    closed: ClosedIteration


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """Have a worker send a report at once."""

    worker: str


class NotifyClients(msgspec.Struct, frozen=True, kw_only=True):
    """Send all clients of an iteration its current tasks, its schedules, and whether it is finished."""

    job: str
    iteration: int


class NotifyLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Notify all clients of an iteration that elements will not arrive."""

    job: str
    iteration: int
    loss: Loss


class Announce(msgspec.Struct, frozen=True, kw_only=True):
    """Add a line to the events of the status."""

    level: str
    text: str


Instruction = (
    StartTask
    | DropTask
    | UpdateTask
    | SendDrainOrder
    | DisconnectWorker
    | NotifyCancelled
    | NotifyRunning
    | ReleaseClient
    | ConfirmClosed
    | RequestReport
    | NotifyClients
    | NotifyLoss
    | Announce
)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an event. The shell commits the records first, then carries out the instructions, then replies.

    Attributes:
        reply: The value to return to the caller.
        error: The error to raise instead of a reply: the caller's mistake, or a bug in the handler.
        bug: A bug of dsnb that is not related to this event, so that its caller does not get it.
        records: The changes of state, in order; they are applied already.
        instructions: What the shell has to do, in order.
    """

    reply: Any = None
    error: Exception | None = None
    bug: Exception | None = None
    records: tuple[Record, ...] = ()
    instructions: tuple[Instruction, ...] = ()

"""Joining a job and the client's control stream, for all kinds of readers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import asdict

from dsnb.client.options import ReadOptions, ServiceAddress
from dsnb.errors import DsnbError
from dsnb.stopwatch import Stopwatch
from dsnb.wire import discovery
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.control_stream import ControlStream
from dsnb.wire.messages import ClientReport, ClientUpdate, IterationPosition, JoinReply, JoinRequest, TaskHolding
from dsnb.wire.methods import FOLLOW, JOIN

_SHORT_PASS_S = 0.03
"""An iteration that ends within this time needs no control stream. Readers of the cross-trainer cache open one at once,
to learn of losses as they happen."""

UNREACHABLE_TIMEOUT_S = 30.0
"""How long a reader waits for a reachable worker, or for the dispatcher to confirm the end, before it gives up."""

_LEASE = 0.75
"""After this part of the client time-out without a report, the client asks whether the dispatcher has dropped it."""

ClientControlStream = ControlStream[ClientReport, ClientUpdate]


def join(
    channel: Channel,
    dataset_id: str,
    options: ReadOptions,
    iteration: int = 0,
    position: IterationPosition | None = None,
    *,
    unfinished: bool = False,
    previous: JoinReply | None = None,
    holdings: tuple[TaskHolding, ...] = (),
) -> JoinReply:
    """Join one iteration of a job.

    Args:
        channel: Connection to the dispatcher.
        dataset_id: Id of the registered dataset.
        options: The options of the read.
        iteration: Number of this pass over the dataset object.
        position: Where to begin; None for the beginning.
        unfinished: Whether to join the next unfinished iteration if this one is over.
        previous: The reply to the first join, if the dispatcher dropped this reader and it rejoins.
        holdings: What the reader had consumed until it rejoined.

    Raises:
        DsnbError: the dispatcher refused the request.
    """
    request = JoinRequest(
        dataset_id=dataset_id,
        job_name=previous.job_name if previous is not None else options.job_name,
        **asdict(options.job_parameters),
        trainer_id=options.trainer_id,
        iteration=iteration,
        complete_only=options.lossless,
        position=position,
        consumer_index=options.consumer_index,
        skip_finished=unfinished,
        previous_client_id=previous.client_id if previous is not None else "",
        previous_iteration=previous.iteration if previous is not None else 0,
        holdings=holdings,
    )
    return channel.call(JOIN, request)


def open_control_stream(
    service: ServiceAddress,
    joined: JoinReply,
    *,
    immediately: bool,
    report: Callable[[int, bool], ClientReport],
    receive: Callable[[ClientUpdate], None],
    failed: Callable[[DsnbError], None],
) -> ClientControlStream:
    """Make the control stream of a client that has joined; the caller starts it.

    `ControlStream` describes the callbacks.

    Args:
        service: Address and token of the service.
        joined: The dispatcher's reply to the join.
        immediately: Whether to connect at once. Otherwise only if the iteration takes longer than `_SHORT_PASS_S`.
        report: Makes a report.
        receive: Handles an update.
        failed: Called if the dispatcher refuses the stream for good.
    """
    return ControlStream(
        f"dsnb-follow-{joined.client_id}",
        open_channel(service.address, service.token),
        FOLLOW,
        report=report,
        receive=receive,
        interval_s=joined.report_interval_ms / 1000,
        delay_s=0.0 if immediately else _SHORT_PASS_S,
        lease_s=_LEASE * joined.client_timeout_ms / 1000,
        on_failure=failed,
    )


_connections: dict[str, tuple[str, discovery.Connection]] = {}
"""For each address, the instance that was read there last, and its connection file."""


def service_connection(address: str, instance: str) -> discovery.Connection | None:
    """The connection file of a service, to tell later why it ended; None if it is none of this user on this host.

    Read once for each instance of a service: that takes longer than an element of a short pass.

    Args:
        address: Where the dispatcher listens.
        instance: The instance id of the service.
    """
    known, found = _connections.get(address, ("", None))
    if known == instance:
        return found
    found = discovery.connection_at(address)
    if found is not None:
        _connections[address] = instance, found  # and forget the token of the one before
    return found


class JobClock:
    """Nanoseconds that a job was running.

    The clock stops while the job is paused, for waiting then is not lack of data.

    Any thread may read it; one thread may pause it.

    Args:
        paused: Whether the job is paused at first.

    Example:
        >>> clock = JobClock(paused=True)
        >>> clock() == clock()
        True
        >>> clock.pause(paused=False)
        >>> began = clock()
        >>> clock() > began
        True
    """

    def __init__(self, *, paused: bool = False) -> None:
        self._running = Stopwatch()
        self.pause(paused=paused)

    def __call__(self) -> int:
        return self._running.ns

    def pause(self, *, paused: bool) -> None:
        """Pause or resume the clock."""
        if paused:
            self._running.stop()
        else:
            self._running.start()

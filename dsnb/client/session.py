"""How a reader comes to a job and hears of it from then on, whichever stage it is of."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from dsnb.client.options import ReadOptions, ServiceAddress
from dsnb.errors import DsnbError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.control_stream import ControlStream
from dsnb.wire.messages import ClientReport, ClientUpdate, IterationPosition, JoinReply, JoinRequest, TaskHolding
from dsnb.wire.methods import FOLLOW, JOIN

_SHORT_PASS_S = 0.03
"""A pass that is over within this time needs no control stream. A reader that shares a cache has one from the first, to
hear at once of what it loses."""

_LEASE = 0.75
"""The part of the client time-out after which a client that has reported nothing asks whether it was given up."""

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
    """Ask for one pass of a job.

    Args:
        channel: To the dispatcher.
        dataset_id: What to read.
        options: How.
        iteration: Which pass of its dataset object it is.
        position: Where to begin; None for at the beginning.
        unfinished: Whether to join the next pass that is not over, if that one is.
        previous: The reply to its first join, where the dispatcher has given it up since and it comes back.
        holdings: What it consumed until then.

    Raises:
        DsnbError: what the dispatcher says of the caller's mistake.
    """
    request = JoinRequest(
        dataset_id=dataset_id,
        job_name=previous.job_name if previous is not None else options.job_name,
        mode=options.mode.name,
        cached=options.cached,
        trainer_id=options.trainer_id,
        compression=options.compression,
        target_workers=options.target_workers,
        iteration=iteration,
        complete_only=options.lossless,
        position=position,
        num_consumers=options.num_consumers,
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
    """The control stream of a reader that was let in, to be started; see `ControlStream` for the callbacks.

    A prompt one is opened at once, and not only if the pass turns out to take longer than a moment.
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


class JobClock:
    """Nanoseconds of a job that goes on: while it is paused the clock stands, for nobody waits for data then.

    It is read in any thread and set in one.

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
        self._state: tuple[int, int | None] = (0, perf_counter_ns() if paused else None)
        """By how much it is behind, and where it stands; one object: never half new."""

    def __call__(self) -> int:
        behind, paused_at = self._state
        return (perf_counter_ns() if paused_at is None else paused_at) - behind

    def pause(self, *, paused: bool) -> None:
        """Learn whether the job is paused."""
        behind, paused_at = self._state
        if paused and paused_at is None:
            self._state = behind, perf_counter_ns()
        elif not paused and paused_at is not None:
            self._state = behind + perf_counter_ns() - paused_at, None

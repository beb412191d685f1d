"""How a reader comes to a job and hears of it from then on, whichever stage it is of."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from dsnb.client.options import ReadOptions, ServiceAddress
from dsnb.errors import DsnbError
from dsnb.wire.channel import Channel, open_channel
from dsnb.wire.control import ControlStream
from dsnb.wire.messages import ClientReport, ClientUpdate, JoinReply, JoinRequest, PassPosition, TaskHolding
from dsnb.wire.methods import FOLLOW, JOIN

_SHORT_PASS_S = 0.03
"""A pass that is over within this time needs no control stream. A reader that shares a cache has one from the first, to
hear at once of what it loses."""

_LEASE = 0.75
"""The part of the client time-out after which a client that has reported nothing asks whether it was given up."""

Following = ControlStream[ClientReport, ClientUpdate]


def join(
    channel: Channel,
    dataset_id: str,
    options: ReadOptions,
    repetition: int = 0,
    position: PassPosition | None = None,
    *,
    unfinished: bool = False,
    before: JoinReply | None = None,
    holdings: tuple[TaskHolding, ...] = (),
) -> JoinReply:
    """Ask for one pass of a job.

    Args:
        channel: To the dispatcher.
        dataset_id: What to read.
        options: How.
        repetition: Which pass of its dataset object it is.
        position: Where to begin; None for at the beginning.
        unfinished: Whether to join the next pass that is not over, if that one is.
        before: The reply to its first join, where the dispatcher has given it up since and it comes back.
        holdings: What it consumed until then.

    Raises:
        DsnbError: what the dispatcher says of the caller's mistake.
    """
    request = JoinRequest(
        dataset_id=dataset_id,
        job_name=before.job_name if before is not None else options.job_name,
        mode=options.mode.name,
        cached=options.cached,
        trainer_id=options.trainer_id,
        compression=options.compression,
        target_workers=options.target_workers,
        repetition=repetition,
        whole=options.wants_all,
        position=position,
        consumers=options.consumers,
        consumer=options.consumer,
        unfinished=unfinished,
        rejoins=before.client_id if before is not None else "",
        iteration=before.iteration if before is not None else 0,
        holdings=holdings,
    )
    return channel.call(JOIN, request)


def follow(
    service: ServiceAddress,
    joined: JoinReply,
    *,
    prompt: bool,
    report: Callable[[int, bool], ClientReport],
    receive: Callable[[ClientUpdate], None],
    failed: Callable[[DsnbError], None],
) -> Following:
    """The control stream of a reader that was let in, to be started; see `ControlStream` for the callbacks.

    A prompt one is opened at once, and not only if the pass turns out to take longer than a moment.
    """
    return ControlStream(
        f"dsnb-follow-{joined.client_id}",
        open_channel(service.address, service.token),
        FOLLOW,
        report=report,
        receive=receive,
        interval_s=joined.report_ms / 1000,
        delay_s=0.0 if prompt else _SHORT_PASS_S,
        lease_s=_LEASE * joined.client_timeout_ms / 1000,
        failed=failed,
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
        behind, stands_at = self._state
        return (perf_counter_ns() if stands_at is None else stands_at) - behind

    def pause(self, *, paused: bool) -> None:
        """Learn whether the job is paused."""
        behind, stands_at = self._state
        if paused and stands_at is None:
            self._state = behind, perf_counter_ns()
        elif not paused and stands_at is not None:
            self._state = behind + perf_counter_ns() - stands_at, None

"""Warnings when a read starts or loses data, and errors of a read that cannot go on."""

from __future__ import annotations

from dsnb import errors
from dsnb.client.options import ReadOptions, ShardingPolicy
from dsnb.errors import (
    CacheWarning,
    CancelledError,
    DataLossError,
    DataLossWarning,
    DeadlineExceededError,
    DsnbWarning,
    UnavailableError,
)
from dsnb.transfer import local
from dsnb.wire.messages import JoinReply


def warn_rejoined(seconds: float, returned: int, lost: int) -> None:
    """Warn that the dispatcher dropped this reader and it rejoined, with what became of its unconsumed elements."""
    lost_text = (
        f", and {lost:,} are lost, because their workers are gone and no other can produce them again" if lost else ""
    )
    errors.warn(
        f"this reader was counted as lost: it was silent for {seconds:g} seconds (client_timeout_ms), or its "
        f"connection stayed broken (reconnect_ms). It continues now. {returned:,} elements that it had received and "
        f"not consumed were returned for other readers{lost_text}. Was the process stopped, the machine asleep, or the "
        "network down? DispatcherConfig(client_timeout_ms=..., reconnect_ms=...) sets the limits",
        DataLossWarning if lost else DsnbWarning,
    )


def warn_empty(joined: JoinReply) -> None:
    """Warn that the iteration was over before this reader joined."""
    errors.warn(
        f"pass {joined.iteration + 1} of job {joined.job_name!r} has already been read to its end, so it is empty for "
        f"this reader; iterate the same dataset again for the next pass, use another job_name, or "
        f"svc.forget({joined.job_name!r})",
        DsnbWarning,
    )


def warn_of_split_cache(joined: JoinReply, options: ReadOptions) -> None:
    """Warn that each worker process caches splits in its own memory, which other workers cannot use."""
    elsewhere = sum(local.find(task.worker_uid) is None for task in joined.tasks)
    if options.mode is ShardingPolicy.DYNAMIC and options.split_cache and elsewhere and len(joined.tasks) > 1:
        errors.warn(
            f"{options.split_cache} keeps elements in the memory of each worker process, but DYNAMIC hands the splits "
            "out anew in each epoch: most of them go to another worker than before, which produces them again. "
            "Name a place that all workers share, as in .cache('/data/cache') or .cache('redis://host:6379/0'); or put "
            ".cache() behind distribute; or use a static sharding policy, where each worker keeps its shard",
            CacheWarning,
        )


def warn_absent_or_paused(joined: JoinReply) -> None:
    """Warn of missing workers or a pause, which keep elements from coming."""
    if joined.missing_shards:
        errors.warn(
            f"job {joined.job_name!r} has no worker for shard {', '.join(joined.missing_shards)}: its elements arrive "
            "only if the worker joins before the other shards have ended. Start the worker, or shorten "
            "DispatcherConfig(worker_addresses=...)",
            DsnbWarning,
        )
    if joined.paused_by:
        errors.warn(
            f"job {joined.job_name!r} is paused (by {joined.paused_by}): nothing comes before "
            f"svc.resume({joined.job_name!r})",
            DsnbWarning,
        )


def warn_trainer_loses_data(options: ReadOptions) -> None:
    """Warn that a trainer fell behind the window and begins to miss elements."""
    errors.warn(
        f"trainer {options.trainer_id!r} of job {options.job_name!r} begins to lose data: it is behind the others and "
        "fell out of the window. Missed elements are counted, and the read continues. "
        'CrossTrainerCache(on_lag="wait") or "spill" loses nothing; a larger window, '
        "start(cross_trainer_cache_size_bytes=...), gives it more time",
        DataLossWarning,
    )


def warn_trainer_evicted(options: ReadOptions, by: str) -> None:
    """Warn that a trainer begins to miss elements because somebody evicted it."""
    errors.warn(
        f"trainer {options.trainer_id!r} of job {options.job_name!r} was evicted by {by}: nothing is kept for it any "
        "more. Missed elements are counted, and the read continues with what the window still holds; iterate the "
        "dataset again to be a full member again",
        DataLossWarning,
    )


def warn_end_unconfirmed(address: str, seconds: float) -> None:
    """Warn that the dispatcher could not confirm the end of the iteration."""
    errors.warn(
        f"the end of the pass could not be confirmed: the service at {address} has not answered for {seconds:g} "
        "seconds; everything that its known workers had was read",
        DataLossWarning,
    )


def job_cancelled(job: str, by: str) -> CancelledError:
    """The error of a reader whose job was cancelled."""
    return CancelledError(
        f"the job {job!r} was cancelled by {by}",
        did="all its readers were stopped, and unread elements were dropped",
        hint="iterate the dataset again to start the job again",
    )


def lost_with_worker(text: str, options: ReadOptions) -> DataLossError:
    """The error of a reader that may not lose data with a worker."""
    error = DataLossError(
        text,
        did=f"this read has on_worker_loss={options.on_worker_loss!r}; it continues with the others if you call "
        "`next` again",
        hint="read the epoch again, or go on without what is missing",
    )
    errors.mark_out_of_band(error)
    return error


def service_ended(name: str, reason: str) -> UnavailableError:
    """The error of a reader whose service has stopped."""
    return UnavailableError(
        f"the service {name!r} has ended: {reason}",
        did="everything that was received from it was read",
        hint="start it again, in its notebook or in this one (dsnb.start()), and iterate the dataset again",
    )


def no_worker(address: str, seconds: float, kind: str, last_loss: str) -> DeadlineExceededError:
    """The error of a reader that had no worker to read from for too long."""
    return DeadlineExceededError(
        f"the service at {address} has had no {kind} for {seconds:g} seconds"
        + (f"; the last one that was lost: {last_loss}" if last_loss else ""),
        did="the read was abandoned",
        hint="start workers: svc.scale(2), or `dsnb worker --dispatcher ...`; `dsnb status` lists them. To read all "
        'that there are, pass target_workers="ANY"',
    )


def service_hangs(address: str, seconds: float) -> UnavailableError:
    """The error of a reader that gets nothing, because neither the dispatcher nor a worker answers any more."""
    return UnavailableError(
        f"nothing has come from the service at {address} for {seconds:.0f} seconds, and neither its dispatcher nor a "
        "worker answers",
        did="the read continues where it was if you call `next` again",
        hint="does a long-running cell block it, or is its process suspended? If it hangs for good, end it and start "
        "it again",
    )


def no_answer(address: str, seconds: float) -> UnavailableError:
    """The error of a reader that could reach neither dispatcher nor workers for too long."""
    return UnavailableError(
        f"the service at {address} has not answered for {seconds:g} seconds",
        did="the read was abandoned",
        hint="is the kernel that started it still running? `dsnb status` lists the services of this user",
    )

"""The static processing modes as plain data: what a pipeline offers them, and when they cannot be used.

Clients check when a mode is chosen, dispatchers when an iteration begins: neither needs the pipeline itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dsnb.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

STATIC_MODES: Final = ("FILE", "DATA", "FILE_OR_DATA", "HINT")
"""The modes in which worker i of n produces its shard; n is fixed when an iteration begins."""
MODES: Final = ("OFF", "DYNAMIC", *STATIC_MODES)
UNKNOWN_FILE_COUNT: Final = -1


class ShardingSupport(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline offers to the static modes.

    Attributes:
        file_count: The number of files in the source with the fewest; `UNKNOWN_FILE_COUNT` if only reading would show
            it.
        no_files_reason: Why the pipeline cannot be divided by files; empty if it can.
        has_shard_hint: Whether it contains a `shard(SHARD_HINT, ...)`.
    """

    file_count: int = UNKNOWN_FILE_COUNT
    no_files_reason: str = ""
    has_shard_hint: bool = False

    def shards_by_file(self, mode: str) -> bool:
        """Whether a mode divides this pipeline by files."""
        return mode in ("FILE", "FILE_OR_DATA") and not self.no_files_reason

    def makes_deterministic(self, mode: str) -> bool:
        """Whether workers run this pipeline in order in a mode, even if it sets `deterministic=False`."""
        return mode in STATIC_MODES and not self.shards_by_file(mode)


def check_mode(mode: str, support: ShardingSupport) -> None:
    """Refuse a mode that a pipeline does not allow.

    Raises:
        NotFoundError: the mode is FILE, and there are no files.
        FailedPreconditionError: the pipeline has a shard hint, and the mode is not HINT.
    """
    if mode == "FILE" and support.no_files_reason:
        raise NotFoundError(
            f"`processing_mode` FILE: {support.no_files_reason}",
            did="nothing was read",
            hint="use ShardingPolicy.FILE_OR_DATA or DATA, or begin with a source of files, such as TextLineDataset",
        )
    if support.has_shard_hint and mode != "HINT":
        raise FailedPreconditionError(
            "the pipeline holds shard(SHARD_HINT, ...), which only the mode HINT fills in, and `processing_mode` is "
            f"{mode}",
            did="nothing was read",
            hint="use dsnb.ShardingPolicy.HINT, or give numbers: shard(2, 0)",
        )


def check_worker_count(mode: str, support: ShardingSupport, count: int) -> None:
    """Refuse to divide a pipeline among no workers, or among more workers than there are files.

    Raises:
        InvalidArgumentError: in both cases.
    """
    if count < 1:
        raise InvalidArgumentError(
            f"num_workers should be >= 1, currently {count}: there are no workers to divide the data among",
            did="no pass was begun",
            hint="start workers first: svc.scale(2), or `dsnb worker --dispatcher ...`",
        )
    if support.shards_by_file(mode) and support.file_count != UNKNOWN_FILE_COUNT and support.file_count < count:
        raise InvalidArgumentError(
            f"a source has {support.file_count} file(s), which is not enough for the required {count} shards/workers",
            did="no pass was begun",
            hint="use ShardingPolicy.DATA or DYNAMIC, fewer workers, or more and smaller files",
        )

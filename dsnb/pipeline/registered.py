"""What is known of a registered dataset without its pipeline, for the dispatcher and for clients that read it by id."""

from __future__ import annotations

from dsnb.pipeline.modes import ShardingSupport
from dsnb.wire.messages import DatasetInfo


def registered_support(info: DatasetInfo) -> ShardingSupport:
    """What a registered dataset offers to the static modes."""
    return ShardingSupport(
        file_count=info.num_files,
        no_files_reason=info.no_file_sharding_reason,
        has_shard_hint=info.has_shard_hint,
    )


def registered_inexact_reason(info: DatasetInfo, mode: str) -> str:
    """Why tasks of a dataset may make other elements when they run again, as text; empty if they make the same."""
    in_order = registered_support(info).makes_deterministic(mode)
    return info.inexact_shard_reason if in_order else info.inexact_reason

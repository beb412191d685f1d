"""What readers ask for about compression and checksums, through a whole service."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.elements import compression
from tests.support.cluster import Cluster
from tests.support.waiting import wait_for

ROWS = np.repeat(np.arange(60), 50_000).reshape(60, 50_000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def reading(cluster: Cluster, job: str, **options: Any) -> Any:
    return iter(
        dsnb.Dataset.from_tensor_slices(ROWS).apply(
            dsnb.distribute("parallel_epochs", cluster.service, job, **{"data_transfer_protocol": "grpc", **options})
        )
    )


def told(cluster: Cluster, job: str, word: str) -> str:
    """What the status says while somebody reads, as soon as that word is in it."""

    def found() -> str:
        (status,) = [status for status in cluster.service.status().jobs if status.name == job]
        (task,) = status.tasks
        return task.compression if word in task.compression else ""

    return wait_for(found, timeout=60, what="the status to tell of compression")


@pytest.mark.slow
@pytest.mark.parametrize("asked", [None, "LZ4", "ZSTD", "AUTO"])
def test_all_arrives_whatever_is_asked_for_and_the_status_tells(cluster: Cluster, asked: str | None) -> None:
    with reading(cluster, f"job {asked}", compression=asked, checksum=True) as elements:
        some = list(islice(elements, 50))
        # Which is faster is this machine's matter, and that of its load.
        found = told(cluster, f"job {asked}", "times smaller" if asked == "AUTO" else "asked for")
        assert np.array_equal([*some, *elements], ROWS)
    assert ("the link carries" in found) if asked == "AUTO" else (found == f"{asked or 'none'}: as asked for")


@pytest.mark.slow
def test_nothing_is_said_of_readers_in_this_process(cluster: Cluster) -> None:
    with reading(cluster, "local", data_transfer_protocol="local") as elements:
        assert np.array_equal(next(elements), ROWS[0])
        (job,) = [job for job in cluster.service.status().jobs if job.name == "local"]
        assert [task.compression for task in job.tasks] == [""]


@pytest.mark.slow
def test_auto_says_what_is_not_installed_and_goes_without(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsnb.client.tasks.installed_codecs", lambda: ())
    with reading(cluster, "bare") as elements:
        assert np.array_equal(next(elements), ROWS[0])
        assert told(cluster, "bare", "not") == "none: lz4 and zstd are not installed on both sides"


def test_a_codec_that_is_named_and_missing_is_refused_at_the_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "installed_codecs", lambda: ())
    compression.load_codec.cache_clear()
    with pytest.raises(dsnb.errors.FailedPreconditionError, match="LZ4 is not installed here"):
        reading(cluster, "named", compression="LZ4")


@pytest.mark.slow
def test_an_element_larger_than_any_credit_arrives_whole(cluster: Cluster) -> None:
    large = np.arange(3_000_000)
    ds = dsnb.Dataset.from_tensors(large).repeat(3)
    for protocol in ("grpc", "local"):
        made = dsnb.distribute(
            "parallel_epochs", cluster.service, max_outstanding_requests=1, data_transfer_protocol=protocol
        )
        assert all(np.array_equal(element, large) for element in ds.apply(made))

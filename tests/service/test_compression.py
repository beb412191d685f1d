"""What readers ask for about compression and checksums, through a whole service."""

from __future__ import annotations

from collections.abc import Iterator
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


def read(cluster: Cluster, job: str, **options: Any) -> list[Any]:
    ds = dsnb.Dataset.from_tensor_slices(ROWS).apply(
        dsnb.distribute("parallel_epochs", cluster.service, job, **{"data_transfer_protocol": "grpc", **options})
    )
    return list(ds)


def told(cluster: Cluster, job: str) -> str:
    def found() -> str:
        (status,) = [status for status in cluster.service.status().jobs if status.name == job]
        return "; ".join(task.compression for task in status.tasks)

    return wait_for(found, what="the status to tell of compression")


@pytest.mark.parametrize(
    "asked, why",
    [(None, "none: as asked for"), ("LZ4", "LZ4: as asked for"), ("ZSTD", "ZSTD: as asked for"), ("AUTO", "")],
)
def test_all_arrives_whatever_is_asked_for_and_the_status_tells(cluster: Cluster, asked: str | None, why: str) -> None:
    elements = read(cluster, f"job {asked}", compression=asked, checksum=True)
    assert np.array_equal(elements, ROWS)
    found = told(cluster, f"job {asked}")
    if asked == "AUTO":  # what is faster is this machine's matter
        assert "times smaller" in found
        assert "the link carries" in found
    else:
        assert found == why


def test_nothing_is_said_of_readers_in_this_process(cluster: Cluster) -> None:
    assert np.array_equal(read(cluster, "local", data_transfer_protocol="local"), ROWS)
    (job,) = [job for job in cluster.service.status().jobs if job.name == "local"]
    assert {task.compression for task in job.tasks} == {""}


def test_auto_says_what_is_not_installed_and_goes_without(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsnb.client.tasks.installed", lambda: ())
    assert np.array_equal(read(cluster, "bare"), ROWS)
    assert told(cluster, "bare") == "none: lz4 and zstd are not installed on both sides"


def test_a_codec_that_is_named_and_missing_is_refused_at_the_call(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "installed", lambda: ())
    compression.codec.cache_clear()
    with pytest.raises(dsnb.errors.FailedPreconditionError, match="LZ4 is not installed here"):
        read(cluster, "named", compression="LZ4")


def test_an_element_larger_than_any_credit_arrives_whole(cluster: Cluster) -> None:
    large = np.arange(3_000_000)
    ds = dsnb.Dataset.from_tensors(large).repeat(3)
    for protocol in ("grpc", "local"):
        made = dsnb.distribute(
            "parallel_epochs", cluster.service, max_outstanding_requests=1, data_transfer_protocol=protocol
        )
        assert all(np.array_equal(element, large) for element in ds.apply(made))

"""Section 1B: arguments are checked where they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import dsnb
from dsnb.errors import InvalidArgumentError, NotFoundError
from tests.conformance.conftest import MakeCluster
from tests.support.reading import numbers

NOBODY = "127.0.0.1:9"  # never called: what is wrong here is found before


def distribute(dataset_id: str | None, mode: Any = "parallel_epochs", service: Any = NOBODY, **options: Any) -> Any:
    """`distribute`, or `from_dataset_id` where there is an id."""
    if dataset_id is None:
        return dsnb.Dataset.range(10).apply(dsnb.distribute(mode, service, **options))
    return dsnb.from_dataset_id(mode, service, dataset_id, **options)


def refused(call: Callable[[], object], *fragments: str) -> None:
    """A value error that names dsnb's own class, holds the fragments and says what to try."""
    with pytest.raises(ValueError) as error:
        call()
    assert isinstance(error.value, InvalidArgumentError)
    assert [fragment for fragment in fragments if fragment not in str(error.value)] == []
    assert error.value.hint


def test_line_023_invalid_compression() -> None:
    refused(lambda: distribute(None, compression="foo"), "Invalid `compression` argument")
    ten = dsnb.Dataset.range(10)
    refused(lambda: dsnb.register_dataset(NOBODY, ten, compression="foo"), "Invalid `compression` argument")


@pytest.mark.parametrize("service", [1, None, b"localhost:1", ["localhost:1"], ("grpc", 1)], ids=repr)
def test_line_024_non_string_address(service: Any) -> None:
    for call in (
        lambda: distribute(None, service=service),
        lambda: distribute("1000", service=service),
        lambda: dsnb.register_dataset(service, dsnb.Dataset.range(10)),
    ):
        refused(call, "`service` must be a string")


def test_line_025_empty_address() -> None:
    for call in (
        lambda: distribute(None, service=""),
        lambda: distribute("1000", service=""),
        lambda: dsnb.register_dataset("", dsnb.Dataset.range(10)),
    ):
        refused(call, "`service` must not be empty")


@pytest.mark.parametrize("service", ["grp://localhost:2222", ("grp", "localhost:2222")], ids=repr)
def test_line_026_invalid_protocol(service: Any) -> None:
    with pytest.raises(NotFoundError, match=r"'grp'.*unknown(.|\n)*grpc://host:port"):
        distribute(None, service=service)


@pytest.mark.parametrize(
    "service", ["grpc://grpc://localhost:1", "a://b://c:1", ("grpc", "grpc://localhost:1")], ids=str
)
def test_line_026_an_address_with_several_protocols(service: Any) -> None:
    for call in (
        lambda: distribute(None, service=service),
        lambda: distribute("1000", service=service),
        lambda: dsnb.register_dataset(service, dsnb.Dataset.range(10)),
    ):
        refused(call, "`service`", 'several "://"')


@pytest.mark.parametrize("mode", ["invalid", "OFF", None, 1, 6], ids=repr)
def test_line_027_invalid_processing_mode(mode: Any) -> None:
    accepted = [
        "parallel_epochs",
        "distributed_epoch",
        *(f"ShardingPolicy.{name}" for name in ("OFF", "DYNAMIC", "FILE", "DATA", "FILE_OR_DATA", "HINT")),
    ]
    refused(lambda: distribute(None, mode=mode), repr(mode), *accepted)
    refused(lambda: distribute("1000", mode=mode), repr(mode), *accepted)


def test_line_028_empty_job_name_distribute() -> None:
    refused(lambda: distribute(None, job_name=""), "`job_name` must not be empty")


def test_line_029_empty_job_name_from_dataset_id() -> None:
    refused(lambda: distribute("1000", job_name=""), "`job_name` must not be empty")


@pytest.mark.parametrize("name", [3, b"job"], ids=repr)
def test_line_030_non_string_job_name_distribute(name: Any) -> None:
    refused(lambda: distribute(None, job_name=name), "`job_name` must be a string")


@pytest.mark.parametrize("name", [3, b"job"], ids=repr)
def test_line_031_non_string_job_name_from_dataset_id(name: Any) -> None:
    refused(lambda: distribute("1000", job_name=name), "`job_name` must be a string")


@pytest.fixture
def addresses(cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All ways to name one service."""
    one = cluster(1)
    monkeypatch.setenv("DSNB_TOKEN", one.dispatcher.token)
    return [f"grpc://{one.address}", ("grpc", one.address), one.address, one.service, one.dispatcher]


@pytest.mark.slow
def test_line_032_explicit_protocol_distribute(addresses: list[Any]) -> None:
    assert [numbers(distribute(None, service=service)) for service in addresses] == [list(range(10))] * 5


def test_line_033_explicit_protocol_from_dataset_id(addresses: list[Any]) -> None:
    ids = [dsnb.register_dataset(service, dsnb.Dataset.range(10)) for service in addresses]

    assert len(set(ids)) == 1
    assert [numbers(distribute(ids[0], service=service)) for service in addresses] == [list(range(10))] * 5


@pytest.mark.slow
def test_line_034_compression(cluster: MakeCluster, transfer: str) -> None:
    service = cluster(1).service

    assert inspect.signature(dsnb.distribute).parameters["compression"].default == "AUTO"
    for compression in ("AUTO", None, "LZ4", "ZSTD"):
        options = {"compression": compression, "data_transfer_protocol": transfer}
        assert numbers(distribute(None, service=service, **options)) == list(range(10))
        dataset_id = dsnb.register_dataset(service, dsnb.Dataset.range(10), compression=compression)
        assert numbers(distribute(dataset_id, service=service, data_transfer_protocol=transfer)) == list(range(10))


@pytest.mark.parametrize("dataset_id", [None, "1000"], ids=["distribute", "from_dataset_id"])
def test_line_035_consumers_come_together_and_with_a_job_name(dataset_id: str | None) -> None:
    told = "consumer_index and num_consumers must be given together"
    refused(lambda: distribute(dataset_id, job_name="job", consumer_index=0), told)
    refused(lambda: distribute(dataset_id, job_name="job", num_consumers=1), told)
    refused(lambda: distribute(dataset_id, consumer_index=0, num_consumers=1), "num_consumers needs a job_name")

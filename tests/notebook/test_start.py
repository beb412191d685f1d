"""`start` in a cell that is run again, in another cell, and beside another kernel."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

import dsnb
from dsnb.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from dsnb.wire import discovery
from tests.support.processes import python_process
from tests.support.reading import numbers, run_in_threads
from tests.support.requires import require_module

ANOTHER_KERNEL = "import dsnb; service = dsnb.start(workers=0{}); print('READY', service.name, flush=True); input()"


@pytest.fixture(autouse=True)
def stop_all() -> Iterator[None]:
    yield
    for connection in discovery.running():
        dsnb.start(name=connection.name).stop()


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_processes_that_were_begun_end_with_a_start_that_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AlreadyExistsError, match="port"):
        dsnb.start(workers=2, isolation="process", port=taken.getsockname()[1])


def test_the_same_again_gives_back_the_service_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first = dsnb.start(workers=1)
    again = dsnb.start(workers=1)
    assert again.target == first.target
    assert said(capsys) == ["dsnb: the service 'default' is already running"]
    again.stop()
    assert first.stopped
    assert discovery.running() == []


def test_another_number_of_workers_scales_the_service_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    first = dsnb.start(workers=1)
    assert dsnb.start(workers=3).target == first.target
    assert first.workers == 3
    assert dsnb.start(workers=0).workers == 0
    assert said(capsys) == [
        "dsnb: the service 'default' is already running; now 3 worker(s) instead of 1",
        "dsnb: the service 'default' is already running; now 0 worker(s) instead of 3",
    ]


def limits_of(service: dsnb.DataService) -> tuple[int, int] | None:
    found = service.status().autoscale
    return None if found is None else (found.minimum, found.maximum)


def test_a_service_starts_with_autoscaling_between_the_limits_of_the_cell(capsys: pytest.CaptureFixture[str]) -> None:
    service = dsnb.start(autoscale=(3, 5))
    assert (service.workers, limits_of(service)) == (3, (3, 5))
    assert dsnb.start(workers=1, autoscale=(1, 5)).target == service.target
    assert (service.workers, limits_of(service)) == (3, (1, 5)), "the service chooses by now"
    dsnb.start(workers=2)
    assert (service.workers, limits_of(service)) == (2, None)
    dsnb.start(workers=1, autoscale=(1, 2))
    assert (service.workers, limits_of(service)) == (1, (1, 2))
    assert said(capsys)[1:] == [
        "dsnb: the service 'default' is already running; now 2 worker(s) instead of 3",
        "dsnb: the service 'default' is already running; now 1 worker(s) instead of 2",
    ]


@pytest.mark.parametrize("limits", [(2, 1), (0, 0), (-1, 2), (1, 2, 3), 4, ("1", 2), (1.5, 2), (1, 10_000)])
def test_limits_that_cannot_be_kept_start_nothing(limits: object) -> None:
    with pytest.raises(InvalidArgumentError, match="autoscale") as caught:
        dsnb.start(autoscale=limits)
    assert "autoscale=(1, 8)" in caught.value.hint
    assert discovery.running() == []


def test_other_settings_make_a_new_service_where_nobody_reads(capsys: pytest.CaptureFixture[str]) -> None:
    first = dsnb.start(workers=1)
    second = dsnb.start(workers=2, cross_trainer_cache_size_bytes=1 << 20, token="t")
    (line,) = said(capsys)
    assert line.startswith("dsnb: the service 'default' was restarted with another `token` and `cross_tr")
    assert first.stopped
    assert second.target != first.target
    assert [worker.capacity_bytes for worker in second.status().workers] == [1 << 20, 1 << 20]
    assert dsnb.start(workers=2, cross_trainer_cache_size_bytes=1 << 20).token == "t", "any token will do"
    assert dsnb.start(workers=2).target != second.target, "the defaults are settings too"
    with pytest.raises(FailedPreconditionError, match="was stopped"):
        first.status()


def test_a_service_that_is_read_is_replaced_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    first = dsnb.start(workers=1)
    numbers = dsnb.Dataset.range(10**9).apply(dsnb.distribute("parallel_epochs", first, job_name="train"))
    with iter(numbers) as elements:
        next(elements)
        with pytest.raises(FailedPreconditionError, match=r"1 reader\(s\) read from it \(job 'train'\)") as caught:
            dsnb.start(workers=1, cross_trainer_cache_size_bytes=1 << 20)
        assert (caught.value.did, "replace=True" in caught.value.hint) == ("it was left as it is", True)
        assert next(elements) == 1
        assert dsnb.start(workers=1, replace=True).target == first.target, "nothing differs, nothing is replaced"
        dsnb.start(workers=1, cross_trainer_cache_size_bytes=1 << 20, replace=True)
    assert first.stopped
    assert [line.partition(" with another")[0] for line in said(capsys)] == [
        "dsnb: the service 'default' is already running",
        "dsnb: the service 'default' was restarted",
    ]


@pytest.mark.filterwarnings("ignore::dsnb.DataLossWarning")
def test_a_reader_of_a_service_that_was_stopped_learns_of_it_at_once() -> None:
    service = dsnb.start(workers=1)
    with iter(dsnb.Dataset.range(10**9).apply(dsnb.distribute("parallel_epochs", service))) as elements:
        next(elements)
        service.stop()
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="the service 'default' has ended: it was stopped") as caught:
            numbers(elements)  # what had come before is read first
        assert time.monotonic() - began < 10
        assert "dsnb.start()" in caught.value.hint


def test_a_with_block_stops_only_the_service_that_it_started() -> None:
    first = dsnb.start(workers=1)
    with dsnb.start(workers=1) as again, dsnb.connect() as connected:
        assert again.target == connected.target == first.target
    assert len(first.status().workers) == 1
    with first:
        pass
    assert first.stopped
    with dsnb.start(workers=1) as anew:
        pass
    assert anew.stopped


@pytest.mark.slow
def test_all_handles_of_a_service_share_its_dashboard() -> None:
    require_module("panel")
    first = dsnb.start(workers=1)
    assert first.dashboard_url() == dsnb.start(workers=1).dashboard_url()
    first.stop()


def test_a_name_makes_a_service_of_its_own() -> None:
    first, second = dsnb.start(workers=0), dsnb.start(workers=0, name="second")
    assert (first.name, second.name) == ("default", "second")
    assert dsnb.start(workers=0).target == first.target
    assert dsnb.start(workers=0, name="second").target == second.target
    second.stop()
    assert dsnb.start(workers=0, name="second").target != second.target


def test_a_name_of_another_kernel_is_refused_with_how_to_connect() -> None:
    with python_process(ANOTHER_KERNEL.format(", name='digits'")) as other:
        with pytest.raises(AlreadyExistsError, match=f"'digits' runs in process {other.pid} at grpc://") as caught:
            dsnb.start(workers=0, name="digits")
        assert "dsnb.connect('digits')" in caught.value.hint
        assert dsnb.connect("digits").name == "digits"
        assert threading.active_count() == 1 or not [t for t in threading.enumerate() if "dispatcher" in t.name]


@pytest.mark.slow
def test_without_a_name_another_kernels_default_is_left_alone() -> None:
    with python_process(ANOTHER_KERNEL.format("")) as other:
        assert other.wait_for_line("READY") == "READY default"
        assert dsnb.start(workers=0).name == "default-2"
        assert dsnb.start(workers=0).name == "default-2", "this kernel's own"


def test_threads_that_start_at_once_share_one_service() -> None:
    services = run_in_threads([lambda: dsnb.start(workers=1)] * 4)
    assert len({service.target for service in services}) == 1


def test_a_start_that_fails_leaves_no_name_taken() -> None:
    with dsnb.start(workers=0, name="taken") as service:
        port = int(service.target.rpartition(":")[2])
        with pytest.raises(AlreadyExistsError, match="port"):
            dsnb.start(workers=0, name="mine", port=port)
    assert dsnb.start(workers=0, name="mine").name == "mine"

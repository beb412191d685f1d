"""Autoscaling of a real service: it is switched on and off, adds workers for a reader that waits, and is shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

import dsnb
import dsnb.worker.server
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from tests.faults.chaos import paced
from tests.support.cluster import Cluster
from tests.support.waiting import wait_for


@pytest.fixture
def service() -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=1) as service:
        yield service


def test_it_is_switched_on_and_off_and_shown(service: dsnb.DataService) -> None:
    service.autoscale(minimum=1, maximum=3)
    on = service.status().autoscale
    assert on is not None
    assert (on.minimum, on.maximum) == (1, 3)
    assert "1 worker, autoscaling between 1 and 3: 1 needed" in repr(service.status())
    assert "autoscaling between 1 and 3" in service.status()._repr_html_()
    dsnb.connect(service.target, token=service.token).autoscale(minimum=2, maximum=4)
    assert service.status().autoscale.minimum == 2
    service.autoscale(None)
    assert service.status().autoscale is None
    told = [event.text for event in service.status().events]
    assert any("autoscaling was switched on by svc.autoscale()" in text and "2 to 4 workers" in text for text in told)
    assert any("autoscaling was switched off by svc.autoscale()" in text for text in told)


def test_limits_that_cannot_be_kept_are_refused(service: dsnb.DataService) -> None:
    with pytest.raises(InvalidArgumentError, match="`maximum` is 1, and `minimum` is 2"):
        service.autoscale(2, 1)
    with pytest.raises(InvalidArgumentError, match="`maximum` is 0"):
        service.autoscale(0, 0)
    assert service.status().autoscale is None


def test_a_service_whose_workers_were_started_one_by_one_names_the_metric() -> None:
    with Cluster(workers=1) as cluster:
        with pytest.raises(FailedPreconditionError, match="were started one by one") as refused:
            cluster.service.autoscale()
        assert "dsnb_workers_wanted" in refused.value.hint


def test_too_few_workers_become_the_minimum(service: dsnb.DataService) -> None:
    service.autoscale(minimum=2, maximum=3)
    wait_for(lambda: len(service.status().workers) == 2, what="the second worker", timeout=30.0)
    assert any("from 1 to 2 workers: the limits are 2 to 3" in event.text for event in service.status().events)


@pytest.mark.slow
def test_a_reader_that_waits_gets_more_workers_and_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that waits 20 ms needs no processor: where one is idle, more workers help."""
    monkeypatch.setattr(dsnb.worker.server, "idle_ns", lambda: 2 * time.monotonic_ns())  # a machine that is not busy
    with dsnb.start(workers=1) as service:
        slow = dsnb.Dataset.range(3_000).map(paced(0.02))
        got: list[int] = []
        reading = threading.Thread(
            target=lambda: got.extend(map(int, slow.apply(dsnb.distribute("distributed_epoch", service, job_name="a"))))
        )
        reading.start()
        service.autoscale(minimum=1, maximum=4)
        wait_for(lambda: service.workers > 1, what="more workers", timeout=60.0)
        reading.join(90.0)
        assert sorted(got) == list(range(3_000))
        decisions = [event.text for event in service.status().events]
        assert any("the readers of job 'a' wait" in text and "one worker makes" in text for text in decisions)

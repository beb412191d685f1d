"""What a page may ask of a service: once at a time, with a deadline, and with an outcome in words."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

import dsnb
from dsnb.dashboard.control_requests import ACTIONS, Outcome, Request, RequestRunner, subject_exists
from dsnb.dashboard.panels.buttons import notices
from dsnb.dashboard.panels.jobs import jobs
from dsnb.dashboard.panels.strip import strip
from dsnb.dashboard.panels.workers import workers
from dsnb.dashboard.view import ControlState
from dsnb.errors import NotFoundError
from tests.dashboard.snapshots import job, place, seen, snapshot, task, trainer, worker
from tests.support.waiting import wait_for

AWAY = Request("evict", (("job", "train"), ("trainer", "a")))


@pytest.fixture(scope="module")
def service() -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=1, name="controlled") as service:
        yield service


def ended(requests: RequestRunner) -> Outcome:
    outcome = wait_for(
        lambda: next((o for o in requests.outcomes() if o.state != "pending"), None), what="the request to end"
    )
    assert isinstance(outcome, Outcome)
    return outcome


@pytest.mark.slow
def test_a_request_is_confirmed_by_the_service(service: dsnb.DataService) -> None:
    cache = dsnb.CrossTrainerCache("a", on_lag="wait")
    numbers = (
        dsnb.Dataset.range(9)
        .repeat()
        .apply(dsnb.distribute("parallel_epochs", service, job_name="train", cross_trainer_cache=cache))
    )
    requests = RequestRunner(lambda: (service.target, service.token))
    elements = iter(numbers)
    next(elements)
    service.wait_until(lambda now: subject_exists(now, AWAY))
    assert requests.submit(AWAY)
    outcome = ended(requests)
    assert outcome.state == "done"
    assert outcome.text.startswith("the trainer a of train is evicted, and nothing is kept for it, confirmed")
    del elements
    requests.stop()


@pytest.mark.slow
def test_what_the_service_refuses_is_told_in_its_words(service: dsnb.DataService) -> None:
    requests = RequestRunner(lambda: (service.target, service.token))
    requests.submit(Request("evict", (("job", "nobody's"), ("trainer", "a"))))
    outcome = ended(requests)
    assert outcome.state == "failed"
    assert "nobody's" in outcome.text
    requests.stop()


def test_a_request_under_way_is_not_made_twice() -> None:
    go, asked = threading.Event(), []

    def reach() -> tuple[str, str]:
        asked.append(1)
        go.wait(20)
        raise NotFoundError("no service runs", hint="start one")

    requests = RequestRunner(reach)
    assert requests.submit(AWAY)
    assert not requests.submit(AWAY)
    assert [outcome.state for outcome in requests.outcomes()] == ["pending"]
    go.set()
    assert ended(requests).text == "No service runs. Start one."
    assert len(asked) == 1
    requests.stop()


def test_an_unknown_verb_is_not_asked() -> None:
    assert not RequestRunner(lambda: ("", "")).submit(Request("format_the_disk"))


def test_only_what_is_there_can_be_asked_about() -> None:
    here = snapshot(jobs=(job(trainers=(trainer("a"),)),), workers=(worker("w0"),))
    assert subject_exists(here, AWAY)
    assert not subject_exists(here, Request("evict", (("job", "train"), ("trainer", "b"))))
    assert not subject_exists(here, Request("evict", (("trainer", "a"),)))
    assert not subject_exists(here, Request("drain", (("worker", "w1"),)))
    assert not subject_exists(None, AWAY)


def test_a_page_that_may_only_look_has_no_buttons() -> None:
    shared = job(trainers=(trainer("a", cursors=(place(lag=1),)),), tasks=(task(head=9),))
    page = seen(snapshot(jobs=(shared,)))
    assert "data-do" not in strip(page)
    control = ControlState(allowed=True)
    allowed = strip(seen(snapshot(jobs=(shared,)), control=control))
    assert 'data-do="evict"' in allowed
    assert "&quot;trainer&quot;: &quot;a&quot;" in allowed


def test_a_grave_button_asks_again_and_a_pending_one_cannot_be_pressed() -> None:
    shared = snapshot(jobs=(job(trainers=(trainer("a", cursors=(place(lag=1),)),), tasks=(task(head=9),)),))
    assert ACTIONS["evict"].needs_confirmation
    armed = strip(seen(shared, control=ControlState(allowed=True, unconfirmed=AWAY)))
    assert ">really?</button>" in armed
    pending = Outcome(request=AWAY, state="pending", text="sending a away", changed_at=0.0)
    busy = seen(shared, control=ControlState(allowed=True, outcomes=(pending,)))
    assert re.search(r'<button [^>]*disabled[^>]*data-do="evict"', strip(busy))
    assert "sending a away …" in notices(busy)


def test_only_a_job_that_may_be_read_on_can_be_cancelled() -> None:
    there = snapshot(jobs=(job("over", state="finished", clients=0), job("left", state="idle", clients=0), job("now")))
    page = jobs(seen(there, control=ControlState(allowed=True)))
    assert re.findall(r'data-do="cancel" data-target="{&quot;job&quot;: &quot;(\w+)&quot;}"', page) == ["now", "left"]


def test_the_buttons_for_workers_say_to_how_many() -> None:
    page = workers(seen(snapshot(workers=(worker(), worker("w1")), scalable=True), control=ControlState(allowed=True)))
    assert 'title="change the number of workers to 1"' in page
    assert 'title="change the number of workers to 3"' in page

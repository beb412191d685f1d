"""The button "peek": who may press it, what the page then shows, and until when."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dsnb
from dsnb.dashboard.access import Access, AccessPolicy
from dsnb.dashboard.control_requests import Outcome, Request, RequestRunner
from dsnb.dashboard.feed import Feed
from dsnb.dashboard.panels.buttons import notices
from dsnb.dashboard.panels.jobs import jobs
from dsnb.dashboard.panels.peek import peek
from dsnb.dashboard.view import ControlState
from dsnb.monitor.peek import PeekedJob
from dsnb.wire.messages import ElementPreview, LeafPreview
from tests.dashboard.snapshots import job, seen, snapshot
from tests.support.cluster import Cluster
from tests.support.requires import require_module
from tests.support.waiting import wait_for

REQUEST = Request("peek", (("job", "train"),))
PIXEL = b"\x89PNG<pixels>"
FOUND = PeekedJob(
    job="train",
    worker="w0",
    elements=(
        ElementPreview(
            index=1204,
            leaves=(
                LeafPreview(path="image", shape="(8, 8)", dtype="uint8", values="0 to 255", thumbnail=PIXEL),
                LeafPreview(path="<b>name</b>", dtype="str", values="'<script>'"),
            ),
            more_leaves=3,
        ),
        ElementPreview(index=1203, error="an error is in its place: ValueError: no label"),
    ),
)


def outcome(state: str = "done", text: str = "", peeked: PeekedJob | None = None) -> Outcome:
    return Outcome(request=REQUEST, state=state, text=text, changed_at=0.0, peeked=peeked)


def panel(of: Outcome | None) -> str:
    return peek(seen(snapshot(jobs=(job(),)), control=ControlState(allowed=True, peek=of)))


def test_elements_are_shown_as_rows_with_their_thumbnails_and_can_be_closed() -> None:
    page = panel(outcome(peeked=FOUND))
    assert "element 1,204" in page
    assert 'src="data:image/png;base64,iVBORzxwaXhlbHM+"' in page
    assert 'alt="thumbnail of image"' in page
    assert "&lt;b&gt;name&lt;/b&gt;" in page
    assert "<script>" not in page
    assert "3 more leaves are not shown." in page
    assert "An error is in its place: ValueError: no label." in page
    assert 'data-pick="close-peek"' in page


def test_nothing_is_shown_until_somebody_asks() -> None:
    assert panel(None) == ""


def test_an_empty_log_a_failure_and_a_wait_are_told_in_words() -> None:
    assert "keeps no element of train: trainers" in panel(outcome(peeked=PeekedJob(job="train", worker="w0")))
    assert "The worker is gone." in panel(outcome("failed", "The worker is gone."))
    assert "The worker is asked …" in panel(outcome("pending", "peeking at train"))


def test_a_peek_is_no_notice() -> None:
    control = ControlState(allowed=True, outcomes=(outcome("pending", "peeking at train"),))
    assert notices(seen(snapshot(jobs=(job(),)), control=control)) == ""


def test_only_jobs_that_are_read_have_the_button_and_only_on_pages_with_control() -> None:
    there = snapshot(jobs=(job("now"), job("held", state="paused"), job("left", state="idle", clients=0)))
    page = jobs(seen(there, control=ControlState(allowed=True)))
    found = re.findall(r'data-do="peek" data-target="{&quot;job&quot;: &quot;(\w+)&quot;}"', page)
    assert sorted(found) == ["held", "now"]
    assert "data-do" not in jobs(seen(there, control=ControlState()))
    assert AccessPolicy(key="k", read_only_reason="asked").access_for("k") is Access.READ_ONLY


class Message:
    def __init__(self, **data: Any) -> None:
        self.data = data


PEEK_MESSAGE = Message(do="peek", target={"job": "train"})


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def reading(cluster: Cluster) -> Iterator[Feed]:
    """The feed of a service whose job "train" is read and has elements 1 to 19 left."""
    shared = dsnb.distribute("parallel_epochs", cluster.service, job_name="train")
    with iter(dsnb.Dataset.range(20).apply(shared)).start() as elements:
        next(elements)
        wait_for(lambda: cluster.job("train").tasks[0].head == 20, what="all elements to be produced")
        feed = Feed(lambda _stop: iter(()))
        feed.add(cluster.status())
        yield feed


def test_a_page_that_may_only_look_cannot_peek_by_a_message_either(reading: Feed) -> None:
    require_module("panel")
    from dsnb.dashboard.page import PageSession

    session = PageSession(reading, None, "it is served with --read-only")
    session.on_message(PEEK_MESSAGE)
    assert session.board.html_peek == ""


def test_a_page_shows_what_it_asked_for_until_closed_and_other_pages_do_not(cluster: Cluster, reading: Feed) -> None:
    require_module("panel")
    from dsnb.dashboard.page import PageSession

    requests = RequestRunner(lambda: (cluster.dispatcher.target, cluster.dispatcher.token))
    mine, other = PageSession(reading, requests), PageSession(reading, requests)

    def mine_shows(text: str) -> bool:
        mine.tick()
        return text in mine.board.html_peek

    mine.on_message(PEEK_MESSAGE)
    wait_for(lambda: mine_shows("element 19"), what="the elements")
    other.tick()
    assert other.board.html_peek == ""
    cluster.workers[0].stop()
    mine.on_message(PEEK_MESSAGE)
    wait_for(lambda: mine_shows("No worker has elements of the job train."), what="the failure")
    mine.on_message(Message(pick="close-peek"))
    assert mine.board.html_peek == ""
    requests.stop()

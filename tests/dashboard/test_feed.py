"""The feed: what it keeps, what it makes of silence and failure, and that it ends."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from dsnb.dashboard.feed import Feed, SnapshotStream, shared_feed
from dsnb.errors import UnavailableError
from dsnb.monitor.snapshot import Snapshot
from tests.dashboard.snapshots import job, snapshot
from tests.support.waiting import wait_for


def of(*snapshots: Snapshot) -> SnapshotStream:
    """A source that yields these, then nothing more until it is stopped."""

    def source(stop: threading.Event) -> Iterator[Snapshot]:
        yield from snapshots
        stop.wait()

    return source


@pytest.fixture
def feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    made = Feed(of(*request.param)).start()
    yield made
    made.stop()


@pytest.mark.parametrize("feed", [[snapshot(1), snapshot(2), snapshot(3)]], indirect=True)
def test_what_came_is_kept_in_order(feed: Feed) -> None:
    wait_for(lambda: len(feed.since(0.0)) == 3, what="three snapshots")
    moments = feed.since(0.0)
    assert [moment.snapshot.seq for moment in moments] == [1, 2, 3]
    assert feed.since(moments[0].arrived_at) == [m for m in moments if m.arrived_at > moments[0].arrived_at]
    assert feed.latest() is moments[-1]


@pytest.mark.parametrize("feed", [[snapshot(7), snapshot(7), snapshot(8)]], indirect=True)
def test_the_same_snapshot_once_more_is_no_news(feed: Feed) -> None:
    wait_for(lambda: (moment := feed.latest()) and moment.snapshot.seq == 8, what="the last snapshot")
    assert [moment.snapshot.seq for moment in feed.since(0.0)] == [7, 8]


def test_the_ring_is_bounded() -> None:
    feed = Feed(of(), max_samples=10)
    for seq in range(50):
        feed.add(snapshot(seq))
    assert [moment.snapshot.seq for moment in feed.since(0.0)] == list(range(40, 50))


def test_each_moment_has_its_rates() -> None:
    feed = Feed(of())
    feed.add(snapshot(1, jobs=(job(produced=0),)))
    feed.add(snapshot(2, jobs=(job(produced=50),)))
    assert [moment.rates.job("train").produced for moment in feed.since(0.0)] == [0, 50]


def test_a_new_run_of_the_service_begins_without_rates() -> None:
    feed = Feed(of())
    feed.add(snapshot(9, started=1.0, jobs=(job(produced=900),)))
    feed.add(snapshot(1, started=2.0, jobs=(job(produced=5),)))
    moments = feed.since(0.0)
    assert [moment.snapshot.seq for moment in moments] == [9, 1]
    assert moments[-1].rates.span_s == 0


def test_before_the_first_snapshot_it_is_stale() -> None:
    health = Feed(of()).health()
    assert health.stale
    assert health.age_s is None


@pytest.mark.slow
def test_a_failing_source_is_named_and_asked_again() -> None:
    back = threading.Event()

    def source(stop: threading.Event) -> Iterator[Snapshot]:
        if not back.is_set():
            raise UnavailableError("nothing answers at h:1", hint="is it running?")
        yield snapshot(1)
        stop.wait()

    feed = Feed(source).start()
    try:
        wait_for(lambda: feed.health().attempts >= 2, what="a second attempt")
        assert feed.health().error == "Nothing answers at h:1. Is it running?"
        back.set()
        wait_for(lambda: feed.latest() is not None, what="the snapshot of the service that came back")
        assert feed.health().error == ""
        assert not feed.health().stale
    finally:
        feed.stop()


def test_a_stream_that_ends_is_asked_for_again() -> None:
    calls: list[int] = []

    def source(stop: threading.Event) -> Iterator[Snapshot]:
        calls.append(len(calls))
        yield snapshot(len(calls))

    feed = Feed(source).start()
    try:
        wait_for(lambda: len(feed.since(0.0)) >= 2, what="the stream to be opened twice")
    finally:
        feed.stop()


def test_a_stream_that_ends_is_a_service_that_was_stopped_until_it_is_back() -> None:
    back = threading.Event()

    def source(stop: threading.Event) -> Iterator[Snapshot]:
        yield snapshot(1)
        if back.is_set():
            yield snapshot(2)
            stop.wait()

    feed = Feed(source).start()
    try:
        wait_for(lambda: feed.health().end, what="the end to be noticed")
        assert re.fullmatch(r"The service was stopped at \d\d:\d\d:\d\d\.", feed.health().end)
        back.set()
        wait_for(lambda: feed.latest().snapshot.seq == 2, what="the service to be back")  # type: ignore[union-attr]
        assert feed.health().end == ""
    finally:
        feed.stop()


def test_an_unexpected_error_does_not_end_the_feed() -> None:
    def source(stop: threading.Event) -> Iterator[Snapshot]:
        if not stop.is_set():
            raise ValueError("odd")
        yield snapshot(1)

    feed = Feed(source).start()
    try:
        wait_for(lambda: feed.health().attempts >= 2, what="a second attempt")
        assert feed.health().error == "ValueError: odd."
    finally:
        feed.stop()


def test_all_pages_of_a_process_share_one_feed() -> None:
    source = of(snapshot(1))
    feed = shared_feed("shared-by-this-test", source)
    try:
        assert shared_feed("shared-by-this-test", source) is feed
    finally:
        feed.stop()

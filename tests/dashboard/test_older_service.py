"""A service of another version: what it does not know is told, and what it tells is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dsnb.dashboard.control_requests import Request, RequestRunner
from dsnb.dashboard.feed import Feed
from dsnb.dashboard.panels.header import header
from dsnb.dashboard.source import snapshot_stream
from dsnb.monitor.snapshot import VERSION, Snapshot
from dsnb.wire.codec import encode
from dsnb.wire.methods import WATCH
from dsnb.wire.server import GrpcServer
from tests.dashboard.snapshots import job, seen, snapshot, worker
from tests.support.waiting import wait_for

TOKEN = "a-token"


@pytest.fixture
def older() -> Iterator[str]:
    """The address of a server that publishes a status without all that came later, and knows no controls."""
    over = threading.Event()

    def watch(_request: Any, _context: Any) -> Iterator[bytes]:
        told = snapshot(jobs=(job(produced=7),), workers=(worker(),))
        yield encode(told)
        over.wait(30)

    server = GrpcServer("older", {WATCH: watch}, TOKEN)
    server.start("127.0.0.1", 0)
    yield f"127.0.0.1:{server.port}"
    over.set()
    server.stop(1)


@pytest.mark.slow
def test_its_status_is_shown_and_its_refusal_told(older: str) -> None:
    feed = Feed(snapshot_stream(older, TOKEN)).start()
    requests = RequestRunner(lambda: (older, TOKEN))
    try:
        wait_for(lambda: feed.latest() is not None, what="the older service's status")
        assert feed.latest().snapshot.jobs[0].produced == 7  # type: ignore[union-attr]
        assert requests.submit(Request("pause", (("job", "train"),)))
        wait_for(lambda: requests.outcomes()[0].state == "failed", what="the refusal")
        assert "does not know this call" in requests.outcomes()[0].text
        assert "another version of dsnb" in requests.outcomes()[0].text
    finally:
        requests.stop()
        feed.stop()


def test_another_version_is_named_in_the_header() -> None:
    fields: dict[str, Any] = {"seq": 1, "time": 1.0, "service": "s", "target": "grpc://h:1", "started": 0.0}
    assert 'data-field="version"' not in header(seen(Snapshot(version=VERSION, **fields)))
    newer = header(seen(Snapshot(version=VERSION + 1, **fields)))
    assert f"status version {VERSION + 1}" in newer

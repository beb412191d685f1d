"""The dashboard's server: it starts, refuses, and leaves nothing behind.

The snapshots are written by hand: what is tested is the server; `tests/browser` has the pages under a real service.
"""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsnb.errors import AlreadyExistsError, InvalidArgumentError
from dsnb.monitor.snapshot import Snapshot
from tests.dashboard.snapshots import job, snapshot
from tests.support.requires import require_module
from tests.support.waiting import wait_for


@pytest.fixture
def server() -> Any:
    require_module("panel")
    from dsnb.dashboard import server

    return server


def source(stop: threading.Event) -> Iterator[Snapshot]:
    yield snapshot(jobs=(job(produced=3),))
    stop.wait()


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.slow
def test_it_serves_a_page_and_stops_whole(server: Any) -> None:
    running = server.start_in_thread(source)
    try:
        shown = page(running.url)
        assert "data-panel" in shown
        hosts = set(re.findall(r"https?://([^/:\"'\s]+)", shown))
        assert hosts <= {"127.0.0.1", "www.w3.org"}, "it loads from another host; the second one names the format SVG"
    finally:
        running.stop()
    assert not running.running
    running.stop()
    with pytest.raises(OSError):
        page(running.url)


@pytest.mark.slow
def test_the_same_source_has_one_server(server: Any) -> None:
    first = server.start_in_thread(source)
    try:
        assert server.start_in_thread(source) is first
        assert server.start_in_thread(source, port=first.port) is first
    finally:
        first.stop()
    second = server.start_in_thread(source)
    assert second is not first
    second.stop()


def test_a_dashboard_that_is_started_again_on_its_port_has_the_same_address_and_key(server: Any) -> None:
    first = server.start_in_thread(source)
    first.stop()
    second = server.start_in_thread(source, port=first.port)
    try:
        assert second.url == first.url
    finally:
        second.stop()


def test_a_taken_port_is_an_error_in_the_caller(server: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AlreadyExistsError, match=f"the port {port} of 127.0.0.1 is taken") as caught:
            server.start_in_thread(source, port=port)
    assert "omit `port`" in caught.value.hint


def test_it_listens_on_loopback_only(server: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="loopback only") as caught:
        server.start_in_thread(source, address="0.0.0.0")
    assert "ssh -L" in caught.value.hint


def websocket_status(url: str, origin: str) -> str:
    """The first line of the answer to a websocket's opening request from a page of that origin."""
    host, port = urlsplit(url).netloc.split(":")
    request = (
        f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: {origin}\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: bokeh, none\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as wire:
        wire.sendall(request.encode())
        return wire.recv(4096).decode().splitlines()[0]


def test_pages_of_another_origin_are_refused(server: Any) -> None:
    running = server.start_in_thread(source)
    try:
        assert "403" in websocket_status(running.url, "http://evil.example")
        assert "403" in websocket_status(running.url, "http://127.0.0.1:1")
        # The right origin comes past that check, and is refused only for its missing token.
        assert "403" not in websocket_status(running.url, f"http://localhost:{running.port}")
    finally:
        running.stop()


def page_through(url: str, host: str) -> str:
    """The page as it is served to a browser that reached it under another host's name, by a tunnel or proxy."""
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host}), timeout=10) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.slow
def test_without_its_key_a_page_shows_nothing_to_other_users_of_this_machine(server: Any) -> None:
    running = server.start_in_thread(source)
    try:
        bare = running.url.partition("?")[0]
        for url in (bare, f"{bare}?key=", f"{bare}?key=guessed"):
            text = page(url)
            assert 'data-card="refused"' in text
            assert 'data-panel="' not in text
        assert "data-panel" in page(running.url)
    finally:
        running.stop()


def test_only_the_key_opens_a_page_from_elsewhere_and_its_websocket(server: Any) -> None:
    running = server.start_in_thread(source)
    try:
        bare = running.url.partition("?")[0]
        for url in (bare, f"{bare}?key=guessed"):
            assert 'data-card="refused"' in page_through(url, "hub.example:8888")
            assert "403" in websocket_status(url, "https://hub.example:8888")
        assert 'data-panel="strip"' in page_through(running.url, "hub.example:8888")
        assert "403" not in websocket_status(running.url, "https://hub.example:8888")
        assert "403" in websocket_status(running.url, "https://other.example:8888")
    finally:
        running.stop()


def test_the_service_is_watched_before_the_first_page_is_opened(server: Any) -> None:
    """So that a page shows what was before it was opened; further pages share the stream."""
    asked: list[threading.Event] = []

    def counted(stop: threading.Event) -> Iterator[Snapshot]:
        asked.append(stop)
        return source(stop)

    running = server.start_in_thread(counted)
    try:
        wait_for(lambda: running.feed.latest() is not None, what="the first snapshot")
        page(running.url)
        page(running.url)
        assert len(asked) == 1
    finally:
        running.stop()

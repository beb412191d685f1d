"""The application that Panel serves: one page for each session, all on one feed."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from functools import cache

import panel as pn

from dsnb.dashboard.access import NOT_ON_LOOPBACK, Access, AccessPolicy, on_loopback
from dsnb.dashboard.control_requests import RequestRunner
from dsnb.dashboard.feed import SnapshotSource, shared_feed
from dsnb.dashboard.page import page, refused_page
from dsnb.dashboard.source import address_lookup, shared_request_runner, snapshot_stream


def application(
    feed: SnapshotSource | Callable[[], SnapshotSource],
    requests: RequestRunner | None = None,
    policy: AccessPolicy | None = None,
    on_page_allowed: Callable[[str], object] = lambda _host: None,
) -> Callable[[], pn.Template]:
    """Return the function that makes the page of a new session, for `panel.serve` and similar.

    Args:
        feed: The source that all pages show, or a function that returns a new source for each page.
        requests: Runs the requests of pages; None for read-only pages.
        policy: Which pages are shown and which may control the service; by default all that reach the server.
        on_page_allowed: Called with the Host header of each page that is shown, before its websocket opens.
    """
    rule = policy or AccessPolicy()

    def make() -> pn.Template:
        host, given = _request_host_and_key()
        access = rule.access_for(given)
        if access is Access.REFUSED:
            return refused_page()
        on_page_allowed(host)
        return page(
            feed() if callable(feed) else feed, requests if access is Access.CONTROL else None, rule.read_only_reason
        )

    return make


def serve_here() -> None:
    """Serve the dashboard from the script that `panel serve` is running.

    The service is the one that `DSNB_SERVICE` names (by name or address), or the only one that runs. Pages need a key,
    which is printed when the first page is requested; with `--unix-socket` they need none, since only the socket's
    owner can reach them. Pages can control the service only if `--address` names a loopback address.
    """
    service = os.environ.get("DSNB_SERVICE") or None
    feed = shared_feed(service or "", snapshot_stream(service))
    requests = shared_request_runner(service or "", address_lookup(service))
    arguments = sys.orig_argv  # Bokeh replaces `sys.argv` while it runs a script
    if "--unix-socket" in arguments:
        policy = AccessPolicy()
    else:
        policy = AccessPolicy(key=_printed_key(), read_only_reason="" if on_loopback(arguments) else NOT_ON_LOOPBACK)
    application(feed, requests, policy)().servable(title="dsnb")


@cache
def _printed_key() -> str:
    """The key of this process's pages, printed once: `panel serve` prints its address before it runs this script."""
    key = secrets.token_urlsafe(12)
    sys.stderr.write(f"dsnb: open the dashboard with this at the end of its address: ?key={key}\n")
    sys.stderr.flush()
    return key


def _request_host_and_key() -> tuple[str, str]:
    """The Host header of this session's page request, and the key in its address."""
    given = pn.state.session_args.get("key", [b""])[0]
    return str(pn.state.headers.get("Host", "")), given.decode(errors="replace")

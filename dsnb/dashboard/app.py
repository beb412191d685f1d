"""The application as Panel serves it: one page for each session, all on one feed."""

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
    """What makes the page of a new session; for `panel.serve` and the like.

    Args:
        feed: What its pages show; or what gives each page its own.
        requests: What carries out their requests; None if they may only look.
        policy: Who may see and control; by default whoever reaches the server.
        on_page_allowed: Called with the host under which a page was asked for that may be seen, before its websocket opens.
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
    """Show the dashboard in the file that `panel serve` runs now.

    The service is the one that `DSNB_SERVICE` names (a name or an address), or the only one that runs. Pages need a
    key, which is printed when the first page is requested; with `--unix-socket` they need none, for only the socket's
    owner can reach them. The service can be controlled from the page only if `--address` names a loopback address.
    """
    service = os.environ.get("DSNB_SERVICE") or None
    feed = shared_feed(service or "", snapshot_stream(service))
    requests = shared_request_runner(service or "", address_lookup(service))
    arguments = sys.orig_argv  # Bokeh replaces `sys.argv` while it runs a file
    if "--unix-socket" in arguments:
        policy = AccessPolicy()
    else:
        policy = AccessPolicy(key=_printed_key(), read_only_reason="" if on_loopback(arguments) else NOT_ON_LOOPBACK)
    application(feed, requests, policy)().servable(title="dsnb")


@cache
def _printed_key() -> str:
    """The key of this process's pages; printed once, for `panel serve` prints the address before this file runs."""
    key = secrets.token_urlsafe(12)
    sys.stderr.write(f"dsnb: open the dashboard with this at the end of its address: ?key={key}\n")
    sys.stderr.flush()
    return key


def _request_host_and_key() -> tuple[str, str]:
    """The host under which the page of this session was asked for, and the key that stood in its address."""
    given = pn.state.session_args.get("key", [b""])[0]
    return str(pn.state.headers.get("Host", "")), given.decode(errors="replace")

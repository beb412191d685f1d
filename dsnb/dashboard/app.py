"""The application as Panel serves it: one page for each session, all on one feed."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from functools import cache

import panel as pn

from dsnb.dashboard.access import BEYOND, Access, Policy, on_loopback
from dsnb.dashboard.controls import Requests
from dsnb.dashboard.feed import Past, shared_feed
from dsnb.dashboard.page import page, refusal
from dsnb.dashboard.source import reach_of, shared_requests, source_for


def application(
    feed: Past | Callable[[], Past],
    requests: Requests | None = None,
    policy: Policy | None = None,
    welcome: Callable[[str], object] = lambda _host: None,
) -> Callable[[], pn.Template]:
    """What makes the page of a new session; for `panel.serve` and the like.

    Args:
        feed: What its pages show; or what gives each page its own.
        requests: What carries out their requests; None if they may only look.
        policy: Who may see and control; by default whoever reaches the server.
        welcome: Called with the host under which a page was asked for that may be seen, before its websocket opens.
    """
    rule = policy or Policy()

    def make() -> pn.Template:
        host, given = _asked()
        access = rule.of(given)
        if access is Access.REFUSED:
            return refusal()
        welcome(host)
        return page(feed() if callable(feed) else feed, requests if access is Access.CONTROL else None, rule.read_only)

    return make


def serve_here() -> None:
    """Show the dashboard in the file that `panel serve` runs now.

    The service is the one that `DSNB_SERVICE` names (a name or an address), or the only one that runs. Pages need a
    key, which is printed when the first page is requested; with `--unix-socket` they need none, for only the socket's
    owner can reach them. The service can be controlled from the page only if `--address` names a loopback address.
    """
    service = os.environ.get("DSNB_SERVICE") or None
    feed = shared_feed(service or "", source_for(service))
    requests = shared_requests(service or "", reach_of(service))
    arguments = sys.orig_argv  # Bokeh replaces `sys.argv` while it runs a file
    if "--unix-socket" in arguments:
        policy = Policy()
    else:
        policy = Policy(key=_printed_key(), read_only="" if on_loopback(arguments) else BEYOND)
    application(feed, requests, policy)().servable(title="dsnb")


@cache
def _printed_key() -> str:
    """The key of this process's pages; printed once, for `panel serve` prints the address before this file runs."""
    key = secrets.token_urlsafe(12)
    sys.stderr.write(f"dsnb: open the dashboard with this at the end of its address: ?key={key}\n")
    sys.stderr.flush()
    return key


def _asked() -> tuple[str, str]:
    """The host under which the page of this session was asked for, and the key that stood in its address."""
    given = pn.state.session_args.get("key", [b""])[0]
    return str(pn.state.headers.get("Host", "")), given.decode(errors="replace")

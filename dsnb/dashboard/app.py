"""The application as Panel serves it: one page for each session, all on one feed."""

from __future__ import annotations

import os
from collections.abc import Callable

import panel as pn

from dsnb.dashboard.feed import Feed, shared_feed
from dsnb.dashboard.page import page
from dsnb.dashboard.source import source_for


def application(feed: Feed) -> Callable[[], pn.Template]:
    """What makes the page of a new session; for `panel.serve` and the like."""
    return lambda: page(feed)


def serve_here() -> None:
    """Show the dashboard in the file that `panel serve` runs now.

    The service is the one that `DSNB_SERVICE` names (a name or an address), or the only one that runs.
    """
    service = os.environ.get("DSNB_SERVICE") or None
    page(shared_feed(service or "", source_for(service))).servable(title="dsnb")

"""Buttons that send requests to the service, and notices of their outcomes.

A read-only page has no buttons. The button of a destructive action must be pressed twice within a few seconds. While
its request is pending, a button shows so and is disabled.
"""

from __future__ import annotations

import json

from dsnb.dashboard.control_requests import ACTIONS, Request
from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import as_sentence

_TOOLTIPS = {
    "evict": "remove {trainer}: keep no elements for it, and do not make other trainers wait for it",
    "pause": "pause {job}: its workers produce nothing until it is resumed",
    "resume": "resume {job}",
    "cancel": "cancel {job}: its readers get an error",
    "drain": "drain {worker}: it finishes what it has and gets nothing new",
    "remove": "remove {worker} at once: other workers continue its tasks; what they cannot produce again is lost",
    "peek": "show the newest elements of {job}; its readers get all of them nevertheless",
    "scale": "change the number of workers to {workers}",
    "autoscale": "choose the number of workers automatically, 1 to {maximum}",
    "fix": "keep the present number of workers",
}


def button(view: View, action: str, label: str, **names: str) -> Html | None:
    """The button of one request; None on a read-only page."""
    if not view.control.allowed or action not in ACTIONS:
        return None
    request = Request(action, tuple(names.items()))
    pending, unconfirmed = request in view.control.pending, request == view.control.unconfirmed
    return tag(
        "button",
        "…" if pending else "really?" if unconfirmed else label,
        type="button",
        class_="act armed" if unconfirmed else "act",
        disabled=pending,
        title=_TOOLTIPS[action].format_map(names),
        aria_label=_TOOLTIPS[action].format_map(names),
        data_do=action,
        data_target=json.dumps(names),
    )


def buttons(*found: Html | None) -> Html:
    """Put buttons side by side; empty if all are None."""
    there = [one for one in found if one is not None]
    return tag("span", *there, class_="acts") if there else Html("")


def notices(view: View) -> Html:
    """The pending requests and recent outcomes, of this page and of others."""
    return join(
        *(
            tag(
                "p",
                tag("i"),
                as_sentence(outcome.text) if outcome.state != "pending" else f"{outcome.text} …",
                class_=f"notice {outcome.state}",
                role="status",
                data_state=outcome.state,
                data_verb=outcome.request.action,
                data_key=f"{outcome.request.action}{outcome.request.subject}",
            )
            for outcome in view.control.outcomes
            if not ACTIONS[outcome.request.action].private
        )
    )

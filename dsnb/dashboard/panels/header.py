"""The page's header: the service, the job, and whether the page is current."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_count, format_duration, format_mode, format_time
from dsnb.monitor.snapshot import VERSION, JobStatus

MODE_TOOLTIPS = {"OFF": "every worker produces all", "DYNAMIC": "splits shared out"}


def header(view: View) -> Html:
    """The service, the job picker, the processing mode, and the badge that shows whether the page is current."""
    mode = _mode(view.job) if view.job else None
    return join(
        _service(view), _picker(view), mode, _version(view), _replay_slider(view), _read_only_chip(view), badge(view)
    )


def _replay_slider(view: View) -> Html | None:
    """The slider that selects the time of a recorded run; None for a live page."""
    position = view.replay_position
    if position is None:
        return None
    word = "pause" if position.playing else "play"
    play = tag(
        "button",
        word,
        type="button",
        class_="act",
        data_pick="play",
        data_value="off" if position.playing else "on",
    )
    slider = tag(
        "input",
        type="range",
        min=position.first,
        max=position.last,
        step="any",
        value=round(position.now, 1),
        data_pick="seek",
        aria_label="time of the run",
    )
    shown = tag("time", format_time(position.now), data_field="replayed", data_value=round(position.now, 1))
    return tag("div", play, slider, shown, class_="replay")


def banner(view: View) -> Html:
    """A warning across the page when no more snapshots arrive; at the end, what the last one was."""
    if view.health.end:
        return _last_state(view)
    if not view.health.stale or view.sample is None:
        return Html("")
    age = format_duration(view.health.age_s or 0)
    return tag(
        "div",
        tag("b", f"No news for {age}."),
        f" The numbers are from {format_time(view.sample.wall_time)}. ",
        tag("span", _staleness_reason(view), class_="why"),
        class_="banner stale",
        role="alert",
        data_field="banner",
    )


def _last_state(view: View) -> Html:
    consumed = sum(job.consumed for job in view.snapshot.jobs) if view.snapshot else 0
    return tag(
        "div",
        tag("b", view.health.end),
        f" This is its last state: {format_count(consumed)} elements consumed." if view.snapshot else "",
        class_="banner ended",
        role="status",
        data_field="banner",
        data_ended="",
    )


def badge(view: View) -> Html:
    """The state of the feed in a word: live, stale, ended, or waiting for the first snapshot."""
    if view.replay_position is not None:
        return tag(
            "span",
            "replay",
            class_="badge waiting",
            data_field="badge",
            data_state="replay",
            data_title="replay · dsnb",
        )
    state = "ended" if view.health.end else "live" if not view.health.stale else "stale" if view.sample else "waiting"
    words = {
        "live": "live",
        "ended": "ended",
        "waiting": "no service" if view.health.error else "looking",
        "stale": f"stale · {format_duration(view.health.age_s or 0)}",
    }
    name = view.snapshot.service if view.snapshot else "no service"
    title = f"{name} · dsnb" if state == "live" else f"{state} · {name} · dsnb"
    return tag(
        "span", tag("i"), words[state], class_=f"badge {state}", data_field="badge", data_state=state, data_title=title
    )


def _service(view: View) -> Html | None:
    if view.snapshot is None:
        return None
    return tag(
        "div",
        tag("b", view.snapshot.service, data_field="service"),
        tag("code", view.snapshot.target.removeprefix("grpc://"), title=view.snapshot.target),
        class_="service",
    )


def _picker(view: View) -> Html | None:
    if view.snapshot is None or view.job is None:
        return None
    options = [
        tag("option", _label(job), value=job.name, selected=job.name == view.job.name) for job in view.snapshot.jobs
    ]
    return tag("label", tag("span", "job"), tag("select", *options, data_pick="job", aria_label="job"), class_="picker")


def _label(job: JobStatus) -> str:
    return job.name if job.state == "running" else f"{job.name} ({job.state})"


def _mode(job: JobStatus) -> Html:
    return tag(
        "div",
        tag("span", format_mode(job.mode), class_="chip", title=MODE_TOOLTIPS.get(job.mode, ""), data_field="mode"),
        tag("span", "shared cache", class_="chip") if job.cached else None,
        tag("span", "pass ", number(str(job.iteration + 1), "pass", job.iteration + 1), class_="chip"),
        tag("span", job.state, class_=f"chip {job.state}", data_field="state"),
        class_="chips",
    )


def _version(view: View) -> Html | None:
    """A warning that the service runs another version than this page."""
    if view.snapshot is None or view.snapshot.version == VERSION:
        return None
    words = (
        f"this page knows version {VERSION} of a service's status: some figures may be missing; use one dsnb for both"
    )
    return tag(
        "span", f"status version {view.snapshot.version}", class_="chip draining", title=words, data_field="version"
    )


def _read_only_chip(view: View) -> Html | None:
    """A chip that says that the page is read-only, and why; None for a recorded run, where that is obvious."""
    if view.control.allowed or not view.control.read_only_reason or view.replay_position is not None:
        return None
    return tag("span", "read-only", class_="chip", title=view.control.read_only_reason, data_field="read-only")


def _staleness_reason(view: View) -> str:
    if not view.health.error:
        return "The service is connected but silent."
    return f"Trying again (attempt {view.health.attempts}): {view.health.error}"

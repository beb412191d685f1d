"""The cache strip, the dashboard's signature: each trainer's place between the newest element and the eviction cliff.

The newest element is at the right; what lies left of the cliff is no longer in memory: gone, or on disk for a trainer
that asked for that. Where the cliff is off the scale, the left edge says how far away it is.
"""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.controls import button
from dsnb.dashboard.panels.places import CLOSE, Lane, Strip, layout, newest_tasks, round_up
from dsnb.dashboard.panels.tables import name
from dsnb.dashboard.view import WORST, View
from dsnb.monitor.snapshot import JobStatus
from dsnb.monitor.words import count

_ADVICE = "cross_trainer_cache=dsnb.CrossTrainerCache(trainer_id)"
_MANNERS = {"wait": "others wait for it at the cliff", "spill": "what it misses is kept on disk"}


def strip(view: View) -> Html:
    """The panel: heading, a lane for each trainer, the ruler."""
    job = view.job
    heading = tag(
        "div",
        tag("h2", "Cache window"),
        tag("p", "where each trainer stands between the newest element and eviction", class_="hint"),
        _chooser(view, job) if job and job.cached and len(newest_tasks(job)) > 1 else None,
        class_="heading",
    )
    return join(heading, _body(view, job))


def _chooser(view: View, job: JobStatus) -> Html:
    tasks = newest_tasks(job)
    current = view.choice.task if view.choice.task in {task.task_id for task in tasks} else WORST
    choices = [(WORST, "worst of all"), *((task.task_id, task.worker) for task in tasks)]
    buttons = (
        tag(
            "button",
            words,
            type="button",
            data_pick="task",
            data_value=value,
            aria_pressed=str(value == current).lower(),
        )
        for value, words in choices
    )
    return tag("div", *buttons, class_="choices", role="group", aria_label="task")


def _body(view: View, job: JobStatus | None) -> Html:
    if job is None:
        return tag("p", "No job yet, so nothing is cached.", class_="empty")
    if not job.cached:
        words = "The readers of this job do not share elements. To let them share one pass, give "
        return tag("p", words, tag("code", _ADVICE), ".", class_="empty")
    picture = layout(view, job)
    if not picture.lanes:
        return tag("p", "No trainer has read from this job yet.", class_="empty")
    lanes = (_draw(view, job, lane, picture) for lane in picture.lanes)
    return tag("div", *lanes, _axis(picture), class_="strip")


def _draw(view: View, job: JobStatus, lane: Lane, picture: Strip) -> Html:
    manner = next((t.on_lag for t in job.trainers if t.trainer_id == lane.trainer_id), "")
    return tag(
        "div",
        tag(
            "div",
            tag("i", class_="dot"),
            name(lane.trainer_id),
            tag("em", manner, class_="chip", title=_MANNERS[manner]) if manner in _MANNERS else None,
            button(view, "send_away", "✕", job=job.name, trainer=lane.trainer_id),
            class_="who",
        ),
        _track(lane, picture),
        tag("div", tag("b", lane.words), tag("span", lane.outlook), class_="words", data_field="words"),
        class_=f"lane {lane.colour} {lane.level}{' buffered' if lane.buffered else ''}",
        data_trainer=lane.trainer_id,
        data_level=lane.level,
        data_key=lane.trainer_id,
    )


def _track(lane: Lane, picture: Strip) -> Html:
    at = picture.part(lane.at)
    words = f"{lane.trainer_id}: next is element {count(lane.offset)} of {lane.worker}, {count(lane.lag)} behind"
    arrow = tag("u", class_=lane.direction) if lane.direction else None
    return tag(
        "div",
        *_ground(lane, picture),
        # Moved by transforms, which glide without laying the page out again for each frame.
        tag("div", class_="bar", style=f"transform:scaleX({at:.4f})"),
        tag("div", arrow, tag("i"), class_="place", style=f"transform:translateX(-{at:.2%})"),
        number("", "lag", lane.lag),
        class_="track",
        title=words,
    )


def _ground(lane: Lane, picture: Strip) -> list[Html]:
    """What lies under the bar: gone or on disk at the left, then the fifth to be looked at; the rest is safe."""
    if lane.cliff is None:
        return []
    if lane.cliff > picture.scale and not picture.deep:
        return [tag("div", class_="torn", title=f"eviction begins {count(lane.cliff)} behind the newest")]
    cliff = picture.part(lane.cliff)
    beyond = tag("div", class_="disk" if lane.spills else "gone", style=f"width:{1 - cliff:.2%}")
    close = tag("div", class_="close", style=f"left:{1 - cliff:.2%};width:{cliff * (1 - CLOSE):.2%}")
    return [beyond, close, tag("div", class_="cliff", style=f"left:{1 - cliff:.2%}")]


def _axis(picture: Strip) -> Html:
    newest = tag("span", "newest", class_="edge right")
    ruler = tag("div", _left(picture), *_ticks(picture), newest, class_="ruler")
    return tag("div", ruler, class_="axis", data_key="axis")


def _left(picture: Strip) -> Html:
    cliff = picture.cliff
    if cliff is None:
        return tag("span", "nothing evicted yet", class_="edge left")
    if cliff > picture.scale and not picture.deep:
        return tag("span", f"← eviction at {count(cliff)} behind", class_="edge left")
    at = f"left:{1 - picture.part(cliff):.2%}"
    cliffword = tag("span", f"eviction cliff · {count(cliff)} behind", class_="edge cliffword", style=at)
    return join(tag("span", "on disk", class_="edge left diskword"), cliffword) if picture.deep else cliffword


def _ticks(picture: Strip) -> list[Html]:
    """Round numbers between the words at the cliff or the left edge and `newest` at the right."""
    span = min(picture.scale, picture.cliff) if picture.deep and picture.cliff else picture.scale
    step = round_up(span / (5 if picture.deep else 8))
    lags = [lag for lag in range(step, int((0.45 if picture.deep else 0.6) * span) + 1, step) if lag > 0.12 * span]
    return [tag("span", count(lag), class_="tick", style=f"right:{picture.part(lag):.2%}") for lag in lags]

"""The cache strip: each trainer's position between the newest element and eviction.

The newest element is at the right. Elements to the left of the eviction line are no longer in memory: they are lost,
or on disk for a trainer that spills. If eviction is off the scale, the left edge shows how far away it is.
"""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.panels.buttons import button
from dsnb.dashboard.panels.cache_lanes import NEAR_EVICTION, CacheStrip, TrainerLane, layout, newest_tasks, round_up
from dsnb.dashboard.panels.tables import name_markup
from dsnb.dashboard.view import WORST_TASK, View
from dsnb.monitor.formatting import format_count
from dsnb.monitor.snapshot import JobStatus

_CACHE_WINDOW = (
    "Each worker keeps its newest elements in memory. A trainer that falls behind this window skips the evicted "
    "elements, makes the others wait, or reads from disk, depending on its on_lag."
)
_SHARING_CODE = "cross_trainer_cache=dsnb.CrossTrainerCache(trainer_id)"
_ON_LAG_TOOLTIPS = {
    "wait": "elements that it needs are not evicted: the others wait for it",
    "spill": "evicted elements that it needs are kept on disk",
}


def strip(view: View) -> Html:
    """Build the panel: a heading, a lane for each trainer, the ruler."""
    job = view.job
    heading = tag(
        "div",
        tag("h2", "Cache window", title=_CACHE_WINDOW),
        tag("p", "where each trainer stands between the newest element and eviction", class_="hint"),
        _task_picker(view, job) if job and job.cached and len(newest_tasks(job)) > 1 else None,
        class_="heading",
    )
    return join(heading, _body(view, job))


def _task_picker(view: View, job: JobStatus) -> Html:
    tasks = newest_tasks(job)
    current = view.selection.task if view.selection.task in {task.task_id for task in tasks} else WORST_TASK
    choices = [(WORST_TASK, "worst of all"), *((task.task_id, task.worker) for task in tasks)]
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
        return tag("p", words, tag("code", _SHARING_CODE), ".", class_="empty")
    picture = layout(view, job)
    if not picture.lanes:
        words = "No trainer reads this job now." if job.trainers else "No trainer has read from this job yet."
        return tag("p", words, class_="empty")
    lanes = (_draw(view, job, lane, picture) for lane in picture.lanes)
    return tag("div", *lanes, _axis(picture), class_="strip")


def _draw(view: View, job: JobStatus, lane: TrainerLane, picture: CacheStrip) -> Html:
    on_lag = next((t.on_lag for t in job.trainers if t.trainer_id == lane.trainer_id), "")
    return tag(
        "div",
        tag(
            "div",
            tag("i", class_="dot"),
            name_markup(lane.trainer_id),
            tag("em", on_lag, class_="chip", title=_ON_LAG_TOOLTIPS[on_lag]) if on_lag in _ON_LAG_TOOLTIPS else None,
            button(view, "evict", "evict", job=job.name, trainer=lane.trainer_id),
            class_="who",
        ),
        _track(lane, picture),
        tag("div", tag("b", lane.status_text), tag("span", lane.forecast), class_="words", data_field="words"),
        class_=f"lane {lane.colour} {lane.level}{' buffered' if lane.reads_own_buffer else ''}",
        data_trainer=lane.trainer_id,
        data_level=lane.level,
        data_key=lane.trainer_id,
    )


def _track(lane: TrainerLane, picture: CacheStrip) -> Html:
    at = picture.distance(lane.drawn_lag)
    words = (
        f"{lane.trainer_id}: next is element {format_count(lane.offset)} of {lane.worker}, "
        f"{format_count(lane.lag)} behind"
    )
    arrow = tag("u", class_=lane.direction) if lane.direction else None
    return tag(
        "div",
        *_background(lane, picture),
        # Move with transforms: the browser animates them without a new page layout for each frame.
        tag("div", class_="bar", style=f"transform:scaleX({at:.4f})"),
        tag("div", arrow, tag("i"), class_="place", style=f"transform:translateX(-{at:.2%})"),
        number("", "lag", lane.lag),
        class_="track",
        title=words,
    )


def _background(lane: TrainerLane, picture: CacheStrip) -> list[Html]:
    """What is drawn under the bar: lost or on disk at the left, then the range close to eviction; the rest is safe."""
    if lane.eviction_lag is None:
        return []
    if lane.eviction_lag > picture.scale and not picture.shows_disk:
        return [tag("div", class_="torn", title=f"eviction begins {format_count(lane.eviction_lag)} behind the newest")]
    eviction = picture.distance(lane.eviction_lag)
    beyond = tag("div", class_="disk" if lane.spills else "gone", style=f"width:{1 - eviction:.2%}")
    close = tag("div", class_="close", style=f"left:{1 - eviction:.2%};width:{eviction * (1 - NEAR_EVICTION):.2%}")
    return [beyond, close, tag("div", class_="cliff", style=f"left:{1 - eviction:.2%}")]


def _axis(picture: CacheStrip) -> Html:
    newest = tag("span", "newest", class_="edge right")
    ruler = tag("div", _left_edge(picture), *_ticks(picture), newest, class_="ruler")
    return tag("div", ruler, class_="axis", data_key="axis")


def _left_edge(picture: CacheStrip) -> Html:
    eviction_lag = picture.eviction_lag
    if eviction_lag is None:
        return tag("span", "nothing evicted yet", class_="edge left")
    if eviction_lag > picture.scale and not picture.shows_disk:
        return tag("span", f"// eviction at {format_count(eviction_lag)} behind", class_="edge left")
    away = picture.distance(eviction_lag)
    # The label stands on the side of the line where there is more room, apart from "newest" at the right end.
    at = f"left:{1 - away:.2%}" if away > 0.5 else f"right:{away:.2%}"
    lag = tag("span", f" · {format_count(eviction_lag)} behind", class_="away")
    cliffword = tag("b", "eviction cliff", lag, class_="edge cliffword", style=at)
    if not picture.shows_disk:
        return cliffword
    unscaled = tag("span", ", not to scale", class_="away")
    return join(tag("span", "on disk", unscaled, class_="edge left diskword", title="not to scale"), cliffword)


def _ticks(picture: CacheStrip) -> list[Html]:
    """Round numbers between the label at eviction or the left edge, and "newest" at the right."""
    span = min(picture.scale, picture.eviction_lag) if picture.shows_disk and picture.eviction_lag else picture.scale
    step = round_up(span / (5 if picture.shows_disk else 8))
    lags = [
        lag for lag in range(step, int((0.45 if picture.shows_disk else 0.6) * span) + 1, step) if lag > 0.12 * span
    ]
    return [tag("span", format_count(lag), class_="tick", style=f"right:{picture.distance(lag):.2%}") for lag in lags]

"""The throughput panel: elements produced per second by each worker, and the demand of the fastest trainer.

The figure has a fixed number of bands, so that points can be streamed while workers come and go; surplus workers share
the last band. Demand far above production would flatten the bands: it then leaves the scale at the top, and its number
is in the heading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from math import isfinite, log10

from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJSHover,
    DatetimeTicker,
    DatetimeTickFormatter,
    HoverTool,
    NoOverlap,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure

from dsnb.dashboard.feed import MAX_SAMPLES, RateSample
from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.view import SPANS_S, View
from dsnb.monitor.formatting import natural_sort_key
from dsnb.monitor.rates import JobRates, demand_text

COLOURS = ("#3b6ea8", "#4c94c0", "#5fb3b3", "#8cc7a1", "#7d8fc9", "#5b78b5", "#6aa5a0", "#9aa9b8")
"""Colours for white. The figure does not know the page's theme; the style sheet brightens it on black."""

DEMAND_COLOUR = "#e0762f"
AXIS_COLOUR = "#667380"
_MEANING = "Elements per second. If the dashed line is above the bands, trainers wait for the workers."
_OTHERS = "others"
_MAX_DEMAND_RATIO = 4.2
_MIN_SPAN_S = 15.0
_MIN_RATE_SPAN_S = 1.0
"""Seconds; over less, a rate mostly shows when workers reported."""
_SCALE_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)

ColumnData = dict[str, Sequence[float]]


def throughput(view: View) -> Html:
    """The figure's heading, which is also its legend."""
    title = tag(
        "div",
        tag("h2", "Throughput", title=_MEANING),
        tag("p", "produced each second, and what the fastest trainer could take", class_="hint"),
        _span_picker(view),
        class_="heading",
    )
    return join(title, _legend(view))


def bands(moments: Sequence[RateSample], job: str) -> tuple[str, ...]:
    """The names of the workers that recently produced for the job, in natural order; a surplus becomes "others"."""
    seen = {worker for moment in moments for worker in moment.rates.job(job).by_worker}
    names = tuple(sorted(seen, key=natural_sort_key))
    return names if len(names) <= len(COLOURS) else (*names[: len(COLOURS) - 1], _OTHERS)


def points(moments: Sequence[RateSample], job: str, names: Sequence[str]) -> ColumnData:
    """The figure's data columns: local time in ms, the upper edge of each band, total production, demand."""
    known = [(moment.wall_time, moment.rates.job(job)) for moment in moments if moment.rates.span_s >= _MIN_RATE_SPAN_S]
    columns: ColumnData = {"t": [_local_ms(wall) for wall, _ in known], "zero": [0.0] * len(known)}
    tops = [0.0] * len(known)
    for band in range(len(COLOURS)):
        name = names[band] if band < len(names) else ""
        tops = [top + _band_rate(rates, name, names) for top, (_, rates) in zip(tops, known, strict=True)]
        columns[f"b{band}"] = tops
    columns["produced"] = list(tops)
    columns["demand"] = [rates.demand if rates.demand is not None else float("nan") for _, rates in known]
    return columns


def scale_top(columns: ColumnData) -> float:
    """A round upper limit of the scale that fits all bands, and demand unless it is far above them."""
    produced = max(columns["produced"], default=0.0)
    demand = max((demand for demand in columns["demand"] if isfinite(demand)), default=0.0)
    wanted = max(1.08 * produced, min(1.05 * demand, _MAX_DEMAND_RATIO * produced), 1.0)
    decade = 10.0 ** int(log10(wanted))
    return next(step * decade for step in _SCALE_STEPS if step * decade >= wanted)


class Chart:
    """The figure of one page, updated from the feed's samples."""

    def __init__(self) -> None:
        self.source = ColumnDataSource(data=dict(points((), "", ())))
        self._times, self._rates = Range1d(start=0, end=1), Range1d(start=0, end=1)
        self.figure = _figure(self.source, self._times, self._rates)
        self._shown_selection: tuple[str, tuple[str, ...], int] | None = None
        self._newest_at = 0.0

    def update(self, view: View, since: Callable[[float], Sequence[RateSample]], now: float) -> None:
        """Stream the samples that are new since the last call, and move the time axis so that it ends at `now`.

        The axis moves even without new samples, so that a silent service shows as a growing gap.
        """
        samples = since(view.history[0].arrived_at - 0.001) if view.history else ()
        job = view.job.name if view.job else ""
        shown = (job, bands(samples, job), view.selection.span_s)
        if samples and samples[-1].arrived_at < self._newest_at:  # the user went back in a recorded run: redraw all
            self._shown_selection = None
        fresh = (
            samples
            if shown != self._shown_selection
            else [moment for moment in samples if moment.arrived_at > self._newest_at]
        )
        columns = points(fresh, *shown[:2])
        if shown != self._shown_selection:
            self.source.data = dict(columns)
        elif columns["t"]:
            self.source.stream(dict(columns), rollover=MAX_SAMPLES)
        self._shown_selection, self._newest_at = shown, samples[-1].arrived_at if samples else 0.0
        begin = max(now - view.selection.span_s, min(samples[0].wall_time if samples else now, now - _MIN_SPAN_S))
        self._times.update(start=_local_ms(begin), end=_local_ms(now))
        self._rates.end = scale_top(points(samples, *shown[:2]))


def _band_rate(rates: JobRates, name: str, names: Sequence[str]) -> float:
    if name == _OTHERS:
        return sum(made for worker, made in rates.by_worker.items() if worker not in names)
    return rates.by_worker.get(name, 0.0)


def _local_ms(wall: float) -> float:
    """A wall-clock time as the figure needs it: Bokeh labels times in UTC, users expect local time."""
    offset = datetime.fromtimestamp(wall).astimezone().utcoffset()
    return (wall + (offset.total_seconds() if offset else 0.0)) * 1000


def _span_picker(view: View) -> Html:
    buttons = (
        tag(
            "button",
            words,
            type="button",
            data_pick="span",
            data_value=span,
            aria_pressed=str(span == view.selection.span_s).lower(),
        )
        for span, words in SPANS_S.items()
    )
    return tag("div", *buttons, class_="choices", role="group", aria_label="time shown")


def _legend(view: View) -> Html:
    if view.job is None:
        return tag("p", "No job yet.", class_="empty")
    rates = view.job_rates
    names = bands(view.recent, view.job.name)
    keys = [_legend_entry(view, name, COLOURS[at], _band_rate(rates, name, names)) for at, name in enumerate(names)]
    if rates.fastest_trainer is not None:
        keys.append(tag("span", "could take ", tag("b", demand_text(rates.fastest_trainer)), class_="key dashed"))
    return tag("div", *keys, class_="keys")


def _legend_entry(view: View, name: str, paint: str, made: float) -> Html:
    value = number(view.format_rate(made), "produced_rate", round(made, 1))
    return tag("span", f"{name} ", value, class_="key", style=f"--key:{paint}", data_worker=name, data_key=name)


def _figure(source: ColumnDataSource, times: Range1d, rates: Range1d) -> figure:
    plot = figure(
        height=230,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        x_axis_type="datetime",
        x_range=times,
        y_range=rates,
        min_border_left=46,
        min_border_right=12,
    )
    for band, paint in enumerate(COLOURS):
        below = f"b{band - 1}" if band else "zero"
        plot.varea("t", below, f"b{band}", source=source, fill_color=paint, fill_alpha=0.82)
    total = plot.line("t", "produced", source=source, line_color=COLOURS[0], line_width=1.2, line_alpha=0.9)
    plot.line("t", "demand", source=source, line_color=DEMAND_COLOUR, line_width=2, line_dash=[6, 4])
    _style(plot)
    digits = CustomJSHover(code="return isFinite(value) ? Math.round(value).toLocaleString('en') + '/s' : '–'")
    plot.add_tools(
        HoverTool(
            renderers=[total],
            mode="vline",
            tooltips=[("", "@t{%H:%M:%S}"), ("produced", "@produced{custom}"), ("could take", "@demand{custom}")],
            formatters={"@t": "datetime", "@produced": digits, "@demand": digits},
        )
    )
    return plot


def _style(plot: figure) -> None:
    """Make the figure's background transparent, and hide decorations without information."""
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.xgrid.grid_line_color = None
    plot.ygrid.grid_line_color, plot.ygrid.grid_line_alpha = AXIS_COLOUR, 0.22
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
    plot.xaxis.formatter = DatetimeTickFormatter(
        seconds="%H:%M:%S", minsec="%H:%M:%S", minutes="%H:%M", hourmin="%H:%M"
    )
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = None
        axis.major_label_text_color = AXIS_COLOUR
        axis.major_label_text_font_size = "11px"
        axis.major_label_text_font = "Inter, Roboto, Arial, sans-serif"
    plot.xaxis.major_label_policy = NoOverlap(min_distance=10)  # on a phone there is no room for each
    plot.xaxis.ticker, plot.yaxis.ticker = DatetimeTicker(desired_num_ticks=5), BasicTicker(desired_num_ticks=5)

"""A chart of elements per second over time, as inline SVG for a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

import msgspec

from dsnb.monitor.formatting import format_rate

_WIDTH, _HEIGHT = 900, 180
_GRID = (1.0, 0.5, 0.0)
"""Where a chart has lines with labels, as fractions of its height, from the top."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart.

    Attributes:
        name: Its name in the legend.
        kind: Its CSS class: "made" is solid, "used" is dashed.
        points: Times and elements per second.
    """

    name: str
    kind: str
    points: tuple[tuple[float, float], ...]


def line_chart(lines: Sequence[Line], ends: tuple[str, str]) -> str:
    """Draw lines over one scale, with a legend, as HTML.

    Args:
        lines: The lines; at least one, with at least two points.
        ends: The labels of the first and the last time.
    """
    points = [point for line in lines for point in line.points]
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    most = _round_up(max(1.0, *(rate for _, rate in points)))
    drawn = (f'<polyline class="{line.kind}" points="{_coordinates(line, first, last, most)}"/>' for line in lines)
    keys = (f'<span><span class="key {line.kind}"></span>{escape(line.name)}</span>' for line in lines)
    labels = "".join(f"<span>{format_rate(most * part)}</span>" for part in _GRID)
    return (
        f'<p class="keys">{"".join(keys)}</p><div class="chart"><div class="scale">{labels}</div>'
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="throughput">{_grid()}{"".join(drawn)}</svg>'
        f'<div class="ends"><span>{escape(ends[0])}</span><span>{escape(ends[1])}</span></div></div>'
    )


def _coordinates(line: Line, first: float, last: float, most: float) -> str:
    span = max(1e-9, last - first)
    return " ".join(f"{(at - first) / span * _WIDTH:.1f},{(1 - rate / most) * _HEIGHT:.1f}" for at, rate in line.points)


def _grid() -> str:
    return "".join(f'<path class="axis" d="M0 {_HEIGHT * (1 - part):g}h{_WIDTH}"/>' for part in _GRID)


def _round_up(rate: float) -> float:
    """The smallest of 1, 2, 4, 6, 8, 10, 20, 40, ... that is not below a rate: half of it is round as well."""
    power = 10.0 ** floor(log10(rate))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= rate)

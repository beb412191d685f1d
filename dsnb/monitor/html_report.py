"""A self-contained HTML page about a run: verdicts, throughput, trainers, splits, workers, events.

The page loads nothing from the network: charts are inline SVG, and colours follow the browser's light or dark setting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from dsnb.monitor.formatting import (
    format_count,
    format_duration,
    format_mode,
    natural_sort_key,
)
from dsnb.monitor.line_chart import Line, line_chart
from dsnb.monitor.rates import JobRates, rates
from dsnb.monitor.snapshot import GrantStatus, JobStatus, Snapshot
from dsnb.monitor.tables import Table, html_table, trainer_table, worker_table
from dsnb.monitor.verdict import Verdict

_WIDTH, _ROW_HEIGHT = 900, 22
_MAX_POINTS = 400
_TRAINER_COLUMNS = ("trainer", "elements", "wait", "decode", "active", "lag", "hits", "misses", "skipped", "lost")
_WORKER_COLUMNS = ("worker", "state", "isolation", "produced", "sent_bytes", "cache_bytes", "rss_bytes")
_SVG_ATTRIBUTES = 'preserveAspectRatio="none" role="img"'
_STYLE = """
:root{--ink:#1c2733;--soft:#5d6b7a;--line:#d8dfe6;--back:#fff;--card:#f5f7f9;--made:#3b6ea8;--used:#e0762f;--good:#1f7a48;
--warn:#b7791f;--bad:#c0392b}
@media (prefers-color-scheme:dark){:root{--ink:#e4e9ee;--soft:#93a1af;--line:#33404d;--back:#12181f;--card:#1b242d;
--made:#6fa3dc;--used:#f0935a;--good:#5fbf8f;--warn:#e0b050;--bad:#ef7a6d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:960px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}.soft{color:var(--soft)}
.verdict{background:var(--card);border-left:4px solid var(--good);padding:.6rem .9rem;margin:.5rem 0;border-radius:4px}
.verdict.warn{border-color:var(--warn)}.verdict.bad{border-color:var(--bad)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;color:var(--soft);font-weight:500}
td,th{padding:.25rem .8rem .25rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
td:last-child{white-space:normal}
svg{width:100%;display:block}svg *{vector-effect:non-scaling-stroke}.plot{height:180px}
.ends,.splits,.scale{color:var(--soft);font-size:.8rem}.ends{display:flex;justify-content:space-between}
.chart{display:grid;grid-template-columns:max-content 1fr;gap:0 .5rem}.chart .ends{grid-column:2}
.scale{display:flex;flex-direction:column;justify-content:space-between;text-align:right;line-height:1;margin:-.4em 0}
.splits{display:grid;grid-template-columns:max-content 1fr;gap:2px .6rem;align-items:center}.splits svg{height:18px}
.made{stroke:var(--made);fill:none;stroke-width:1.8}
.used{stroke:var(--used);fill:none;stroke-width:1.8;stroke-dasharray:7 3}
.axis{stroke:var(--line)}rect{stroke:var(--back)}.done{fill:var(--made)}.lost{fill:var(--bad)}.hand{fill:var(--used)}.dropped{fill:var(--line)}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:0 1rem;margin:.5rem 0}
.two h3{font-size:1rem;margin:0}
.compared :is(td,th){padding-right:.5rem;width:22%}
.compared :is(td,th):first-child{white-space:normal;overflow-wrap:anywhere;width:34%}
.number{text-align:right}td.better,td.worse{font-weight:600}.better{color:var(--good)}.worse{color:var(--bad)}
.key{display:inline-block;width:1.6em;height:0;border-top:2px solid;vertical-align:middle;margin:0 .4em 0 0}
.keys{display:flex;flex-wrap:wrap;gap:0 1.2em}
.key.made{border-color:var(--made)}.key.used{border-top-style:dashed;border-color:var(--used)}
"""


def render_html_report(snapshots: Sequence[Snapshot], verdicts: Sequence[Verdict]) -> str:
    """The page, as HTML.

    Args:
        snapshots: Snapshots of one service, the oldest first; at least one.
        verdicts: The verdicts at the end of the run.
    """
    last = snapshots[-1]
    parts = [
        f"<h1>{escape(last.service)}</h1>",
        _time_range(snapshots),
        *(verdict_box(one) for one in verdicts),
        *(part for job in latest_jobs(snapshots) for part in _job(job, snapshots)),
        _workers(last),
        _events(last),
    ]
    return html_page(f"dsnb run of {last.service}", "".join(parts))


def html_page(title: str, body: str) -> str:
    """A page that needs no other file.

    Args:
        title: Its title, as text.
        body: Its contents, as HTML.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def latest_jobs(snapshots: Sequence[Snapshot]) -> list[JobStatus]:
    """Each job, as in the last snapshot that contains it."""
    return list({job.name: job for snapshot in snapshots for job in snapshot.jobs}.values())


def _time_range(snapshots: Sequence[Snapshot]) -> str:
    first, last = snapshots[0].time, snapshots[-1].time
    between = f"{date_time(first)} to {date_time(last)}, {format_duration(last - first)}"
    return f'<p class="soft">{between}; {len(snapshots)} snapshots</p>'


def verdict_box(one: Verdict) -> str:
    return f'<div class="verdict {escape(one.level)}">{escape(one.text)} <b>{escape(one.remedy)}</b></div>'


def _job(job: JobStatus, snapshots: Sequence[Snapshot]) -> Iterable[str]:
    yield f"<h2>Job {escape(job.name)}</h2>"
    yield f'<p><code>{escape(job.pipeline)}</code></p><p class="soft">'
    yield f"{format_mode(job.mode)}, pass {job.iteration + 1}, {job.state}: "
    yield f"{format_count(job.produced)} elements produced, {format_count(job.consumed)} consumed</p>"
    if job.receipt:
        yield f"<p>{escape(job.receipt)}</p>"
    yield _throughput(job.name, snapshots)
    yield _table(trainer_table(job, _TRAINER_COLUMNS))
    if job.grants:
        yield _split_timeline(job.grants)


def _throughput(job: str, snapshots: Sequence[Snapshot]) -> str:
    """A chart of the elements produced and consumed per second, over time."""
    points = rates_over_time(job, snapshots)
    if len(points) < 2:
        return ""
    lines = (
        Line(name="produced", kind="made", points=tuple((at, its.produced) for at, its in points)),
        Line(name="consumed", kind="used", points=tuple((at, its.consumed) for at, its in points)),
    )
    return line_chart(lines, (date_time(points[0][0]), date_time(points[-1][0])))


def rates_over_time(job: str, snapshots: Sequence[Snapshot]) -> list[tuple[float, JobRates]]:
    """The rates of a job at a few hundred times at most."""
    step = max(1, len(snapshots) // _MAX_POINTS)
    return [(after.time, rates(before, after).job(job)) for before, after in pairwise(snapshots[::step])]


def _split_timeline(grants: Sequence[GrantStatus]) -> str:
    """A timeline of the newest runs of splits, with one row for each worker."""
    workers = sorted({grant.worker for grant in grants}, key=natural_sort_key)
    first = min(grant.granted_at for grant in grants)
    last = max(max(grant.ended_at, grant.granted_at) for grant in grants)
    rows = "".join(
        f"<span>{escape(worker)}</span>"
        f"{_grant_bars([grant for grant in grants if grant.worker == worker], first, last)}"
        for worker in workers
    )
    return f'<p>The newest splits, by worker</p><div class="splits">{rows}</div>'


def _grant_bars(grants: Sequence[GrantStatus], first: float, last: float) -> str:
    """One worker's runs of splits, as bars. The SVG contains no visible text, because it is stretched to any width."""
    scale = _WIDTH / max(1e-9, last - first)
    bars = []
    for grant in grants:
        until, kind = grant.ended_at or last, {"in hand": "hand"}.get(grant.state, grant.state)
        words = (
            f"splits {grant.first} to {grant.end - 1} on {grant.worker}: {grant.state}, "
            f"{format_duration(until - grant.granted_at)}"
        )
        bars.append(
            f'<rect class="{kind}" x="{(grant.granted_at - first) * scale:.1f}" y="0" '
            f'width="{max(1.5, (until - grant.granted_at) * scale - 1):.1f}" height="{_ROW_HEIGHT}">'
            f"<title>{escape(words)}</title></rect>"
        )
    return f'<svg viewBox="0 0 {_WIDTH} {_ROW_HEIGHT}" {_SVG_ATTRIBUTES} aria-label="splits">{"".join(bars)}</svg>'


def _workers(last: Snapshot) -> str:
    return "<h2>Workers</h2>" + _table(worker_table(last.workers, _WORKER_COLUMNS))


def _events(last: Snapshot) -> str:
    rows = [[date_time(event.time), event.level, event.text] for event in reversed(last.events)]
    return "<h2>Events</h2>" + _table(Table.of_text(["time", "level", "event"], rows))


def _table(content: Table) -> str:
    return f'<div class="wide">{html_table(content)}</div>' if content.rows else '<p class="soft">none</p>'


def date_time(epoch: float) -> str:
    """A date and time of day, in the time zone of the machine that formats it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch))

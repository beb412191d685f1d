"""From results to a page: the table of targets first, then what each contender reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.peers.serving import Figures
from benchmarks.results import ResultsFile, WorkloadResult, machine
from benchmarks.sections import table
from benchmarks.targets import ROWS, Check, MissingError, Results, Row
from benchmarks.workloads import WORKLOADS, Workload

_ABOUT = """\
Medians, with the slowest and the fastest run in brackets. Contenders of one table took turns. "CPU s/GB" is processor
time of all processes of a contender for each gigabyte: it survives a noisy machine."""


def page(store: ResultsFile, command: str) -> str:
    """All of it, as Markdown."""
    peers = ", ".join(f"{name} {version}" for name, version in sorted(store.versions.items()))
    results: Results = {name: one.samples for name, one in store.workloads.items()}
    parts = [
        f"Measured with `{command}` on {machine()}" + (f"; {peers}." if peers else "."),
        targets(results, store.workloads),
        "## What was measured",
        _ABOUT,
        *(section(WORKLOADS[name], one) for name, one in _in_order(store)),
    ]
    return "\n\n".join(parts)


def _in_order(store: ResultsFile) -> Iterator[tuple[str, WorkloadResult]]:
    return ((name, store.workloads[name]) for name in WORKLOADS if name in store.workloads)


# -------------------------------------------------------------------------------------------------------------- targets


def targets(results: Results, workloads: dict[str, WorkloadResult]) -> str:
    """The table of targets."""
    columns = ("workload", "against", "at least", "reached", "met")
    return table(columns, [_line(row, results, workloads) for row in ROWS])


def _line(row: Row, results: Results, workloads: dict[str, WorkloadResult]) -> list[str]:
    reached = [_reached(check, results, workloads) for check in row.checks]
    nothing = all(not text for text, _ in reached)
    reached_text = (
        ""
        if nothing
        else "; ".join(
            f"{check.about} {text or '—'}".strip() for check, (text, _) in zip(row.checks, reached, strict=True)
        )
    )
    met = "not measured" if nothing else _verdict([state for _, state in reached])
    return [row.workload, row.against, row.target, reached_text, met]


def _reached(check: Check, results: Results, workloads: dict[str, WorkloadResult]) -> tuple[str, bool | None]:
    """A figure and whether it is enough; where there is none, who had none and why, or nothing if nobody was asked."""
    try:
        reached = check.reached(results)
    except MissingError as missing:
        workload, contender = missing.args
        why = workloads[workload].missing.get(contender, "") if workload in workloads else ""
        return (f"— ({contender}: {_short(why)})" if why else ""), None
    value, low, high = (f"{end:,.{check.digits}f}" for end in reached)
    interval = f" ({low} to {high})" if low != high else ""
    return f"{value}{check.unit}{interval}", check.met(reached)


def _verdict(states: Sequence[bool | None]) -> str:
    if all(states):
        return "yes"
    if None in states:
        return "partly not measured" if all(state is not False for state in states) else "no"
    return "partly" if any(states) else "no"


def unmet(results: Results) -> list[Row]:
    """The rows that are below target, or have no figure."""

    def fails(check: Check) -> bool:
        try:
            return not check.met(check.reached(results))
        except MissingError:
            return True

    return [row for row in ROWS if any(map(fails, row.checks))]


# ------------------------------------------------------------------------------------------------------------ workloads


def section(workload: Workload, measured: WorkloadResult) -> str:
    """One workload: a line for each contender and for each that is absent."""
    rows = [
        [name, *(_spread(found, metric) for metric in workload.columns)] for name, found in measured.samples.items()
    ]
    notes = [f"{name}: {why}" for name, why in measured.missing.items()]
    notes += [f"{'other peers' if name == '*' else name}: {why}" for name, why in workload.absent.items()]
    text = f"### {workload.title}\n\n" + table(("contender", *workload.columns.values()), rows)
    text += "".join(f"\n\nWithout a figure: {_short('; '.join(notes), 400)}." if notes else "")
    return f"{text}\n\n`{workload.name}`, {measured.runs} runs at {measured.commit}, {measured.date}"


def _spread(found: Sequence[Figures], metric: str) -> str:
    values = [one[metric] for one in found if metric in one]
    if not values:
        return ""
    return f"{_figure(statistics.median(values))} ({_figure(min(values))} to {_figure(max(values))})"


def _figure(value: float) -> str:
    """Three digits or more."""
    size = abs(value)
    digits = 0 if size >= 100 or not size else 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.01 else 5
    return f"{value:,.{digits}f}"


def _short(text: str, most: int = 90) -> str:
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= most else line[: most - 1] + "…"

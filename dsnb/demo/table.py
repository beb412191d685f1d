"""The demo's result as text: a line of progress while it runs, a table at the end."""

from __future__ import annotations

from dsnb.demo.result import DemoResult, TrainerResult
from dsnb.monitor.formatting import format_count
from dsnb.monitor.tables import Cell, Column, Row, Table, text_table

_COLUMNS = (
    Column(field="trainer", title="trainer", numeric=False),
    Column(field="model", title="model", numeric=False),
    Column(field="elements", title="elements"),
    Column(field="accuracy", title="accuracy"),
    Column(field="hits", title="hits"),
    Column(field="skipped", title="skipped"),
    Column(field="lag", title="lag"),
    Column(field="largest_lag", title="largest lag"),
)


def progress_line(result: DemoResult) -> str:
    """One line with the number of batches produced and the progress of each trainer.

    Example:
        >>> print(progress_line(result))  # doctest: +SKIP
          4 s  produced   812 | lr=0.5:   808 elements, accuracy 0.91, lag    4 | lr=0.2: ...
    """
    parts = [f"{result.seconds:3.0f} s  produced {result.elements_produced:>5,}"]
    parts += [
        f"{one.trainer_id}: {one.served.elements:>5,} elements, accuracy {one.accuracy:.2f}, lag {one.served.lag:>4,}"
        for one in result.trainers
    ]
    return " | ".join(parts)


def table(result: DemoResult) -> str:
    """The table that the demo prints at the end."""
    title = (
        f"{len(result.trainers)} trainers read one named job through the cross-trainer cache."
        f" An element is a batch of {result.batch_size} digits."
    )
    trainers = Table(columns=_COLUMNS, rows=tuple(map(_row, result.trainers)))
    return "\n".join(["", title, "", *text_table(trainers, indent=""), "", *_summary(result)])


def _row(trainer: TrainerResult) -> Row:
    served = trainer.served
    texts = (
        trainer.trainer_id,
        "-".join(map(str, trainer.widths)),
        format_count(served.elements),
        f"{trainer.accuracy:.3f}",
        *map(format_count, (served.hits, served.skipped, served.lag, trainer.largest_lag)),
    )
    return Row(key=trainer.trainer_id, cells=tuple(Cell(text=text) for text in texts))


def _summary(result: DemoResult) -> list[str]:
    hits = sum(trainer.served.hits for trainer in result.trainers)
    each = 1000 * result.preprocessing_seconds / max(1, result.elements_produced)
    worst = min(trainer.accuracy for trainer in result.trainers)
    aim = "the aim is" if result.reached else "a longer run (--seconds) reaches the aim of"
    facts = {
        "produced": (f"{result.elements_produced:,}", "elements, each once"),
        "consumed": (f"{result.elements_consumed:,}", f"elements, by {len(result.trainers)} trainers"),
        "saved": (
            f"{result.seconds_saved:.1f} s",
            f"of preprocessing: {hits:,} hits x {each:.1f} ms, what one element took a worker by the clock",
        ),
        "accuracy": (f"{worst:.3f}", f"or more on held-out digits; {aim} {result.target_accuracy}"),
        "time": (f"{result.seconds:.1f} s", "of training"),
    }
    return [f"{name:<8}  {figure:>7}  {text}" for name, (figure, text) in facts.items()]

"""The demo's result as text: a line of progress while it runs, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.demo.result import DemoResult, TrainerResult

HEADINGS = ("trainer", "model", "elements", "accuracy", "hits", "skipped", "lag", "largest lag")


def progress_line(result: DemoResult) -> str:
    """One line with the number of batches produced and the progress of each trainer.

    Example:
        >>> print(progress_line(result))  # doctest: +SKIP
          4 s  produced   812 | lr=0.5:   808 elements, accuracy 0.91, lag    4 | lr=0.2: ...
    """
    parts = [f"{result.seconds:3.0f} s  produced {result.elements_produced:>5,}"]
    parts += [
        f"{trainer.trainer_id}: {trainer.elements:>5,} elements, accuracy {trainer.accuracy:.2f}, lag {trainer.lag:>4,}"
        for trainer in result.trainers
    ]
    return " | ".join(parts)


def table(result: DemoResult) -> str:
    """The table that the demo prints at the end."""
    title = (
        f"{len(result.trainers)} trainers read one named job through the cross-trainer cache."
        f" An element is a batch of {result.batch_size} digits."
    )
    rows = [HEADINGS, *(_row(trainer) for trainer in result.trainers)]
    return "\n".join(["", title, "", *_aligned(rows), "", *_summary(result)])


def _row(trainer: TrainerResult) -> tuple[str, ...]:
    return (
        trainer.trainer_id,
        "-".join(map(str, trainer.widths)),
        f"{trainer.elements:,}",
        f"{trainer.accuracy:.3f}",
        f"{trainer.hits:,}",
        f"{trainer.skipped:,}",
        f"{trainer.lag:,}",
        f"{trainer.largest_lag:,}",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the first two columns to the left and the others to the right; underline the headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _summary(result: DemoResult) -> list[str]:
    hits = sum(trainer.hits for trainer in result.trainers)
    each = 1000 * result.preprocessing_seconds / max(1, result.elements_produced)
    worst = min(trainer.accuracy for trainer in result.trainers)
    facts = {
        "produced": (f"{result.elements_produced:,}", "elements, each once"),
        "consumed": (f"{result.elements_consumed:,}", f"elements, by {len(result.trainers)} trainers"),
        "saved": (
            f"{result.seconds_saved:.1f} s",
            f"of preprocessing: {hits:,} hits x {each:.1f} ms, what one element took a worker by the clock",
        ),
        "accuracy": (f"{worst:.3f}", f"or more on held-out digits ({result.target_accuracy} was asked for)"),
        "time": (f"{result.seconds:.1f} s", "of training"),
    }
    return [f"{name:<8}  {figure:>7}  {text}" for name, (figure, text) in facts.items()]

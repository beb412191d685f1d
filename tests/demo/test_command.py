"""`dsnb demo` takes its options, refuses wrong ones, and says what is missing."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from dsnb.demo import DemoOptions, add_arguments, main, run_command
from dsnb.demo.command import as_dict
from dsnb.demo.result import DemoResult, TrainerResult
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.monitor.snapshot import CursorStatus, TrainerStatus

RESULT = DemoResult(
    elements_produced=100,
    batch_size=32,
    target_accuracy=0.9,
    preprocessing_seconds=0.5,
    seconds=2.0,
    trainers=(
        TrainerResult(
            served=TrainerStatus(
                trainer_id="lr=0.1",
                clients=1,
                elements=90,
                hits=40,
                misses=50,
                cursors=(CursorStatus(task_id="t", worker="w0", offset=90, lag=10),),
            ),
            learning_rate=0.1,
            widths=(64, 10),
            accuracy=0.95,
            largest_lag=20,
        ),
    ),
)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_defaults_of_the_command_are_those_of_the_function() -> None:
    args = parsed()
    options = DemoOptions()

    assert not args.as_json
    assert {name: getattr(args, name) for name in options.__dataclass_fields__} == {
        name: getattr(options, name) for name in options.__dataclass_fields__
    }


def test_options_are_numbers() -> None:
    args = parsed("--no-dashboard", "--no-open", "--json", "--workers", "2", "--seconds", "3")

    assert (args.dashboard, args.open, args.as_json, args.workers, args.seconds) == (False, False, True, 2, 3.0)


@pytest.mark.parametrize("wrong", [("--workers", "0"), ("--seconds", "0"), ("--seconds", "-1"), ("--seconds", "nan")])
def test_a_wrong_option_is_refused_before_anything_starts(wrong: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{wrong[0].lstrip('-')}`") as caught:
        run_command(parsed(*wrong))
    assert caught.value.hint


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)  # how Python is told that a package cannot be imported

    with pytest.raises(FailedPreconditionError, match="Pillow") as caught:
        main()
    assert "pip install" in caught.value.hint


def test_the_json_form_has_the_promised_keys() -> None:
    found = json.loads(json.dumps(as_dict(RESULT)))

    assert found["elements_produced"] == 100
    assert found["elements_consumed"] == 90
    assert found["seconds_saved"] == 0.2
    assert found["reached"] is True
    assert found["trainers"][0].keys() >= {"trainer_id", "elements", "accuracy", "hits", "skipped"}


def test_declaring_the_options_loads_neither_numpy_nor_pillow() -> None:
    code = (
        "import sys, argparse, dsnb.demo, dsnb.cli; dsnb.demo.add_arguments(argparse.ArgumentParser());"
        "print(sorted({'numpy', 'PIL', 'grpc', 'panel'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert found.stdout.strip() == "[]"

"""`list_files`: each file once, in an order that every task agrees on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.errors import InvalidArgumentError, NotFoundError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.splits import split_providers
from tests.pipeline.driving import Feed, by_turns, context, run, values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(20):
        (tmp_path / "digits" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "digits" / str(number % 2) / f"{number:02}.png").touch()
    return tmp_path


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


def test_without_shuffle_paths_are_sorted_absolute_and_str(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    paths = values(Dataset.list_files("digits/0/*.png", shuffle=False))
    assert paths == [str(folder / "digits" / "0" / f"{n:02}.png") for n in range(0, 20, 2)]


def test_several_patterns_give_each_file_once(folder: Path) -> None:
    ds = Dataset.list_files([folder / "**" / "*.png", str(folder / "digits" / "0" / "*")], shuffle=False)
    assert len(ds) == 20
    assert names(values(ds)) == [f"{n:02}.png" for n in (*range(0, 20, 2), *range(1, 20, 2))]


def test_by_default_each_pass_has_another_order(folder: Path) -> None:
    ds = Dataset.list_files(str(folder / "digits/*/*.png"))
    first, second = values(ds), values(ds)
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_seed_gives_the_same_orders_in_every_run(folder: Path) -> None:
    pattern = str(folder / "digits/*/*.png")
    one, other = (Dataset.list_files(pattern, seed=3) for _ in range(2))
    assert [values(one), values(one)] == [values(other), values(other)]


def test_nothing_found_is_told_at_the_call() -> None:
    with pytest.raises(NotFoundError, match=r"no file matches `file_pattern`: 'no-such-.*\.png'") as caught:
        Dataset.list_files("no-such-*.png")  # a long path would be cut in the message
    assert caught.value.hint


def test_a_pattern_must_be_a_path() -> None:
    with pytest.raises(InvalidArgumentError, match="`file_pattern` is 5"):
        Dataset.list_files([5])  # type: ignore[list-item]


@pytest.mark.parametrize("seed", [None, 4])
def test_each_file_goes_to_exactly_one_task_in_every_pass(folder: Path, seed: int | None) -> None:
    """Tasks have entropies of their own, and still must mean the same file by the same number."""
    ds = Dataset.list_files(str(folder / "digits/*/*.png"), seed=seed)
    (provider,) = split_providers(ds.operation)
    orders = []
    for number in range(2):
        feed = Feed([provider.count], piece=3)
        stages = [
            ds.operation.build(context(entropy=task, iteration_path=(number,), splits=feed.task())) for task in range(3)
        ]
        shares = by_turns(stages)
        assert sorted(path for share in shares for path in share) == sorted(values(ds))
        assert all(shares)
        orders.append(shares)
    assert orders[0] != orders[1]


def test_the_order_does_not_depend_on_the_lengths_of_runs(folder: Path) -> None:
    ds = Dataset.list_files(str(folder / "digits/*/*.png"), seed=1)
    assert run(ds, [1]) == run(ds, [7]) == run(ds, [1024])

"""The entries against a model of them: who goes first, and that the sum is the sum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnb.cache.results.database import TRAINING_CACHE
from dsnb.cache.results.index import CacheEntry, Index
from dsnb.storage.sqlite import Database


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    database = Database(tmp_path / "cache.db", TRAINING_CACHE)
    yield Index(database)
    database.close()


def add(index: Index, name: str, size: int, seconds: float = 0.0) -> None:
    index.add_result(f"result-{name}", f"digest {name}", size, seconds)
    index.add_entry(CacheEntry(key=f"key {name}", output=f"output {name}"), "0.1.0", f"result-{name}", "m:C")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 50)),
        st.tuples(st.just("touch"), st.integers(0, 9)),
        st.tuples(st.just("free"), st.integers(1, 120)),
        st.tuples(st.just("drop"), st.integers(0, 9)),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(STEPS)
def test_without_costs_the_least_recently_used_go_first(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    database = Database(tmp_path_factory.mktemp("index") / "cache.db", TRAINING_CACHE)
    index = Index(database)
    model: dict[str, int] = {}  # sizes, the least recently used first
    try:
        for kind, number, *more in steps:
            name = f"result-{number}"
            with database.transaction():
                if kind == "add" and name not in model:
                    add(index, str(number), *more)
                    model[name] = more[0]
                elif kind == "touch" and name in model:
                    index.touch(f"output {number}")
                    model[name] = model.pop(name)
                elif kind == "drop" and name in model:
                    index.drop_key(f"key {number}")
                    del model[name]
                elif kind == "free":
                    gone = index.evict_lowest_ranked(number)
                    assert gone == freed(model, number)
                    for one in gone:
                        del model[one]
            assert index.total_bytes() == sum(model.values())
            assert index.locations() == set(model)
    finally:
        database.close()


def freed(model: dict[str, int], needed: int) -> list[str]:
    found: list[str] = []
    for name, size in model.items():
        found.append(name)
        needed -= size
        if needed <= 0:
            return found
    return []


def test_what_saves_more_for_its_size_goes_later_and_the_floor_rises(index: Index) -> None:
    with index.database.transaction():
        add(index, "dear", 10, seconds=100.0)
        add(index, "cheap", 10, seconds=1.0)
        add(index, "large", 1000, seconds=200.0)  # more work, but less for each byte
        assert index.evict_lowest_ranked(1) == ["result-cheap"]
        assert index.evict_lowest_ranked(1) == ["result-large"]
        add(index, "new", 10, seconds=99.0)
        assert index.evict_lowest_ranked(1) == [
            "result-dear"
        ]  # the floor has come up to where it stands, so newer ones rank higher
        assert index.locations() == {"result-new"}


def test_a_result_goes_with_its_last_entry_and_not_before(index: Index) -> None:
    with index.database.transaction():
        add(index, "a", 10)
        index.add_entry(CacheEntry(key="other", output="output a"), "0.1.0", "result-a", "m:C")
        index.drop_key("key a")
        assert index.unused_folders() == []
        index.add_entry(CacheEntry(key="other", output="x"), "0.1.0", None, None)
        assert index.unused_folders() == ["result-a"]
        assert index.total_bytes() == 0
        assert index.output_of("other") == "x"


def test_what_is_lent_stays_and_goes_when_it_is_given_back(index: Index) -> None:
    with index.database.transaction():
        add(index, "a", 10)
        lease = index.acquire_lease("result-a")
        assert index.evict_lowest_ranked(1) == []
        index.drop_key("key a")
        assert index.unused_folders() == []
        assert index.total_bytes() == 10
        assert index.expired_leases() == []
        index.release_lease(lease)
        assert index.unused_folders() == ["result-a"]
        assert index.total_bytes() == 0


def test_entries_without_results_are_bounded_and_the_newest_stay(index: Index) -> None:
    with index.database.transaction():
        add(index, "kept", 10)
        for number in range(10):
            index.add_entry(CacheEntry(key=f"{number}", output="o"), "0.1.0", None, None)
        index.drop_oldest_without_result(3)
        assert [number for number in range(10) if index.output_of(f"{number}")] == [7, 8, 9]
        assert index.output_of("key kept")


def test_the_result_of_an_output_is_the_one_used_last(index: Index) -> None:
    with index.database.transaction():
        for name in "ab":
            index.add_result(f"result-{name}", name, 1, 0.0)
            index.add_entry(CacheEntry(key=name, output="same"), "0.1.0", f"result-{name}", "m:C")
    found = index.result_of("same")
    assert found is not None
    assert found.location == "result-b"


def test_a_change_that_fails_changes_nothing(index: Index) -> None:
    with pytest.raises(KeyError), index.database.transaction():
        add_and_fail(index)
    assert (index.total_bytes(), index.locations(), index.output_of("key a")) == (0, set(), None)


def add_and_fail(index: Index) -> None:
    add(index, "a", 10)
    raise KeyError


def test_a_folder_is_named_from_before_it_is_made_until_it_is_removed(index: Index) -> None:
    with index.database.transaction():
        index.reserve_folder("result-a")
        assert (index.unused_folders(), index.abandoned_folders()) == ([], [])  # this process fills it
        add(index, "a", 10)
        index.drop_key("key a")
        assert index.unused_folders() == ["result-a"]
        index.forget_folder("result-a")
        index.reserve_folder("result-b")
        index.mark_folder_unused("result-b")
        assert index.unused_folders() == ["result-b"]

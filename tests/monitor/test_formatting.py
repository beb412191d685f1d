"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from dsnb.monitor import formatting


@pytest.mark.parametrize(
    "number, read", [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_000_000, "12.0 MB"), (3e15, "3000.0 TB")]
)
def test_sizes_have_one_fitting_unit(number: float, read: str) -> None:
    assert formatting.format_bytes(number) == read


@pytest.mark.parametrize("part, read", [(None, "–"), (0.0, "0 %"), (0.001, "<1 %"), (0.5, "50 %"), (1.4, "140 %")])
def test_shares_tell_nothing_from_little(part: float | None, read: str) -> None:
    assert formatting.format_share(part) == read


@pytest.mark.parametrize(
    "seconds, read",
    [
        (3e-7, "300 ns"),
        (2e-5, "20 µs"),
        (0.004, "4.0 ms"),
        (0.25, "250 ms"),
        (8.6, "8.6 s"),
        (90, "90 s"),
        (600, "10 min"),
        (9000, "2 h"),
    ],
)
def test_durations_have_one_fitting_unit(seconds: float, read: str) -> None:
    assert formatting.format_duration(seconds) == read


def test_rates_keep_a_decimal_while_it_matters() -> None:
    assert [formatting.format_rate(number) for number in (0, 0.4, 12_345.6)] == ["0/s", "0.4/s", "12,346/s"]


def test_workers_are_ordered_by_number() -> None:
    assert sorted(["w10", "w9", "w1", "other"], key=formatting.natural_sort_key) == ["other", "w1", "w9", "w10"]


def test_sentences_begin_and_end_as_sentences() -> None:
    assert formatting.as_sentence("nothing answers") == "Nothing answers."
    assert formatting.as_sentence("svc = dsnb.start()") == "svc = dsnb.start()"


def test_waiting_has_three_levels_with_a_sign_each() -> None:
    assert [formatting.LEVEL_SIGNS[formatting.wait_level(wait)] for wait in (0.0, 0.05, 0.1, 0.11)] == [
        "✓",
        "!",
        "!",
        "✕",
    ]

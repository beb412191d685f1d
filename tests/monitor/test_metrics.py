"""The text for Prometheus of snapshots written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from dsnb.monitor.metrics import follow, metrics_text, without_decreases
from dsnb.monitor.metrics_feed import MetricsFeed
from dsnb.monitor.rates import rates
from dsnb.monitor.snapshot import OlderJobs, Snapshot, SplitStatus
from dsnb.monitor.verdict import Verdict
from tests.dashboard.snapshots import SECOND, job, place, snapshot, stage, trainer, worker
from tests.support.exposition import decreased, names, samples
from tests.support.processes import ROOT


def full(seq: int = 1, **rest: Any) -> Snapshot:
    """A snapshot with something of everything that has metrics."""
    split = SplitStatus(source="range", repetition=0, total=10, done=4, in_hand=3, lost=1)
    fields: dict[str, Any] = {
        "workers": (worker(busy_ns=3 * SECOND, rss_bytes=7), worker("w1", state="draining")),
        "jobs": (
            job(
                produced=9,
                consumed=8,
                splits=(split,),
                stages=(stage("map(decode)", busy_ns=SECOND // 2, elements=9),),
                trainers=(trainer(elements=8, wait_ns=SECOND, active_ns=4 * SECOND, cursors=(place(lag=2),)),),
            ),
        ),
        "older": OlderJobs(jobs=2, produced=100, consumed=90, lost_splits=1),
    }
    return snapshot(seq, **(fields | rest))


def followed(*snapshots: Snapshot) -> list[str]:
    """The texts of successive snapshots of one service."""
    history, texts = None, []
    for one in snapshots:
        history = follow(history, one)
        texts.append(metrics_text(without_decreases(history, one)))
    return texts


# ---- names and text


def test_each_metric_has_a_help_text_a_type_and_a_name_after_the_rules_of_prometheus() -> None:
    lines = metrics_text(snapshot()).splitlines()
    helped = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    typed = [line.split()[2:] for line in lines if line.startswith("# TYPE ")]
    assert helped == [name for name, _ in typed]
    assert len(set(helped)) == len(helped)
    for name, kind in typed:
        assert re.fullmatch(r"dsnb_[a-z]+(_[a-z]+)*", name)
        assert kind == ("counter" if name.endswith("_total") else "gauge")
        assert not re.search(r"_(ns|ms|percent|kb|mb|count|sum|bucket|info)(_total)?$", name)


def test_the_metrics_are_the_same_with_and_without_jobs() -> None:
    assert names(metrics_text(full())) == names(metrics_text(snapshot()))


def test_durations_are_in_seconds_and_sizes_in_bytes() -> None:
    found = samples(metrics_text(full()))
    assert found['dsnb_worker_busy_seconds_total{worker="w0"}'] == 3
    assert found['dsnb_worker_rss_bytes{worker="w0"}'] == 7
    assert found['dsnb_trainer_wait_seconds_total{job_name="train",trainer="a"}'] == 1
    assert found['dsnb_trainer_lag_elements{job_name="train",trainer="a"}'] == 2
    assert found['dsnb_stage_busy_seconds_total{job_name="train",stage="map(decode)",position="0"}'] == 0.5


def test_all_states_are_there_so_that_an_alert_can_compare_with_0() -> None:
    found = samples(metrics_text(full()))
    assert [found[f'dsnb_workers{{state="{state}"}}'] for state in ("running", "draining")] == [1, 1]
    states = ("running", "paused", "idle", "finished", "archived")
    assert [found[f'dsnb_jobs{{state="{state}"}}'] for state in states] == [1, 0, 0, 0, 2]
    assert samples(metrics_text(snapshot()))['dsnb_workers{state="running"}'] == 0


def test_splits_are_counted_by_state() -> None:
    found = samples(metrics_text(full()))
    counts = {state: found[f'dsnb_job_splits{{job_name="train",state="{state}"}}'] for state in ("done", "assigned")}
    assert counts == {"done": 4, "assigned": 3}
    assert found['dsnb_job_splits{job_name="train",state="unassigned"}'] == 2, "one of the ten is lost"


def test_cache_counters_are_those_of_trainers_that_share_elements() -> None:
    plain = metrics_text(snapshot(jobs=(job(cached=False, trainers=(trainer(),)),)))
    assert 'dsnb_trainer_cache_hits_total{job_name="train",trainer="a"}' not in samples(plain)
    assert 'dsnb_trainer_cache_hits_total{job_name="train",trainer="a"}' in samples(metrics_text(full()))


def test_label_values_are_escaped() -> None:
    text = metrics_text(snapshot(jobs=(job('a"b\\c\nd\0e'),)))
    (line,) = [line for line in text.splitlines() if line.startswith("dsnb_job_epoch")]
    assert line == r'dsnb_job_epoch{service="default",job_name="a\"b\\c\nd' + '\ufffde"} 0'


def test_labels_have_no_names_of_files() -> None:
    stages = (stage("cache('/data/of/a user')"), stage('cache("it\'s")'), stage("list_files(3)"))
    found = samples(metrics_text(snapshot(jobs=(job(stages=stages),))))
    labels = [key.partition("{")[2] for key in found if key.startswith("dsnb_stage_elements_total")]
    assert [label.split(",")[1] for label in labels] == ['stage="cache"', 'stage="cache"', 'stage="list_files(3)"']


def test_stages_of_one_name_have_a_position() -> None:
    found = samples(metrics_text(snapshot(jobs=(job(stages=(stage("range(3)"), stage("range(3)"))),))))
    assert 'dsnb_stage_elements_total{job_name="train",stage="range(3)",position="1"}' in found


def test_the_order_does_not_depend_on_that_of_the_snapshot() -> None:
    workers = tuple(worker(f"w{number}") for number in range(12))
    jobs = tuple(job(name, trainers=(trainer("x"), trainer("b"))) for name in ("one", "two"))
    turned = tuple(job(name, trainers=(trainer("b"), trainer("x"))) for name in ("two", "one"))
    text = metrics_text(snapshot(workers=workers, jobs=jobs))
    assert text == metrics_text(snapshot(workers=workers[::-1], jobs=turned))
    found = [key for key in samples(text) if key.startswith("dsnb_worker_rss_bytes")]
    assert found == [f'dsnb_worker_rss_bytes{{worker="w{number}"}}' for number in range(12)]


def test_the_share_of_waiting_is_that_of_the_rates() -> None:
    before = full()
    now = job(trainers=(trainer(wait_ns=1_700_000_000, active_ns=5 * SECOND),))
    after = full(2, jobs=(now,))
    first, second = (samples(metrics_text(one)) for one in (before, after))
    wait, active = (f'dsnb_trainer_{name}_seconds_total{{job_name="train",trainer="a"}}' for name in ("wait", "active"))
    share = (second[wait] - first[wait]) / (second[active] - first[active])
    assert share == pytest.approx(rates(before, after).job("train").trainers["a"].wait_share)


# ---- counters


def test_totals_do_not_decrease_when_a_job_is_archived_or_forgotten() -> None:
    running = full(1, jobs=(job("a", produced=10), job("b", produced=5)), older=OlderJobs())
    archived = full(2, jobs=(job("b", produced=6),), older=OlderJobs(jobs=1, produced=10))
    forgotten = full(3, jobs=(job("b", produced=7),), older=OlderJobs())
    later = full(4, jobs=(job("b", produced=9),), older=OlderJobs())
    texts = followed(running, archived, forgotten, later)
    assert [samples(text)["dsnb_elements_produced_total"] for text in texts] == [15, 16, 16, 18]
    assert [decreased(*two) for two in pairwise(texts)] == [[], [], []]


def test_totals_do_not_decrease_when_a_job_is_archived_even_in_single_texts() -> None:
    running = snapshot(jobs=(job(produced=10, consumed=9, lost_splits=1),))
    archived = snapshot(older=OlderJobs(jobs=1, produced=10, consumed=9, lost_splits=1))
    assert decreased(metrics_text(running), metrics_text(archived)) == []


def test_the_total_of_a_job_keeps_the_elements_of_trainers_that_left() -> None:
    here = full(1, jobs=(job(consumed=9, trainers=(trainer("a", elements=5), trainer("b", elements=4))),))
    gone = full(2, jobs=(job(consumed=9, trainers=(trainer("b", elements=4),)),))
    assert [decreased(*two) for two in pairwise(followed(here, gone))] == [[]]


def test_a_service_that_started_again_begins_with_its_own_counters() -> None:
    texts = followed(full(1, started=1.0), full(2, started=2.0, jobs=(), older=OlderJobs(produced=1)))
    assert samples(texts[1])["dsnb_elements_produced_total"] == 1


# ---- verdicts


def test_a_verdict_is_there_once_for_each_job_cause_and_level() -> None:
    found = [Verdict(level="bad", cause="window", job="train", text="", subject=name) for name in "ab"]
    text = metrics_text(full(), [*found, Verdict(level="warn", cause="no workers", job="other", text="")])
    assert [key for key in samples(text) if key.startswith("dsnb_verdict")] == [
        'dsnb_verdict{job_name="other",cause="no workers",level="warn"}',
        'dsnb_verdict{job_name="train",cause="window",level="bad"}',
    ]


def reading(seconds: float) -> Snapshot:
    """A trainer that reads all the time and never waits."""
    reader = trainer(elements=int(100 * seconds), active_ns=int(seconds * SECOND))
    return snapshot(int(10 * seconds) + 1, time=seconds, jobs=(job(trainers=(reader,)),), workers=(worker(),))


def verdicts_of(*moments: float) -> list[bool]:
    """Whether the texts of a feed at these seconds have a verdict."""
    snapshots = iter([reading(moment) for moment in moments])
    feed = MetricsFeed(lambda: next(snapshots))
    return ["dsnb_verdict{" in feed.text() for _ in moments]


def test_verdicts_compare_texts_that_are_five_seconds_apart_and_stay_in_between() -> None:
    assert verdicts_of(0.0, 1.0, 4.9, 5.0, 6.0, 9.9) == [False, False, False, True, True, True]


def test_two_scrapers_at_the_same_time_both_get_the_verdicts() -> None:
    assert verdicts_of(0.0, 0.1, 15.0, 15.1, 30.0, 30.1) == [False, False, True, True, True, True]


def test_a_verdict_goes_when_its_job_is_no_longer_read() -> None:
    snapshots = iter([reading(0.0), reading(5.0), msgspec.structs.replace(reading(5.0), seq=99, time=10.0)])
    feed = MetricsFeed(lambda: next(snapshots))
    assert ["dsnb_verdict{" in feed.text() for _ in range(3)] == [False, True, False]


def test_a_feed_does_not_compare_two_runs_of_a_service() -> None:
    snapshots = iter([reading(0.0), reading(5.0), snapshot(1, time=9.0, started=8.0, jobs=reading(9.0).jobs)])
    feed = MetricsFeed(lambda: next(snapshots))
    assert ["dsnb_verdict{" in feed.text() for _ in range(3)] == [False, True, False]


def test_frequent_calls_of_a_feed_share_a_text() -> None:
    snapshots = iter([full(1)])
    feed = MetricsFeed(lambda: next(snapshots), max_age_s=3600)
    assert feed.text() == feed.text()


def test_an_error_of_a_feed_is_raised_and_not_remembered() -> None:
    answers: Iterator[Exception | Snapshot] = iter([ConnectionError("gone"), full()])

    def fetch() -> Snapshot:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    feed = MetricsFeed(fetch, max_age_s=3600)
    with pytest.raises(ConnectionError, match="gone"):
        feed.text()
    assert "dsnb_workers{" in feed.text()


# ---- the dashboard for Grafana


def grafana_queries() -> list[str]:
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    return panels + variables


def test_each_metric_of_the_grafana_dashboard_exists() -> None:
    queries = grafana_queries()
    used = {name for query in queries for name in re.findall(r"\bdsnb_\w+", query)}
    assert len(used) > 10
    assert used - set(names(metrics_text(full()))) == set()


def test_each_label_of_the_grafana_dashboard_exists() -> None:
    text = metrics_text(full(), [Verdict(level="bad", cause="window", job="train", text="")])
    known = set(re.findall(r'[{,](\w+)="', text))
    grouped = {
        label.strip()
        for query in grafana_queries()
        for labels in re.findall(r"\bby \(([^)]*)\)", query)
        for label in labels.split(",")
    }
    matched = {label for query in grafana_queries() for label in re.findall(r'(\w+)=~?"', query)}
    assert (grouped | matched) - known == set()


def test_panels_of_the_grafana_dashboard_have_their_own_places_and_numbers() -> None:
    panels = json.loads((ROOT / "docs" / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24

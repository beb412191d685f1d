"""What the panels say, in words and in exact values."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dsnb.dashboard.feed import FeedHealth
from dsnb.dashboard.markup import Html
from dsnb.dashboard.panels import stages as stages_panel
from dsnb.dashboard.panels.cards import cards
from dsnb.dashboard.panels.events import events
from dsnb.dashboard.panels.header import banner, header
from dsnb.dashboard.panels.jobs import jobs
from dsnb.dashboard.panels.splits import bar_shares, split_timeline, splits
from dsnb.dashboard.panels.stages import stages
from dsnb.dashboard.panels.strip import strip
from dsnb.dashboard.panels.tables import name_markup
from dsnb.dashboard.panels.throughput import throughput
from dsnb.dashboard.panels.trainers import trainers
from dsnb.dashboard.panels.verdict import job_verdicts
from dsnb.dashboard.panels.waits import waits
from dsnb.dashboard.panels.workers import workers
from dsnb.dashboard.view import ControlState, Selection, View, view
from dsnb.monitor.snapshot import AutoscaleStatus, EventStatus, HostStatus, Snapshot, SplitStatus
from dsnb.wire.messages import GpuStatus, LinkReport
from tests.dashboard.snapshots import SECOND, job, place, seen, snapshot, stage, task, trainer, worker


def value(markup: Html, field: str) -> str:
    """The exact value of the first number of that field."""
    found = re.search(rf'data-field="{field}" data-value="([^"]*)"', markup)
    assert found, f"no {field} in {markup}"
    return found[1]


def text(markup: Html) -> str:
    """What a person reads."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup)).strip()


def test_sharing_is_told_as_work_saved() -> None:
    made = cards(seen(snapshot(jobs=(job(produced=100, consumed=400),))))
    assert (value(made, "produced"), value(made, "consumed")) == ("100", "400")
    assert "each used 4.0 times" in text(made)
    assert "75 % of the work saved" in text(made)


def test_the_worst_wait_is_named_and_judged() -> None:
    def at(seconds: int, wait: float) -> Snapshot:
        fast = trainer("fast", elements=10 * seconds, active_ns=seconds * SECOND)
        slow = trainer("slow", elements=10 * seconds, active_ns=seconds * SECOND, wait_ns=int(wait * SECOND))
        return snapshot(seconds, jobs=(job(trainers=(fast, slow)),))

    made = cards(seen(at(1, 0.0), at(2, 0.3)))
    assert value(made, "worst-wait") == "0.3"
    assert "slow waits most: input-bound" in text(made)


def test_losers_are_named_and_the_past_is_not_forgotten() -> None:
    def at(seq: int, skipped: int) -> Snapshot:
        return snapshot(seq, jobs=(job(trainers=(trainer("b", skipped=skipped),)),))

    losing = cards(seen(at(1, 0), at(2, 97)))
    assert 'data-card="losing" data-level="bad"' in losing
    before = cards(seen(at(1, 97), at(2, 97)))
    assert 'data-card="losing" data-level="warn"' in before
    assert value(before, "skipped") == "97"


@pytest.mark.parametrize("lost", [{"lost": 848}, {"lost_parts": 1}])
def test_the_card_about_losses_does_not_say_that_all_is_well_where_a_worker_took_elements(lost: dict[str, int]) -> None:
    shown = cards(seen(snapshot(1, jobs=(job(trainers=(trainer("b", **lost),)),))))
    assert 'data-card="losing" data-level="warn"' in shown
    assert "elements lost with a worker" in text(shown)


def test_an_empty_page_says_what_to_do() -> None:
    assert "Looking for the service" in cards(seen())
    nobody = view((), FeedHealth(age_s=None, error="No service runs here.", attempts=1), Selection())
    assert "svc = dsnb.start" in cards(nobody)
    assert "No service runs here." in cards(nobody)
    assert "dsnb.distribute" in cards(seen(snapshot()))


@pytest.mark.parametrize("panel", [strip, trainers, workers, splits, stages, jobs, events])
def test_each_panel_has_words_for_nothing(panel: Callable[[View], Html]) -> None:
    for shown in (seen(), seen(snapshot()), seen(snapshot(jobs=(job(),)))):
        assert text(panel(shown))


def test_names_cannot_reach_into_the_page() -> None:
    nasty = "<img src=x onerror=alert(1)>"
    one = job(nasty, pipeline=nasty, trainers=(trainer(nasty, cursors=(place(),)),), tasks=(task(head=5),))
    view = seen(
        snapshot(jobs=(one,), workers=(worker(nasty),), events=(EventStatus(time=0, level="info", text=nasty),))
    )
    for panel in (header, cards, strip, trainers, workers, jobs, events):
        assert "<img" not in panel(view)


def test_trainers_have_exact_numbers() -> None:
    one = trainer("lr=0.1", elements=1234, hits=1000, misses=234, skipped=7, cursors=(place(offset=90, lag=3),))
    made = trainers(seen(snapshot(jobs=(job(trainers=(one,)),))))
    assert 'data-trainer="lr=0.1"' in made
    read = {field: value(made, field) for field in ("elements", "hits", "misses", "skipped", "offset", "lag")}
    assert read == {"elements": "1234", "hits": "1000", "misses": "234", "skipped": "7", "offset": "90", "lag": "3"}


def test_workers_have_exact_numbers_and_late_ones_are_marked() -> None:
    one = worker(produced=10, cache_bytes=500, capacity_bytes=1000, heartbeat_age_s=30.0)
    made = workers(seen(snapshot(workers=(one,))))
    assert value(made, "produced") == "10"
    assert '<td class="num desk bad" data-field="heard"' in made


def test_splits_fill_their_bar() -> None:
    split = SplitStatus(source="range", repetition=0, total=10, done=4, in_hand=2, lost=1)
    assert bar_shares(split) == {"done": 0.4, "in-hand": 0.2, "lost": 0.1}
    made = splits(seen(snapshot(jobs=(job(mode="DYNAMIC", splits=(split,)),))))
    assert [value(made, field) for field in ("done", "in_hand", "lost")] == ["4", "2", "1"]


def test_losses_of_earlier_repetitions_do_not_burst_the_bar() -> None:
    split = SplitStatus(source="range", repetition=3, total=4, done=2, in_hand=1, lost=5)
    assert sum(bar_shares(split).values()) <= 1


def test_stages_stand_in_the_order_of_the_data_with_their_share() -> None:
    def at(seq: int) -> Snapshot:
        found = (stage("batch", depth=0, busy_ns=seq * 1000), stage("map(f)", depth=1, busy_ns=seq * SECOND // 2))
        return snapshot(seq, jobs=(job(stages=found),))

    rows = stages_panel.rows(seen(at(1), at(2)))
    assert [(row.stage.name, row.heaviest) for row in rows] == [("map(f)", True), ("batch", False)]
    assert rows[0].share == pytest.approx(1.0, abs=0.01)


def test_at_rest_stages_show_all_work_since_the_beginning() -> None:
    still = snapshot(1, jobs=(job(stages=(stage("a", busy_ns=3), stage("b", depth=1, busy_ns=1))),))
    assert [row.share for row in stages_panel.rows(seen(still))] == [0.25, 0.75]


def test_a_job_that_does_not_share_says_how_to() -> None:
    assert "CrossTrainerCache" in strip(seen(snapshot(jobs=(job(cached=False),))))


def test_the_strip_of_a_job_whose_trainers_have_left_does_not_say_that_nobody_read_it() -> None:
    left = trainer(elements=968, clients=0)
    assert "No trainer reads this job now." in strip(seen(snapshot(jobs=(job(trainers=(left,)),))))
    assert "No trainer has read from this job yet." in strip(seen(snapshot(jobs=(job(),))))


def test_the_strip_offers_each_workers_task() -> None:
    tasks = (task("w0", head=9), task("w1", head=9))
    one = trainer(cursors=(place("w0", lag=1), place("w1", lag=2)))
    made = strip(seen(snapshot(jobs=(job(tasks=tasks, trainers=(one,)),))))
    assert re.findall(r'data-pick="task" data-value="([^"]*)"', made) == ["", "t-w0", "t-w1"]
    assert value(made, "lag") == "2"


def test_a_stale_page_says_so() -> None:
    fresh, old = seen(snapshot()), seen(snapshot(), age_s=12.0)
    assert banner(fresh) == ""
    assert 'data-state="live"' in header(fresh)
    assert "No news for 12 s." in text(banner(old))
    assert 'data-state="stale"' in header(old)
    assert 'data-state="waiting"' in header(seen())


def test_events_have_the_newest_on_top() -> None:
    found = tuple(EventStatus(time=float(at), level="info", text=f"event {at}") for at in range(60))
    made = events(seen(snapshot(events=found)))
    assert re.findall(r"event \d+<", made)[:2] == ["event 59<", "event 58<"]
    assert made.count("<li") == 40


def test_a_long_name_is_whole_in_the_page_and_its_end_is_apart_from_what_may_be_cut() -> None:
    made = name_markup("resnet50/lr=0.1,seed=12")
    assert re.sub("<[^>]*>", "", made) == "resnet50/lr=0.1,seed=12"
    assert "<span>,seed=12</span>" in made
    assert made.count("<span>") == 2
    assert name_markup("lr=0.1").count("<span>") == 1


def test_a_rate_that_nobody_knows_is_a_dash_and_no_nought() -> None:
    found = tuple(snapshot(seq, jobs=(job(produced=10 * seq),), workers=(worker(produced=10 * seq),)) for seq in (1, 2))
    assert "10/s" in text(jobs(seen(*found)))
    for silent in (seen(found[0]), seen(*found, age_s=60.0)):
        for panel in (jobs, workers, cards):
            assert "–" in text(panel(silent))
            assert "0/s" not in text(panel(silent))


def test_the_progress_of_splits_moves_while_a_slow_trainer_holds_all_of_them() -> None:
    """Nothing of this pass is consumed by all trainers yet, but most of it is given to workers."""
    progress = SplitStatus(source="range(100)", repetition=3, total=100, done=0, in_hand=80)
    made = splits(seen(snapshot(jobs=(job(mode="DYNAMIC", splits=(progress,)),))))
    assert value(made, "given") == "0.8"
    assert 'aria-valuenow="80"' in made


def test_bytes_per_second_are_told_with_the_size_of_an_element() -> None:
    def at(seconds: int) -> Snapshot:
        made = task(head=100 * seconds, tail=0, window_bytes=100 * seconds * 5000)
        return snapshot(seconds, jobs=(job(produced=100 * seconds, tasks=(made,)),))

    made = cards(seen(at(1), at(2)))
    assert value(made, "byte_rate") == "500000"
    assert "500 kB/s produced, 5.0 kB each" in text(made)


def test_an_operation_is_told_with_its_threads_and_its_queue() -> None:
    decode = stage("map(decode)", elements=10, busy_ns=SECOND, threads=4, buffered=7, capacity=16)
    made = stages(seen(snapshot(jobs=(job(stages=(decode,)),))))
    assert "4 threads, 7 of 16 ready" in text(made)


def test_workers_are_shown_with_cpu_and_memory() -> None:
    def at(seconds: int) -> Snapshot:
        idle = 3 * seconds * SECOND
        counted = {"cpu_ns": seconds * SECOND, "idle_ns": idle, "clock_ns": seconds * SECOND}
        one = worker(rss_bytes=5_000_000, cpus=4, host="node1", host_id="i", **counted)
        gpu = GpuStatus(name="H100", busy_percent=87, memory_used_bytes=40 * 10**9, memory_total_bytes=80 * 10**9)
        memory = {"memory_used_bytes": 9_100_000_000, "memory_total_bytes": 25_300_000_000}
        node = HostStatus(name="node1", host_id="i", gpus=(gpu,), **memory)
        return snapshot(seconds, workers=(one,), hosts=(node,))

    made = workers(seen(at(1), at(2)))
    assert (value(made, "cpus"), value(made, "rss_bytes")) == ("1.0", "5000000")
    assert "its host has 4, 3.0 of them idle" in made
    assert (value(made, "host_cpus"), value(made, "host_memory")) == ("1.0", "9100000000")
    assert (value(made, "gpu0_busy"), value(made, "gpu0_memory")) == ("87", "40000000000")
    for told in ("1.0 of 4", "workers use 1.0", "9.1 of 25.3 GB", "workers use 5.0 MB", "87 % busy", "40.0 of 80.0 GB"):
        assert told in text(made)
    assert 'title="H100"' in made


def test_a_host_of_an_older_worker_is_shown_with_what_its_workers_use() -> None:
    made = workers(seen(snapshot(workers=(worker(rss_bytes=5_000_000),))))
    assert "workers use 5.0 MB of memory" in text(made)
    assert "host_memory" not in made


def test_workers_of_several_hosts_are_grouped_by_host_with_what_they_send() -> None:
    def at(seconds: int) -> Snapshot:
        sent = {"sent_bytes": 2_000_000 * seconds, "clock_ns": seconds * SECOND}
        found = tuple(
            worker(f"w{number}", uid=f"u{number}", host=f"node{number % 2}", host_id=f"i{number % 2}", pid=number,
                   address=f"10.0.0.{number % 2}:500{number}", **sent)
            for number in range(3)
        )  # fmt: skip
        links = (LinkReport(worker="w0", transfer="shared_memory"), LinkReport(worker="w1", transfer="grpc"))
        return snapshot(seconds, workers=found, jobs=(job(links=links),), network="tls", launcher="Ray", scalable=True)

    made = workers(seen(at(1), at(2)))
    assert made.index("node0") < made.index('data-worker="w0"') < made.index('data-worker="w2"') < made.index("node1")
    shown = text(made)
    assert "10.0.0.0, 2 workers" in shown
    assert "sends 4.0 MB/s by shared memory" in shown
    assert "sends 2.0 MB/s by gRPC, encrypted" in shown
    assert "started by Ray" in shown


def test_autoscaling_is_switched_on_and_off_on_the_page() -> None:
    one = {"workers": (worker(),), "scalable": True}
    off = workers(seen(snapshot(**one), control=ControlState(allowed=True)))
    assert ('data-do="autoscale"' in off, 'data-do="fix"' in off) == (True, False)
    limits = AutoscaleStatus(minimum=1, maximum=8, wanted=3, reason="the readers wait")
    on = workers(seen(snapshot(**one, autoscale=limits), control=ControlState(allowed=True)))
    assert ('data-do="autoscale"' in on, 'data-do="fix"' in on) == (False, True)
    assert "autoscaling 1 to 8, 3 wanted" in text(on)
    assert 'title="the readers wait"' in on


def test_a_finished_job_is_greyed_and_cannot_be_cancelled() -> None:
    over, running = job("old", state="finished", clients=0), job("now")
    made = jobs(seen(snapshot(jobs=(over, running)), control=ControlState(allowed=True)))
    rows = {name: row for row, name in re.findall(r'(<tr[^>]*data-job="(\w+)".*?</tr>)', made)}
    assert 'class="ended"' in rows["old"]
    assert "cancel" not in rows["old"]
    assert "cancel" in rows["now"]


def test_an_evicted_trainer_is_marked_with_who_evicted_it() -> None:
    evicted, left = trainer("a", evicted_by="svc.evict() of anna"), trainer("b", clients=0, elements=5)
    made = trainers(seen(snapshot(jobs=(job(trainers=(evicted, left)),))))
    assert re.findall(r'data-field="trainer" data-value="([^"]*)"', made) == ["a", "b"]
    assert 'title="evicted by svc.evict() of anna"' in made
    assert re.search(r"\ba evicted .*\bb left\b", text(made))


def test_readers_that_left_with_nothing_have_no_lane() -> None:
    nobody = trainer("nobody", clients=0, cursors=(place(),))
    one = job(trainers=(trainer("reads", elements=3, cursors=(place(offset=3),)), nobody), tasks=(task(head=3),))
    assert "nobody" not in strip(seen(snapshot(jobs=(one,))))


def test_the_card_about_waiting_agrees_with_the_verdict() -> None:
    """Both are about ten seconds. The last second alone, in which the trainer did not wait, says the contrary."""

    def at(second: int) -> Snapshot:
        waited = min(second, 9) * SECOND // 2
        reader = trainer(elements=10 * second, active_ns=second * SECOND, wait_ns=waited, cursors=(place(),))
        return snapshot(second, jobs=(job(trainers=(reader,), tasks=(task(head=10 * second),), produced=10 * second),))

    page = seen(*(at(second) for second in range(1, 11)))
    (found,) = job_verdicts(page)
    assert found.level == "bad"
    assert "not input-bound" not in text(cards(page))


@pytest.mark.parametrize(
    "panel",
    [cards, events, jobs, split_timeline, stages, strip, throughput, trainers, waits, workers],
    ids=lambda p: p.__name__,
)
def test_the_title_of_each_panel_explains_itself(panel: Callable[[View], Html]) -> None:
    made = panel(seen(snapshot(jobs=(job(),))))
    titles = re.findall(r"<h[23][^>]*>", made)
    assert titles
    assert all("title=" in one for one in titles)


def test_clients_of_a_job_without_the_cross_trainer_cache_are_listed_by_their_names() -> None:
    made = trainers(seen(snapshot(jobs=(job(cached=False, trainers=(trainer("3000"),)),))))
    assert "3000" in text(made)

"""How the status of a service prints."""

from __future__ import annotations

import json

from msgspec.structs import replace

from dsnb.cli.top import screen_lines
from dsnb.monitor.snapshot import (
    CursorStatus,
    EventStatus,
    HostStatus,
    JobStatus,
    OlderJobs,
    ShardStatus,
    Snapshot,
    SplitStatus,
    TrainerStatus,
    WorkerStatus,
)
from dsnb.monitor.status_text import job_lines, status_text
from dsnb.wire.messages import GpuStatus

WORKER = WorkerStatus(
    name="w0",
    uid="u",
    address="127.0.0.1:4001",
    state="running",
    isolation="thread",
    pid=1,
    tasks=2,
    produced=12345,
    sent_bytes=678_000,
    cache_bytes=1_500_000,
    capacity_bytes=512_000_000,
)
TRAINER = TrainerStatus(
    trainer_id="lr=0.1",
    clients=1,
    elements=900,
    hits=850,
    misses=50,
    skipped=3,
    cursors=(CursorStatus(task_id="t", worker="w0", offset=900, lag=7),),
)
JOB = JobStatus(
    name="train",
    anonymous=False,
    dataset_id="d",
    pipeline="list_files | map(decode) | batch(32)",
    mode="DYNAMIC",
    cached=True,
    iteration=1,
    state="running",
    clients=1,
    produced=1000,
    consumed=900,
    trainers=(TRAINER,),
    splits=(SplitStatus(source="list_files", repetition=0, total=10, done=4, in_hand=2, lost=1),),
)
EMPTY = Snapshot(version=1, seq=1, time=1000.0, service="default", target="grpc://127.0.0.1:5050", started=940.0)
FULL = Snapshot(
    version=1,
    seq=1,
    time=1000.0,
    service="default",
    target="grpc://127.0.0.1:5050",
    started=940.0,
    workers=(WORKER,),
    jobs=(JOB,),
    events=tuple(EventStatus(time=990.0, level="warning", text=f"w{n} was lost") for n in range(7)),
)


def test_hosts_are_told_with_their_memory_and_gpus() -> None:
    gpus = (
        GpuStatus(name="H100", busy_percent=87, memory_used_bytes=40_000_000_000, memory_total_bytes=80_000_000_000),
        GpuStatus(name="H100 MIG", busy_percent=-1, memory_used_bytes=500_000_000, memory_total_bytes=10_000_000_000),
    )
    host = HostStatus(
        name="node1", host_id="i", memory_used_bytes=9_100_000_000, memory_total_bytes=25_300_000_000, gpus=gpus
    )
    there = replace(FULL, hosts=(host,))
    told = [
        "host node1: 9.1 of 25.3 GB of memory used",
        "GPU 0 of node1 (H100): 87 % busy, 40.0 of 80.0 GB of memory used",
        "GPU 1 of node1 (H100 MIG): busy unknown, 500 MB of 10.0 GB of memory used",
    ]
    assert [line.strip() for line in status_text(there).splitlines() if "of memory used" in line] == told
    assert [line.strip() for line in screen_lines([there], 120) if "of memory used" in line] == told
    assert all(f"<p>{line}</p>" in there._repr_html_() for line in told)


def test_an_empty_service_is_reported_in_words() -> None:
    assert status_text(EMPTY).splitlines() == [
        "default at grpc://127.0.0.1:5050, up 60 s",
        "",
        "0 workers",
        "",
        "no jobs",
    ]


def test_a_busy_service_is_reported_whole() -> None:
    assert status_text(FULL).splitlines()[:14] == [
        "default at grpc://127.0.0.1:5050, up 60 s",
        "",
        "1 worker",
        "  worker  address         state    tasks  produced    sent   cache  cache limit",
        "  w0      127.0.0.1:4001  running      2    12,345  678 kB  1.5 MB       512 MB",
        "",
        "job train: distributed_epoch, pass 2, running",
        "  list_files | map(decode) | batch(32)",
        "  1,000 elements produced, 900 consumed",
        "  splits of list_files: 4 of 10 done, 2 in hand, 1 lost",
        "  trainer  elements  hits  misses  lag  skipped  lost",
        "  lr=0.1        900   850      50    7        3     0",
        "",
        "warning: w2 was lost (10 s ago)",
    ]


def test_only_the_newest_events_are_reported() -> None:
    assert [line for line in status_text(FULL).splitlines() if "lost (" in line] == [
        f"warning: w{n} was lost (10 s ago)" for n in range(2, 7)
    ]


def test_shards_are_told_with_their_workers() -> None:
    shards = (ShardStatus(shard=0, state="running", worker="w0"), ShardStatus(shard=1, state="never begun"))
    lines = list(job_lines(replace(JOB, mode="DATA", splits=(), shards=shards)))
    assert lines[3:5] == ["  shard 0 of 2: running on w0", "  shard 1 of 2: never begun"]


def test_finished_jobs_that_are_no_longer_shown_one_by_one_are_added_up() -> None:
    sums = OlderJobs(jobs=1500, produced=60_000, consumed=59_000, lost_splits=2)
    assert status_text(replace(EMPTY, older=sums)).splitlines()[-1] == (
        "and 1,500 older jobs: 60,000 produced, 59,000 consumed, 2 splits lost"
    )
    assert "older" not in status_text(replace(EMPTY, older=OlderJobs()))


def test_a_snapshot_and_its_jobs_print_as_tables_in_text_and_html() -> None:
    assert repr(FULL) == str(FULL) == status_text(FULL)
    assert repr(JOB).splitlines()[0] == "job train: distributed_epoch, pass 2, running"
    for shown in (FULL._repr_html_(), JOB._repr_html_()):
        assert "<b>job train</b> (distributed_epoch, shared through the cross-trainer cache): running" in shown
        assert "<td>lr=0.1</td>" in shown


def test_the_parts_of_a_snapshot_print_without_what_they_do_not_have() -> None:
    assert repr(WORKER) == (
        "WorkerStatus(name='w0', uid='u', address='127.0.0.1:4001', isolation='thread', pid=1, "
        "capacity_bytes=512000000, state='running', tasks=2, produced=12345, sent_bytes=678000, cache_bytes=1500000)"
    )


def test_a_snapshot_is_plain_data_where_that_is_asked_for() -> None:
    plain = FULL.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["jobs"][0]["trainers"][0]["cursors"] == [
        {"task_id": "t", "worker": "w0", "offset": 900, "lag": 7, "in_flight_ns": 0}
    ]
    assert TRAINER.to_dict()["elements"] == 900

"""Autoscaling of a service whose reader is on another host, behind a link that carries too little."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.hosts import network
from tests.support.processes import PythonProcess

pytestmark = pytest.mark.slow

SERVICE = """
import dsnb, shutil, time
svc = dsnb.start(workers=2, isolation="process", host="auto", autoscale=(2, 4))
shutil.copy(svc.join_command().split()[-1], {join_file!r})
print("READY", flush=True)
told = 0
while True:
    status = svc.status()
    for event in status.events[told:]:
        print("EVENT", event.text, flush=True)
    told = len(status.events)
    time.sleep(0.1)
"""
READER = """
import dsnb, numpy as np
svc = dsnb.connect({join_file!r})
noise = np.random.default_rng(7).integers(0, 255, (64, 50_000), np.uint8)
data = dsnb.Dataset.from_tensor_slices(noise).repeat()
for number, _ in enumerate(data.apply(dsnb.distribute("parallel_epochs", svc, job_name="train"))):
    if number == 100:
        print("READING", flush=True)
"""


def events(service: PythonProcess) -> list[str]:
    return [line.removeprefix("EVENT ") for line in service.stdout.splitlines() if line.startswith("EVENT ")]


def test_a_reader_behind_a_full_link_gets_no_more_workers_and_is_told_why(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "host").mkdir()
    join_file = str(tmp_path / "shared" / "service.join")
    with network(tmp_path / "host", "a", "c") as hosts, ExitStack() as stack:
        service = stack.enter_context(hosts["a"].python(["-c", SERVICE.format(join_file=join_file)]))
        service.wait_for_line("READY", timeout=60)
        hosts["a"].limit(20)
        reader = stack.enter_context(hosts["c"].python(["-c", READER.format(join_file=join_file)]))
        reader.wait_for_line("READING", timeout=90)
        told = service.wait_for_line("EVENT autoscaling adds no workers, because they would not help", timeout=90)
        assert "the network connection carries" in told
        assert not [text for text in events(service) if text.startswith("autoscaling from")]

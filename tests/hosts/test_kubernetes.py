"""The pods of `deploy/kubernetes` as hosts of their own: the page docs/kubernetes.md without a cluster."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.hosts import Host, network
from tests.support.manifests import arguments_of
from tests.support.processes import PythonProcess

pytestmark = pytest.mark.slow
TRAINER = """
import dsnb, json
from urllib.request import urlopen

svc = dsnb.connect()
data = dsnb.Dataset.range(1000).map(lambda x: x * 3).apply(dsnb.distribute("distributed_epoch", svc, job_name="train"))
elements = []
for element in data:
    elements.append(int(element))
    if len(elements) == 200:
        print("READ 200", flush=True)
        input()
svc.wait_until(lambda status: len(status.workers) == 1)
(worker,) = svc.status().workers
metrics = urlopen("http://dsnb-dispatcher:9464/metrics", timeout=30).read().decode().splitlines()
consumed = [line for line in metrics if line.startswith("dsnb_elements_consumed_total")]
print(json.dumps({"elements": elements, "worker": worker.address, "consumed": consumed}))
"""


def start(pod: Host, deployment: str, folders: dict[str, str]) -> PythonProcess:
    """The container of a pod, with its volumes in other folders."""
    return pod.python(["-m", "dsnb", *arguments_of(deployment, {"$(POD_IP)": pod.address, **folders})])


def test_the_pods_serve_a_trainer_and_lose_nothing_when_one_is_evicted(tmp_path: Path) -> None:
    volume, secret = tmp_path / "volume", tmp_path / "secret"
    folders = {"/var/lib/dsnb": str(volume), "/etc/dsnb": str(secret)}
    for folder in (volume, secret, tmp_path / "pod"):
        folder.mkdir()
    names = ("dsnb-dispatcher", "worker-1", "worker-2", "trainer")
    with network(tmp_path / "pod", *names) as pods, ExitStack() as stack:
        dispatcher = stack.enter_context(start(pods["dsnb-dispatcher"], "dsnb-dispatcher", folders))
        dispatcher.wait_for_line("dispatcher ready at grpc://dsnb-dispatcher:5050")
        join_file = secret / "dsnb.join"
        join_file.write_bytes((volume / "dsnb.join").read_bytes())  # `kubectl create secret`
        join_file.chmod(0o440)
        workers = [stack.enter_context(start(pods[name], "dsnb-workers", folders)) for name in names[1:3]]
        for worker, address in zip(workers, ("10.77.0.2:5051", "10.77.0.3:5051"), strict=True):
            worker.wait_for_line(f"worker ready at {address}")
        trainer = stack.enter_context(
            pods["trainer"].python(["-c", TRAINER], env={"DSNB_JOIN_FILE": str(join_file)}, stdin=True)
        )
        trainer.wait_for_line("READ 200", timeout=60)
        workers[0].terminate()  # as Kubernetes does when it moves or removes a pod
        assert trainer.popen.stdin is not None
        trainer.popen.stdin.write(b"\n")
        trainer.popen.stdin.close()
        assert workers[0].wait_for_exit(timeout=60) == 0
        told = json.loads(trainer.wait_for_line("{", timeout=60))
        assert Counter(told["elements"]) == dict.fromkeys(range(0, 3000, 3), 1)
        assert told["worker"] == "10.77.0.3:5051"
        assert told["consumed"] == ['dsnb_elements_consumed_total{service="default"} 1000']

"""The manifests of `deploy/kubernetes`: valid, and in agreement with each other and with the commands of dsnb.

`tests/hosts/test_kubernetes.py` runs what is in them.
"""

from __future__ import annotations

import argparse

import kubernetes_validate
import pytest

from dsnb.cli import make_parser
from dsnb.monitor.metrics import metrics_text
from tests.dashboard.snapshots import snapshot
from tests.support.exposition import samples
from tests.support.manifests import arguments_of, manifests, pod_of

VERSIONS = ("1.27", "1.37")
"""The oldest version of Kubernetes that the manifests are for, and the newest whose schemas are here."""
NAMED = {f"{file}: {one['kind']}": one for file, one in manifests()}


def options_of(deployment: str) -> argparse.Namespace:
    return make_parser().parse_args(arguments_of(deployment, {"$(POD_IP)": "10.0.0.7"}))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMED)
def test_kubernetes_knows_each_field_of_the_manifests(name: str, version: str) -> None:
    kubernetes_validate.validate(NAMED[name], version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    wrong = {**NAMED["workers.yaml: Deployment"], "replicas": 2}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_service_leads_to_the_ports_of_the_dispatcher() -> None:
    service, options = NAMED["dispatcher.yaml: Service"], options_of("dsnb-dispatcher")
    named = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert named == {"grpc": options.port, "metrics": options.metrics_port}
    assert options.dispatcher_address == f"{service['metadata']['name']}:{options.port}"
    assert options.metrics_host == "0.0.0.0"
    assert service["spec"]["selector"] == NAMED["dispatcher.yaml: Deployment"]["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("deployment", ["dsnb-dispatcher", "dsnb-workers"])
def test_a_pod_is_ready_once_its_port_answers(deployment: str) -> None:
    (container,) = pod_of(deployment)["containers"]
    port = options_of(deployment).port
    assert container["readinessProbe"]["tcpSocket"]["port"] == port
    assert port in [one["containerPort"] for one in container["ports"]]


@pytest.mark.parametrize(
    "deployment, option", [("dsnb-dispatcher", "work_dir"), ("dsnb-dispatcher", "join_file"), ("dsnb-workers", "join")]
)
def test_the_files_of_a_pod_are_in_its_volumes(deployment: str, option: str) -> None:
    (container,) = pod_of(deployment)["containers"]
    folders = [one["mountPath"] for one in container["volumeMounts"]]
    assert any(getattr(options_of(deployment), option).startswith(f"{folder}/") for folder in folders)


def test_the_autoscaler_follows_a_metric_that_dsnb_has() -> None:
    scaler = NAMED["autoscaling.yaml: HorizontalPodAutoscaler"]["spec"]
    (metric,) = scaler["metrics"]
    names = {sample.partition("{")[0] for sample in samples(metrics_text(snapshot(), workers_wanted=3))}
    assert metric["external"]["metric"]["name"] in names
    assert scaler["scaleTargetRef"]["name"] == NAMED["workers.yaml: Deployment"]["metadata"]["name"]

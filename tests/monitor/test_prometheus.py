"""Metrics in the hands of Prometheus and its tools."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

import dsnb
from dsnb.monitor.metrics import metrics_text
from dsnb.monitor.metrics_server import MetricsServer
from dsnb.monitor.snapshot import OlderJobs
from dsnb.monitor.verdict import Verdict
from tests.dashboard.snapshots import job, snapshot, stage, trainer
from tests.monitor.test_metrics import full, grafana_queries
from tests.support.cluster import Cluster
from tests.support.processes import ROOT
from tests.support.prometheus import prometheus, promtool
from tests.support.waiting import wait_for

CONFIGURATION = """\
global:
  scrape_interval: 250ms
scrape_configs:
  - job_name: dsnb
    static_configs:
      - targets: ["TARGET"]
"""


def documented(language: str, beginning: str) -> str:
    """A block of code of docs/watching.md."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "watching.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(beginning)]
    return str(found)


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    strange = job('a"b\\c\nd\0é', trainers=(trainer("x y"),), stages=(stage('map("")'),))
    verdict = Verdict(level="bad", cause="no workers", job="train", text="")
    for one in (snapshot(), full(), full(jobs=(strange,), older=OlderJobs())):
        assert promtool("check", "metrics", stdin=metrics_text(one, [verdict])) == ""


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_documented_configuration(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(documented("yaml", "scrape_configs:"))
    assert promtool("check", "config", str(tmp_path / "prometheus.yml")) == ""
    (tmp_path / "rules.yml").write_text(documented("yaml", "groups:"))
    assert promtool("check", "rules", str(tmp_path / "rules.yml")) == ""


@pytest.mark.slow
def test_prometheus_reads_the_metrics_of_a_service_and_answers_all_queries_of_the_dashboard(tmp_path: Path) -> None:
    with Cluster(workers=2) as cluster, MetricsServer(cluster.dispatcher.status) as server:
        shared = dsnb.distribute(
            "parallel_epochs", cluster.service, job_name="train", cross_trainer_cache=dsnb.CrossTrainerCache("a")
        )
        configuration = CONFIGURATION.replace("TARGET", server.url.split("/")[2])
        data = dsnb.Dataset.range(1000).map(abs).repeat().apply(shared)
        with iter(data) as elements, prometheus(configuration, tmp_path) as server_of_metrics:

            def rate() -> bool:
                assert len(list(islice(elements, 500))) == 500
                query = 'rate(dsnb_trainer_elements_consumed_total{job_name="train",trainer="a"}[10s]) > 0'
                return bool(server_of_metrics.query(query))

            wait_for(rate, what="two scrapes", timeout=60, every=0.2)
            assert [(one["health"], one["lastError"]) for one in server_of_metrics.targets()] == [("up", "")]
            (workers,) = server_of_metrics.query('dsnb_workers{state="running"}')
            assert workers["value"][1] == "2"
            assert workers["metric"]["job"] == "dsnb", "no label is in the way of those of Prometheus"
            exported = server_of_metrics.query('{__name__=~"dsnb_.*",exported_job!=""}')
            assert exported == []
            for query in grafana_queries():
                if not query.startswith("label_values"):
                    server_of_metrics.query(_filled_in(query))


def _filled_in(query: str) -> str:
    """A query of the dashboard as Grafana sends it."""
    return query.replace("$__rate_interval", "10s").replace("$service", ".*").replace("$job_name", ".*")

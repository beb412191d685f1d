"""Metrics of a real service."""

from __future__ import annotations

from itertools import islice, pairwise

import dsnb
from dsnb.monitor.metrics_feed import MetricsFeed
from tests.support.cluster import Cluster
from tests.support.exposition import decreased, samples
from tests.support.waiting import wait_for


def test_metrics_of_a_service_have_the_numbers_of_its_status() -> None:
    with Cluster(workers=2) as cluster:
        shared = dsnb.distribute(
            "distributed_epoch",
            cluster.service,
            job_name="train",
            cross_trainer_cache=dsnb.CrossTrainerCache("lr=0.1"),
        )
        assert len(list(dsnb.Dataset.range(60).map(abs).apply(shared))) == 60
        found = samples(cluster.service.metrics())
        status = cluster.status()
        trainer = cluster.job("train").trainer("lr=0.1")
    assert found['dsnb_workers{state="running"}'] == 2
    assert found['dsnb_job_elements_produced_total{job_name="train"}'] == 60
    assert found["dsnb_elements_consumed_total"] == 60
    assert found['dsnb_trainer_elements_consumed_total{job_name="train",trainer="lr=0.1"}'] == 60
    assert found['dsnb_trainer_active_seconds_total{job_name="train",trainer="lr=0.1"}'] == trainer.active_ns / 1e9
    assert found['dsnb_stage_elements_total{job_name="train",stage="map(abs)",position="0"}'] == 60
    assert found["dsnb_service_start_time_seconds"] == status.started


def test_counters_of_a_service_do_not_decrease_while_jobs_come_and_go() -> None:
    with Cluster(workers=1) as cluster:
        texts = [cluster.service.metrics()]
        endless = dsnb.Dataset.range(10).repeat()
        with iter(endless.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="endless"))) as elements:
            assert len(list(islice(elements, 100))) == 100
            finite = dsnb.Dataset.range(500).map(abs)
            with iter(finite.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="finite"))) as others:
                next(others)
                texts.append(cluster.service.metrics())
                assert len(list(others)) == 499
            wait_for(lambda: cluster.status().workers[0].tasks == 1, what="a task to be dropped")
            texts.append(cluster.service.metrics())
            cluster.service.forget("finite")
            texts.append(cluster.service.metrics())
            left = cluster.status()
    assert [decreased(*two) for two in pairwise(texts)] == [[], [], []]
    assert [job.name for job in left.jobs] == ["endless"]
    assert samples(texts[-1])["dsnb_elements_consumed_total"] >= 500 + left.jobs[0].consumed


def test_a_later_text_has_verdicts() -> None:
    with Cluster(workers=1) as cluster:
        data = dsnb.Dataset.range(10).repeat().apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="a"))
        with iter(data) as elements:
            next(elements)
            feed = MetricsFeed(cluster.service.status, verdict_span_s=1.0)
            assert "dsnb_verdict{" not in feed.text()

            def text_with_verdict() -> str:
                next(elements)
                text = feed.text()
                return text if "dsnb_verdict{" in text else ""

            found = samples(wait_for(text_with_verdict, what="a verdict", every=0.1))
    (verdict,) = [key for key in found if key.startswith("dsnb_verdict")]
    assert verdict.startswith('dsnb_verdict{job_name="a",cause="')

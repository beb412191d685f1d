"""The benchmark suite: its plumbing on dsnb alone, and the page against the table of targets."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import versions
from benchmarks.contender import Contender, ContenderError, pids_with_mark
from benchmarks.environments import ENVIRONMENTS, EnvironmentMissingError
from benchmarks.estimates import Estimate, estimate
from benchmarks.peers.serving import RESULT_PREFIX, Task, process_tree, rate
from benchmarks.report import page, unmet
from benchmarks.results import ResultsFile, WorkloadResult
from benchmarks.suite import Plan, measure, select_workloads
from benchmarks.targets import ROWS, Check, MissingError, Results, figure, largest, ratio, smallest
from benchmarks.workloads import GRPC, TF, WORKLOADS, ContenderSpec, Workload
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def here(environment: str) -> Path:
    """This interpreter for dsnb; the peers' are not built for a test."""
    if environment == "dsnb":
        return Path(sys.executable)
    raise EnvironmentMissingError(f"{environment} is not built in tests")


def plan(said: list[str] | None = None) -> Plan:
    return Plan(runs=2, speed_up=20, python=here, log=([] if said is None else said).append)


@pytest.fixture(scope="module")
def measured() -> WorkloadResult:
    """The workload of scalars, of which only dsnb over gRPC and one peer are asked."""
    workload = WORKLOADS["scalars"]
    entries = {name: workload.contenders[name] for name in (GRPC, TF)}
    return measure(replace(workload, contenders=entries), plan())


@pytest.mark.slow
def test_a_workload_is_measured_with_who_is_there_and_tells_why_others_are_not(measured: WorkloadResult) -> None:
    assert list(measured.samples) == [GRPC]
    assert [set(one) for one in measured.samples[GRPC]] == [{"per_s", "gb_per_s", "cpu_s_per_gb"}] * 2
    assert all(one["per_s"] > 1000 for one in measured.samples[GRPC])
    assert "tensorflow is not built" in measured.missing[TF]


@pytest.mark.slow
def test_results_survive_in_their_file_and_fill_the_page(measured: WorkloadResult, tmp_path: Path) -> None:
    store = ResultsFile(tmp_path / "results.json")
    store.save("scalars", measured, {"tensorflow-cpu": "2.21.0"})
    again = ResultsFile(tmp_path / "results.json")
    assert (again.workloads, again.versions) == ({"scalars": measured}, {"tensorflow-cpu": "2.21.0"})
    text = page(again, "the command")
    assert "tensorflow is not built" in text.partition("## What was measured")[0]
    assert re.search(r"\| dsnb, grpc \| [\d,]+ \(", text)
    assert "; tensorflow-cpu 2.21.0.\n" in text
    (other,) = (line for line in text.splitlines() if line.startswith("| real images"))
    assert other.endswith("| 1.0x |  | not measured |"), "what nobody was asked for is called so"


@pytest.mark.slow
def test_a_contender_that_fails_or_hangs_is_noted_and_nothing_of_it_is_left() -> None:
    late = Contender(Path(sys.executable), "benchmarks.peers.limits", Task(kind="whole", shape=(1 << 20,)), 0.05)
    try:
        with pytest.raises(ContenderError, match=r"did not answer within 0\.05 seconds"):
            late.wait_ready()
        wait_for(lambda: len(list(pids_with_mark(late.mark))) > 1, what="its server to be there")
        mine = set(pids_with_mark(late.mark))
    finally:
        late.close()
    assert mine & set(process_tree(os.getpid())) == set()
    assert not Path(late.folder).exists()
    broken = Contender(Path(sys.executable), "benchmarks.ours.rate", Task(data="images"), 60)
    try:
        with pytest.raises(ContenderError, match=r"ended: KeyError: 'decoder'"):
            broken.wait_ready()
    finally:
        broken.close()


@pytest.mark.slow
def test_who_computes_while_it_waits_is_there_for_its_own_turns_only() -> None:
    """Else it would take the processor from the others, and their figures would tell of it."""

    def pid_of(kind: str) -> ContenderSpec:
        return ContenderSpec(environment="dsnb", module="tests.benchmarks.waiting", task=Task(kind=kind))

    entries = {kind: pid_of(kind) for kind in ("spinning", "sleeping")}
    measured = measure(Workload(name="pids", title="", contenders=entries, columns={}), plan())
    first, second = measured.samples["sleeping"]
    assert first == second, "it was there all the time"
    first, second = measured.samples["spinning"]
    assert first != second


@pytest.mark.slow
def test_a_rate_is_that_of_the_stream_without_its_beginning() -> None:
    def fresh() -> object:
        time.sleep(0.2)
        while True:
            time.sleep(0.01)
            yield None

    found = rate(fresh, 1e6, 0.2)  # type: ignore[arg-type]
    assert 20 < found["per_s"] <= 100
    assert found["gb_per_s"] == pytest.approx(found["per_s"] / 1000)


def test_a_stream_that_ends_has_no_rate() -> None:
    """Else it would be the faster the longer nothing comes."""
    with pytest.raises(EOFError, match="ended"):
        rate(lambda: iter(range(1000)), 1e6, 0.2)


def test_the_page_has_each_row_of_the_table_of_targets() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 6]
    written = [tuple(line.strip("| ").split(" | ")[:3]) for line in rows]
    wanted = [(row.workload, row.against, row.target) for row in ROWS]
    assert [row for row in written if row in wanted] == wanted


def test_each_row_asks_for_figures_that_a_workload_has() -> None:
    figures: Results = {
        name: {contender: [dict.fromkeys([*workload.columns, *EXTRA], 1.0)] for contender in workload.contenders}
        for name, workload in WORKLOADS.items()
    }
    for row in ROWS:
        for check in row.checks:
            assert check.reached(figures).value >= 0, row.workload
    with pytest.raises(MissingError):
        ROWS[0].checks[0].reached({})
    assert len(unmet({})) == len(ROWS)


EXTRA = ("slowest_16", "worker_over_mb", "client_over_mb", "both_over_mb")
"""Figures that are measured and not shown."""


@pytest.mark.parametrize(
    "check, reached, met",
    [
        (Check(values=ratio("w", "a", "b"), minimum=2), Estimate(2.5, 2.0, 3.0), True),
        (Check(values=ratio("w", "a", "b"), minimum=2), Estimate(2.5, 1.9, 3.0), False),
        (Check(values=ratio("w", "a", "b"), maximum=2), Estimate(1.5, 1.0, 2.1), False),
    ],
)
def test_a_target_is_met_only_by_the_worse_end_of_the_interval(check: Check, reached: Estimate, met: bool) -> None:
    assert check.met(reached) is met


def test_a_ratio_is_that_of_pairs() -> None:
    results: Results = {"w": {"a": [{"per_s": 1.0}, {"per_s": 8.0}, {"per_s": 9.0}], "b": [{"per_s": 1.0}] * 3}}
    assert ratio("w", "a", "b")(results) == [1.0, 8.0, 9.0]
    assert Check(values=ratio("w", "a", "b")).reached(results).value == 8.0


def test_figures_are_combined_measurement_by_measurement() -> None:
    results: Results = {"w": {"a": [{"x": 1.0}, {"x": 8.0}], "b": [{"x": 2.0}, {"x": 3.0}]}}
    both = figure("w", "a", "x"), figure("w", "b", "x")
    assert largest(*both)(results) == [2.0, 8.0]
    assert smallest(*both)(results) == [1.0, 3.0]


def test_the_interval_of_few_measurements_is_their_range() -> None:
    assert estimate([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert estimate([7.0]) == (7.0, 7.0, 7.0)


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    draw = random.Random(1)
    found = [estimate([draw.gauss(10.0, 1.0) for _ in range(15)]) for _ in range(100)]
    assert 0.88 <= sum(low <= 10.0 <= high for _, low, high in found) / len(found) <= 1.0
    narrow = [estimate([draw.gauss(10.0, 1.0) for _ in range(60)]) for _ in range(20)]
    assert max(high - low for _, low, high in narrow) < 1.2


def test_all_contenders_have_an_environment_and_a_module() -> None:
    for workload in WORKLOADS.values():
        for entry in workload.contenders.values():
            assert entry.environment in ENVIRONMENTS
            assert (ROOT / entry.module.replace(".", "/")).with_suffix(".py").exists()


def test_workloads_are_chosen_by_how_their_names_begin() -> None:
    assert select_workloads(["beside", "scal"]) == ["scalars", "beside-1m", "beside-64k", "beside-worker"]
    assert select_workloads(None) == list(WORKLOADS)
    assert select_workloads(["nothing"]) == []


def test_a_comparison_calls_a_higher_rate_better_and_a_longer_time_worse() -> None:
    epochs = WORKLOADS["photo-epochs"]
    before, after = {"images_per_s": 400.0, "gap_ms": 100.0}, {"images_per_s": 500.0, "gap_ms": 120.0}
    found = list(versions.rows(epochs, {"dsnb, before": [before] * 3, "dsnb, after": [after] * 3}))
    assert [row[-1] for row in found] == ["better", "WORSE"]


def test_what_a_contender_of_another_version_starts_runs_that_version_too(tmp_path: Path) -> None:
    (package := tmp_path / "before" / "dsnb").mkdir(parents=True)
    package.joinpath("__init__.py").touch()
    package.joinpath("__main__.py").write_text(f"print({RESULT_PREFIX!r} + '{{\"version\": 7}}')")
    (folder := tmp_path / "together").mkdir()
    root = versions.root_with(package.parent, folder)
    code = """
import contextlib, pathlib, sys
from benchmarks.contender import Contender
from benchmarks.peers.serving import Task
with contextlib.closing(Contender(pathlib.Path(sys.executable), "dsnb", Task(kind="any"), 20.0)) as contender:
    print(contender.read_result())
"""
    variables = {**os.environ, "PYTHONPATH": str(root)}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=root, env=variables, text=True)
    assert printed == "{'version': 7}\n"

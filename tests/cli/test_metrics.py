"""`dsnb dispatcher --metrics-port`."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import dsnb
from dsnb.cli import main
from dsnb.monitor.metrics_server import MetricsServer
from tests.dashboard.snapshots import snapshot
from tests.support.exposition import samples
from tests.support.processes import PythonProcess


@pytest.mark.slow
def test_a_dispatcher_serves_metrics_until_it_ends(tmp_path: Path) -> None:
    own = {"DSNB_RUNTIME_DIR": str(tmp_path)}
    with ExitStack() as stack:
        options = ["--metrics-port", "0", "--name", "digits"]
        dispatcher = stack.enter_context(PythonProcess(["-m", "dsnb", "dispatcher", *options], env=own))
        line = dispatcher.wait_for_line("dispatcher ready at ")
        match = re.fullmatch(r"dispatcher ready at \S+; metrics at (http://127\.0\.0\.1:\d+/metrics); Ctrl-C .*", line)
        assert match
        worker = stack.enter_context(PythonProcess(["-m", "dsnb", "worker"], env=own))
        worker.wait_for_line("worker ready")
        text = urlopen(match[1], timeout=30).read().decode()
        assert 'service="digits"' in text
        assert samples(text)['dsnb_workers{state="running"}'] == 1
        worker.terminate()
        assert worker.wait_for_exit() == 0
        dispatcher.terminate()
        assert (dispatcher.wait_for_exit(), dispatcher.stderr) == (0, "")
        with pytest.raises(URLError):
            urlopen(match[1], timeout=30)


@pytest.mark.usefixtures("patient_status")
def test_metrics_of_a_dispatcher_are_of_reports_that_it_has_already() -> None:
    with dsnb.DispatchServer() as dispatcher, dsnb.connect(dispatcher.target, dispatcher.token) as service:
        config = dsnb.WorkerConfig(dispatcher_address=dispatcher.target, token=dispatcher.token)
        with dsnb.WorkerServer(config):
            data = dsnb.Dataset.range(20).apply(dsnb.distribute("parallel_epochs", service, job_name="train"))
            assert len(list(data)) == 20
            asked, had = service.status(), dispatcher.reported_status()
    assert (had.service, had.target, had.started) == (asked.service, asked.target, asked.started)
    assert [one.name for one in had.workers] == [one.name for one in asked.workers] == ["w0"]
    assert [(one.name, one.produced, one.consumed) for one in had.jobs] == [("train", 20, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("options,metrics", [((), None), (("--metrics-port", "0"), "http://127.0.0.1:")])
def test_the_address_of_the_metrics_is_in_the_json(options: tuple[str, ...], metrics: str | None) -> None:
    with PythonProcess(["-m", "dsnb", "dispatcher", "--json", *options]) as dispatcher:
        url = json.loads(dispatcher.wait_for_line("{"))["metrics_url"]
        assert url is None if metrics is None else url.startswith(metrics)
        dispatcher.terminate()
        assert dispatcher.wait_for_exit() == 0


def test_an_impossible_port_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatcher", "--metrics-port", "65536"]) == 2
    assert "`metrics_port` is 65536" in capsys.readouterr().err


def test_a_taken_port_ends_the_dispatcher_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsServer(snapshot) as other:
        port = other.url.split(":")[2].partition("/")[0]
        assert main(["dispatcher", "--metrics-port", port]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"metrics cannot be served on port {port}" in err
    assert "choose another port" in err

"""Looking at and changing a service from the command line."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.cli.doctor import check_graphics, check_open_files, check_proxies
from dsnb.cli.top import screen_lines
from dsnb.errors import CancelledError, UnavailableError
from dsnb.monitor.run_file import RunReader
from tests.support.processes import PythonProcess
from tests.support.reading import first, numbers
from tests.support.waiting import wait_for


def command(*arguments: str) -> PythonProcess:
    return PythonProcess(["-m", "dsnb", *arguments])


def run(*arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command that ends by itself."""
    with command(*arguments) as process:
        return process.wait_for_exit(timeout=60), process.stdout, process.stderr


@pytest.fixture(scope="module")
def service() -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=2, name="commanded") as started:
        yield started


@contextmanager
def reading(service: Any, **options: Any) -> Iterator[Iterator[Any]]:
    data = dsnb.Dataset.range(100_000).map(lambda x: x)
    mode = dsnb.distribute("distributed_epoch", service, job_name="train", **options)
    with iter(data.apply(mode)) as elements:
        first(5, elements)
        yield elements


# ---- jobs and workers


@pytest.mark.slow
def test_jobs_and_workers_are_listed_for_people_and_for_scripts(service: dsnb.DataService) -> None:
    with reading(service):
        code, out, _ = run("jobs", "commanded")
        assert code == 0
        assert out.splitlines()[0].split()[:4] == ["job", "mode", "state", "pass"]
        assert "train" in out
        code, out, _ = run("workers", "commanded", "--json")
        assert [worker["name"] for worker in json.loads(out)["workers"]] == ["w0", "w1"]


@pytest.mark.slow
def test_the_receipt_of_an_epoch_is_printed_and_its_exit_code_says_whether_each_element_came_once(
    service: dsnb.DataService,
) -> None:
    data = dsnb.Dataset.range(30).apply(dsnb.distribute("distributed_epoch", service, job_name="proved"))
    assert len(list(data)) == 30
    line = "epoch 1 of job 'proved': 30 of 30 elements, each once"
    assert run("receipt", "proved", "--service", "commanded") == (0, f"{line}\n", "")
    code, out, _ = run("receipt", "proved", "--service", "commanded", "--epoch", "1", "--json")
    assert (code, json.loads(out)["delivered"]) == (0, 30)
    code, _, errors = run("receipt", "proved", "--service", "commanded", "--epoch", "7")
    assert code == 1
    assert "there is no receipt of epoch 7 of job 'proved'" in errors


@pytest.mark.slow
def test_a_job_is_paused_resumed_and_cancelled(service: dsnb.DataService) -> None:
    with reading(service, max_outstanding_requests=4) as elements:
        assert run("job", "pause", "train", "--service", "commanded") == (0, "job 'train' is paused\n", "")
        assert service.status().job("train").state == "paused"  # type: ignore[union-attr]
        code, out, _ = run("job", "resume", "train", "--service", "commanded", "--json")
        assert json.loads(out) == {"job": "train", "state": "running"}
        assert run("job", "cancel", "train", "--service", "commanded")[0] == 0
        with pytest.raises(CancelledError, match="cancelled by `dsnb job cancel` of "):
            numbers(elements)
    code, _, err = run("job", "pause", "trian", "--service", "commanded")
    assert code == 1
    assert "there is no job 'trian'" in err


@pytest.mark.slow
def test_a_worker_of_its_own_process_is_drained_by_name() -> None:
    with command("dispatcher", "--json") as dispatcher:
        target = str(json.loads(dispatcher.wait_for_line("{"))["target"])
        with command("worker", "--dispatcher", target) as worker:
            worker.wait_for_line("worker ready")
            assert run("worker", "drain", "w0", "--dispatcher", target)[:2] == (0, "worker w0 is draining\n")
            assert worker.wait_for_exit(timeout=30) == 0
        dispatcher.terminate()
        assert dispatcher.wait_for_exit() == 0
    assert run("worker", "drain")[0] == 2


# ---- signals


def is_refused(dataset: dsnb.Dataset) -> bool:
    """Whether the service refuses a new job because it is about to end."""
    with iter(dataset) as elements:
        try:
            elements.start()
        except UnavailableError as error:
            return "the service is about to end" in str(error)
    return False


@pytest.mark.slow
def test_the_first_sigterm_lets_readers_finish_and_the_second_stops(tmp_path: Path) -> None:
    with command("dispatcher", "--json", "--record", str(tmp_path / "run.db")) as dispatcher:
        target = str(json.loads(dispatcher.wait_for_line("{"))["target"])
        with command("worker", "--dispatcher", target) as worker:
            worker.wait_for_line("worker ready")
            data = dsnb.Dataset.range(2000).map(lambda x: x)
            read = dsnb.distribute("distributed_epoch", target, job_name="train", max_outstanding_requests=8)
            with iter(data.apply(read)) as elements:
                got = first(5, elements)
                dispatcher.terminate()
                worker.terminate()
                service = dsnb.connect(target)
                service.wait_until(lambda now: [w.state for w in now.workers] == ["draining"])
                new = data.apply(dsnb.distribute("distributed_epoch", target))
                wait_for(lambda: is_refused(new), what="the dispatcher to refuse new jobs")  # the worker may be quicker
                worker.terminate()
                assert worker.wait_for_exit(timeout=30) == 0
                assert got
        assert dispatcher.wait_for_exit(timeout=30) == 0
    with RunReader(tmp_path / "run.db") as played:
        assert any(snapshot.jobs for snapshot in played.between(0, time.time()))


# ---- top


@pytest.mark.slow
def test_top_prints_once_where_there_is_no_terminal(service: dsnb.DataService) -> None:
    with reading(service, max_outstanding_requests=2):
        code, out, _ = run("top", "commanded")
        assert code == 0
        assert "is not input-bound" in out
        assert "job train (distributed_epoch, running)" in out
        code, out, _ = run("top", "commanded", "--json")
        told = json.loads(out)
        assert told["service"] == "commanded"
        assert {one["level"] for one in told["verdicts"]} <= {"good", "warn", "bad"}


@pytest.mark.slow
def test_no_line_of_top_is_wider_than_the_terminal(service: dsnb.DataService) -> None:
    with reading(service):
        before = service.status()
        wait_for(lambda: service.status().time - before.time > 1.1, what="a second")
        for width in (40, 80, 200):
            assert max(map(len, screen_lines([before, service.status()], width))) <= width


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"q", signal.SIGINT])
def test_top_is_live_in_a_terminal_until_it_is_ended(service: dsnb.DataService, end: bytes | signal.Signals) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dsnb", "top", "commanded", "--interval", "0.3"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )  # fmt: skip
    seen = bytearray()

    def frames() -> int:
        while select.select([ours], [], [], 0.05)[0]:
            with suppress(OSError):
                seen.extend(os.read(ours, 1 << 16))
                continue
            break
        return seen.count(b"q ends")

    try:
        wait_for(lambda: frames() >= 3, what="three frames", timeout=60)
        assert b"commanded at grpc://" in seen
        if isinstance(end, bytes):
            os.write(ours, end)
        else:
            process.send_signal(end)
        wait_for(lambda: frames() >= 0 and process.poll() is not None, what="its end", timeout=30)
        frames()  # what it wrote last
        assert process.returncode == (0 if isinstance(end, bytes) else 130)
        assert seen.rstrip().endswith(b"\x1b[?1049l")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


# ---- doctor


@pytest.mark.slow
def test_the_doctor_looks_at_what_may_be_in_the_way(service: dsnb.DataService) -> None:
    code, out, _ = run("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert code == 0, out
    assert {"system", "grpcio", "protobuf", "ports", "proxies", "limits", "shared memory", "connection files"} <= set(
        found
    )
    assert found["service commanded"]["text"].endswith("2 workers")
    assert "ok   ports:" in run("doctor")[1]
    assert {"processors", "memory", "GPUs", "pillow", "ipywidgets"} <= set(found)


@pytest.mark.slow
def test_a_bundle_for_a_bug_report_has_findings_and_status_and_no_token(
    service: dsnb.DataService, tmp_path: Path
) -> None:
    file = tmp_path / "dsnb.zip"
    code, out, _ = run("doctor", "--bundle", str(file))
    assert code == 0
    assert f"written to {file}" in out
    with zipfile.ZipFile(file) as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert set(texts) == {
        "dsnb/README.txt",
        "dsnb/findings.json",
        "dsnb/commanded/status.txt",
        "dsnb/commanded/status.json",
    }
    assert json.loads(texts["dsnb/commanded/status.json"])["service"] == "commanded"
    assert any(finding["name"] == "grpcio" for finding in json.loads(texts["dsnb/findings.json"]))
    assert service.token
    assert not [name for name, text in texts.items() if service.token in text]
    assert run("doctor", "--bundle", str(tmp_path))[0] == 1, "a folder"


def test_the_doctor_names_the_gpus_of_the_driver(tmp_path: Path) -> None:
    assert "no NVIDIA GPU" in check_graphics(tmp_path).text
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 34\n")
    assert check_graphics(tmp_path).text == "NVIDIA H200, NVIDIA H200"


def test_a_proxy_that_would_be_asked_for_this_machine_is_bad_news_with_a_remedy() -> None:
    assert check_proxies({}).level == "ok"
    assert check_proxies({"https_proxy": "http://proxy:3128"}).level == "bad"
    assert "no_proxy=localhost,127.0.0.1" in check_proxies({"grpc_proxy": "http://proxy:3128"}).remedy
    assert check_proxies({"http_proxy": "http://proxy:3128", "no_proxy": "localhost, 127.0.0.1"}).level == "ok"
    assert check_open_files(256).level == "warn"
    assert check_open_files(4096).level == "ok"

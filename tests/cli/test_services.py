"""The commands on real services, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

import dsnb
from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.requires import require_module
from tests.support.waiting import wait_for


def command(*arguments: str, env: dict[str, str] | None = None) -> PythonProcess:
    return PythonProcess(["-m", "dsnb", *arguments], env=env)


@pytest.fixture(params=["status", "dashboard"])
def reading_command(request: pytest.FixtureRequest) -> str:
    """A command that looks at a running service."""
    if request.param == "dashboard":
        require_module("panel")
    return str(request.param)


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command that ends by itself."""
    with command(*arguments, env=env) as process:
        return process.wait_for_exit(), process.stdout, process.stderr


@pytest.fixture
def dispatcher() -> Iterator[PythonProcess]:
    with command("dispatcher", "--json") as process:
        process.wait_for_line("{")
        yield process
        process.terminate()
        assert process.wait_for_exit() == 0


@pytest.fixture
def target(dispatcher: PythonProcess) -> str:
    return str(json.loads(dispatcher.wait_for_line("{"))["target"])


# ------------------------------------------------------------------------------------------- dispatcher and worker


@pytest.mark.slow
def test_a_dispatcher_and_workers_from_the_command_line_serve_a_reader(target: str) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(command("worker", "--dispatcher", target)) for _ in range(2)]
        for worker in workers:
            assert re.fullmatch(
                rf"worker ready at \S+:\d+, joined {re.escape(target)}; Ctrl-C stops it",
                worker.wait_for_line("worker ready"),
            )
        numbers = dsnb.Dataset.range(1000).map(lambda x: x + 1).apply(dsnb.distribute("distributed_epoch", target))
        assert sorted(numbers) == list(range(1, 1001))
        for worker in workers:
            worker.interrupt()
            assert worker.wait_for_exit() == 0


@pytest.mark.slow
def test_a_dispatcher_with_a_list_of_workers_lets_no_other_in() -> None:
    places = ("--worker-address", "localhost:%port%", "--worker-address", "elsewhere:5050")
    with command("dispatcher", "--json", *places) as dispatcher, ExitStack() as stack:
        target = str(json.loads(dispatcher.wait_for_line("{"))["target"])
        stack.enter_context(command("worker", "--dispatcher", target)).wait_for_line("worker ready")
        code, _, err = run("worker", "--dispatcher", target)
        assert code != 0
        assert "other workers are already running at the configured host" in err
        shards = dsnb.Dataset.range(10).apply(dsnb.distribute(dsnb.ShardingPolicy.DATA, target))
        with pytest.warns(dsnb.errors.DsnbWarning, match=r"no worker for shard 1 of 2 \(elsewhere:5050\)"):
            assert [int(x) for x in shards] == [0, 2, 4, 6, 8]
        dispatcher.terminate()
        assert dispatcher.wait_for_exit() == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", ["interrupt", "terminate"])
def test_a_dispatcher_ends_in_order(end: str, tmp_path: Path) -> None:
    with command("dispatcher", env={"DSNB_RUNTIME_DIR": str(tmp_path)}) as process:
        line = process.wait_for_line("dispatcher ready at grpc://127.0.0.1:")
        assert line.endswith("; Ctrl-C stops it")
        getattr(process, end)()
        assert process.wait_for_exit() == 0
        assert process.stderr == ""
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_finds_the_only_service_by_itself(dispatcher: PythonProcess, target: str) -> None:
    with command("worker", "--json", "--cache-bytes", "1MB") as worker:
        told = json.loads(worker.wait_for_line("{"))
        assert told["dispatcher"].removeprefix("grpc://") == target.removeprefix("grpc://")
        with dsnb.connect(target) as service:
            (status,) = service.status().workers
            assert (status.address, status.capacity_bytes) == (told["address"], 1_000_000)
        worker.terminate()
        assert worker.wait_for_exit() == 0


@pytest.mark.slow
def test_a_joined_worker_ends_when_its_service_has_been_gone_for_the_stated_time(tmp_path: Path) -> None:
    file = tmp_path / "digits.join"
    with command("dispatcher", "--join-file", str(file)) as dispatcher:
        dispatcher.wait_for_line("dispatcher ready")
        with command("worker", "--join", str(file), "--dispatcher-gone", "0.5") as worker:
            worker.wait_for_line("worker ready")
            dispatcher.kill()
            assert worker.wait_for_exit(timeout=30) != 0
            assert "has not answered for" in worker.stderr


@pytest.mark.slow
def test_a_token_file_is_made_for_its_owner_alone_and_used_again(tmp_path: Path) -> None:
    token, elsewhere = tmp_path / "token", {"DSNB_RUNTIME_DIR": str(tmp_path / "other user")}
    texts = []
    for _ in range(2):
        with command("dispatcher", "--json", "--token-file", str(token)) as process:
            told = json.loads(process.wait_for_line("{"))
            assert told["token_file"] == str(token)
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            texts.append(token.read_text())
            code, out, err = run("status", told["target"], "--json", "--token-file", str(token), env=elsewhere)
            assert (code, err) == (0, "")
            assert json.loads(out)["target"] == told["target"]
            process.terminate()
            process.wait_for_exit()
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_dispatcher_that_is_killed_is_started_again_in_its_work_dir(tmp_path: Path) -> None:
    again = ["dispatcher", "--json", "--work-dir", str(tmp_path), "--port", str(unused_port())]
    with command(*again) as process:
        target = json.loads(process.wait_for_line("{"))["target"]
        registered = dsnb.register_dataset(target, dsnb.Dataset.range(10))
        process.kill()
    with command(*again) as process:
        assert json.loads(process.wait_for_line("{"))["target"] == target
        code, out, err = run("dispatcher", "--work-dir", str(tmp_path))
        assert (code, out) == (1, "")
        assert err.startswith("dsnb dispatcher: another dispatcher uses the journal")
        with command("worker", "--dispatcher", target) as worker:
            worker.wait_for_line("worker ready")
            assert len(list(dsnb.from_dataset_id("parallel_epochs", target, registered))) == 10
            worker.terminate()
            worker.wait_for_exit()
        process.terminate()
        process.wait_for_exit()


@pytest.mark.slow
def test_a_taken_port_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("dispatcher", "--port", str(port))
    assert (code, out) == (1, "")
    assert err.startswith(f"dsnb dispatcher: the dispatcher cannot listen on 127.0.0.1:{port}")
    assert "\n  try:  " in err
    assert "Traceback" not in err


def test_a_taken_name_is_told_with_who_has_it() -> None:
    with dsnb.start(workers=0, name="digits") as service:
        code, out, err = run("dispatcher", "--name", "digits")
        assert (code, out) == (1, "")
        assert err.startswith(f"dsnb dispatcher: a service named 'digits' runs in process {os.getpid()}")
        assert dsnb.connect("digits").target == service.target


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments,told",
    [
        (["dispatcher", "--port", "70000"], "`port` is 70000"),
        (["dispatcher", "--host", "everywhere"], "'everywhere' is not an IP address"),
        (["dispatcher", "--name", "my service"], "'my service' cannot be the name of a service"),
        (["worker", "--dispatcher", "127.0.0.1:1", "--cache-bytes", "much"], "'much' is not a size"),
    ],
)
def test_a_value_that_can_never_be_right_is_a_wrong_use(arguments: list[str], told: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_worker_without_a_dispatcher_gives_up_with_advice() -> None:
    code, out, err = run("worker", "--dispatcher", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "127.0.0.1:1" in err
    assert "\n  try:  " in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_ctrl_c_ends_a_worker_that_still_looks_for_its_dispatcher() -> None:
    with command("worker", "--dispatcher", "127.0.0.1:1", "--port", str(port := unused_port())) as worker:
        wait_for(lambda: not refuses(f"http://127.0.0.1:{port}"), what="the worker to listen")
        worker.interrupt()
        assert worker.wait_for_exit(timeout=30) == 130
        assert (worker.stdout, worker.stderr) == ("", "")


@pytest.mark.slow
def test_a_worker_with_a_wrong_token_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("wrong")
    code, out, err = run("worker", "--dispatcher", target, "--token-file", str(tmp_path / "token"))
    assert (code, out) == (1, "")
    assert "the token is wrong" in err
    assert "Traceback" not in err


# ---------------------------------------------------------------------------------------------------------- status


@pytest.mark.slow
def test_status_without_a_service_says_how_to_start_one() -> None:
    code, out, err = run("status")
    assert (code, out) == (1, "")
    assert err.startswith("dsnb status: no dsnb service")
    assert "dsnb.start()" in err


@pytest.mark.slow
def test_status_of_the_only_service_is_a_report() -> None:
    with dsnb.start(workers=1, name="digits") as service:
        squares = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", service, job_name="train"))
        assert len(list(squares)) == 10
        code, out, err = run("status")
    assert (code, err) == (0, "")
    assert out.startswith(f"digits at {service.target}, up ")
    assert "\njob train: distributed_epoch, pass 1, " in out


def test_status_as_json_is_the_whole_snapshot() -> None:
    with dsnb.start(workers=2, name="digits") as service:
        code, out, err = run("status", "digits", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["service"], told["target"], len(told["workers"])) == ("digits", service.target, 2)
    assert service.token not in out


@pytest.mark.slow
def test_several_services_are_listed_without_their_tokens(target: str) -> None:
    with dsnb.start(workers=1, name="digits") as service:
        code, out, err = run("status", "--json")
        assert (code, err) == (0, "")
        listed = json.loads(out)["services"]
        (digits,) = [entry for entry in listed if entry["name"] == "digits"]
        assert abs(digits.pop("started") - service.status().started) < 1
        assert digits == {"name": "digits", "target": service.target, "pid": os.getpid(), "workers": 1, "jobs": 0}
        assert target in [entry["target"] for entry in listed]
        code, text, err = run("status")
        assert (code, err) == (0, "")
        assert re.match(r"2 services run here; name one:\n  name +target +pid +workers +jobs +since\n  default ", text)
        assert re.search(rf"\n  digits +{service.target} +{os.getpid()} +1 +0 +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$", text)
        assert service.token not in out + text


@pytest.mark.slow
def test_a_service_that_hangs_is_listed_as_one_that_does_not_answer(dispatcher: PythonProcess) -> None:
    with dsnb.start(workers=0, name="digits"):
        dispatcher.popen.send_signal(signal.SIGSTOP)
        try:
            code, text, err = run("status")
        finally:
            dispatcher.popen.send_signal(signal.SIGCONT)
    assert (code, err) == (0, "")
    assert re.search(rf"\n  default +\S+ +{dispatcher.pid} +- +- +does not answer\n  digits .* 0 +0 +20", text)


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_and_told(tmp_path: Path) -> None:
    env = {"DSNB_RUNTIME_DIR": str(tmp_path)}
    with command("dispatcher", "--name", "digits", env=env) as process:
        process.wait_for_line("dispatcher ready")
        process.kill()
        (tmp_path / ".dsnb-connection-half.tmp").touch()
        code, out, err = run("status", env=env)
    assert (code, out) == (1, "")
    assert err.startswith(
        f"removed: the connection file of 'digits', whose process {process.pid} is gone\ndsnb status: no dsnb service"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_name_that_nobody_has_is_told_with_those_that_run(reading_command: str) -> None:
    with dsnb.start(workers=1, name="digits"):
        code, out, err = run(reading_command, "letters")
    assert (code, out) == (1, "")
    assert "no service 'letters'" in err
    assert "digits" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_an_address_where_nothing_listens_is_told(reading_command: str) -> None:
    code, out, err = run(reading_command, "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "127.0.0.1:1" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_wrong_token_is_refused(reading_command: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("wrong")
    with dsnb.start(workers=1) as service:
        code, out, err = run(reading_command, service.target, "--token-file", str(tmp_path / "token"))
    assert (code, out) == (1, "")
    assert "the token is wrong" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_token_file_that_is_missing_is_told(tmp_path: Path) -> None:
    code, _, err = run("status", "127.0.0.1:1", "--token-file", str(tmp_path / "nothing"))
    assert code == 1
    assert f"the token file '{tmp_path / 'nothing'}' cannot be read" in err


@pytest.mark.slow
def test_output_that_nobody_reads_to_its_end_is_no_error() -> None:
    with dsnb.start(workers=1), PythonProcess(["-c", CLOSED_PIPE]) as process:
        assert process.wait_for_exit() == 0
        assert process.stderr == ""


CLOSED_PIPE = """
import os, subprocess, sys
reader, writer = os.pipe()
os.close(reader)
sys.exit(subprocess.run([sys.executable, "-m", "dsnb", "status"], stdout=writer).returncode)
"""


# ------------------------------------------------------------------------------------------------------- dashboard


@pytest.mark.slow
def test_the_dashboard_serves_a_page_until_it_is_told_to_stop() -> None:
    require_module("panel")
    with dsnb.start(workers=1, name="digits"), command("dashboard", "digits", "--no-open", "--json") as process:
        url = json.loads(process.wait_for_line("{"))["url"]
        with urlopen(url, timeout=30) as page:
            assert page.status == 200
        process.terminate()
        assert process.wait_for_exit() == 0
        assert wait_for(lambda: refuses(url), what="the port to be closed")


def refuses(url: str) -> bool:
    host, port = re.findall(r"//(.+):(\d+)", url)[0]
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0

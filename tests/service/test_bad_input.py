"""What people do wrong, and what goes wrong: an error that says what to do, soon, and a service that goes on."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.code.tracebacks import RemoteTraceback
from dsnb.errors import (
    AlreadyExistsError,
    DataLossWarning,
    DsnbError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UserCodeError,
)
from tests.support.cluster import Cluster
from tests.support.ports import unused_port
from tests.support.processes import PythonProcess
from tests.support.reading import first, numbers, outcomes, run_in_threads
from tests.support.transfers import TRANSFERS
from tests.support.waiting import wait_for

AT_ONCE = 10.0
EACH_TRANSFER = pytest.mark.parametrize("transfer", TRANSFERS)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two workers; whatever a test does to them, they serve afterwards."""
    with Cluster(workers=2) as two:
        yield two
        if two.workers:
            elements = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", two.service))
            assert sorted(numbers(elements)) == list(range(10))


def read(dataset: dsnb.Dataset, service: Any, mode: Any = "distributed_epoch", **options: Any) -> dsnb.Dataset:
    return dataset.apply(dsnb.distribute(mode, service, **options))


@contextmanager
def refused(error: type[DsnbError], *fragments: str, within: float = AT_ONCE) -> Iterator[None]:
    """An error of this class, in time, that says all this and what to try."""
    began = time.monotonic()
    with pytest.raises(error) as caught:
        yield
    assert time.monotonic() - began < within
    assert [fragment for fragment in fragments if fragment not in str(caught.value)] == []
    assert caught.value.hint, "it says what to try"


# ------------------------------------------------------------------------------------------------------ the address


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":5050", "localhost:http", "localhost:0", "a:99999"])
def test_an_address_that_is_none(address: str) -> None:
    with refused(InvalidArgumentError, "is not an address", '"host:port"'):
        read(dsnb.Dataset.range(10), address)
    with refused(InvalidArgumentError, "is not an address"):
        dsnb.WorkerConfig(dispatcher_address=address)


@pytest.mark.slow
def test_an_address_at_which_nobody_answers(free_port: int) -> None:
    nobody = f"127.0.0.1:{free_port}"
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections and says nothing
        silent = f"127.0.0.1:{mute.getsockname()[1]}"
        calls: list[tuple[float, Callable[[], Any]]] = [
            (10.0, lambda: read(dsnb.Dataset.range(10), nobody)),
            (10.0, lambda: read(dsnb.Dataset.range(10), silent)),
            (10.0, lambda: dsnb.from_dataset_id("parallel_epochs", nobody, "1000")),
            (5.0, lambda: dsnb.connect(nobody)),
            (5.0, lambda: dsnb.connect(silent)),
            (10.0, lambda: dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=nobody))),
            (0.5, lambda: dsnb.WorkerServer(dsnb.WorkerConfig(dispatcher_address=silent, dispatcher_timeout_ms=500))),
        ]
        run_in_threads(
            [lambda tried=tried, call=call: told_of_silence(tried, call) for tried, call in calls], timeout=60.0
        )


def told_of_silence(tried: float, call: Callable[[], Any]) -> None:
    with refused(UnavailableError, "answers at 127.0.0.1:", f"tried for {tried:g} seconds", within=tried + 9.0):
        call()


@pytest.fixture
def free_port() -> int:
    return unused_port()


def test_a_name_that_no_service_has() -> None:
    with refused(NotFoundError, "no service 'nobody' runs here"):
        dsnb.connect("nobody")


# --------------------------------------------------------------------------------------------------------- the port


def test_a_taken_port(cluster: Cluster) -> None:
    port = int(cluster.address.rpartition(":")[2])
    with refused(AlreadyExistsError, f"127.0.0.1:{port}", "taken", "nothing was started"):
        dsnb.start(port=port)
    with refused(AlreadyExistsError, f"127.0.0.1:{port}", "taken"):
        dsnb.DispatchServer(dsnb.DispatcherConfig(port=port))
    with refused(AlreadyExistsError, f"127.0.0.1:{port}", "taken"):
        cluster.add_worker(port=port)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with refused(AlreadyExistsError, f"127.0.0.1:{port}", "taken"):
            dsnb.start(port=port)


# -------------------------------------------------------------------------------------------------------- the token


def test_a_wrong_token(cluster: Cluster) -> None:
    with refused(PermissionDeniedError, "the token is wrong", "DSNB_TOKEN"):
        dsnb.connect(cluster.dispatcher.target, token="wrong")
    with refused(PermissionDeniedError, "the token is wrong", "DSNB_TOKEN"):
        cluster.add_worker(token="wrong")
    with refused(PermissionDeniedError, "the token is wrong", "DSNB_TOKEN"):
        read(dsnb.Dataset.range(10), dsnb.DataService("stranger", cluster.dispatcher.target, "wrong"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment, told",
    [({}, "wants a token and none was given"), ({"DSNB_TOKEN": "wrong"}, "the token is wrong")],
    ids=["none", "wrong"],
)
def test_another_process_without_the_token(
    cluster: Cluster, tmp_path: Path, environment: dict[str, str], told: str
) -> None:
    code = f"""
import dsnb
try:
    dsnb.Dataset.range(10).apply(dsnb.distribute("parallel_epochs", {cluster.address!r}))
except dsnb.errors.PermissionDeniedError as error:
    print("REFUSED", error.what)
"""
    with PythonProcess(["-c", code], env={"DSNB_RUNTIME_DIR": str(tmp_path), **environment}) as other:
        assert told in other.wait_for_line("REFUSED")
        assert other.wait_for_exit() == 0


# ------------------------------------------------------------------------------------------------------- the function


def test_a_function_that_cannot_be_pickled(cluster: Cluster) -> None:
    my_lock = threading.Lock()

    def guarded(x: Any) -> Any:
        with my_lock:
            return x

    with refused(InvalidArgumentError, "map(guarded)", "my_lock", "nothing was registered"):
        read(dsnb.Dataset.range(10).map(guarded), cluster.service)


class CameraError(OSError):
    """A class of the user's."""

    def __init__(self, camera: int) -> None:
        super().__init__(f"camera {camera} is gone")
        self.camera = camera

    def __reduce__(self) -> Any:
        return CameraError, (self.camera,)


@pytest.mark.slow
@EACH_TRANSFER
@pytest.mark.parametrize("parallel", [None, 2], ids=["serial", "parallel"])
def test_a_function_that_raises(cluster: Cluster, transfer: str, parallel: int | None) -> None:
    def broken(x: Any) -> Any:
        if x == 3:
            raise CameraError(int(x))
        return x

    dataset = dsnb.Dataset.range(6).map(broken, num_parallel_calls=parallel)
    options: dict[str, Any] = {"job_name": "photos", "data_transfer_protocol": transfer}
    cluster.workers.pop().stop()
    with iter(read(dataset, cluster.service, "parallel_epochs", **options)) as elements:
        assert first(3, elements) == [0, 1, 2]
        with pytest.raises(CameraError, match="camera 3 is gone") as caught:
            next(elements)
        assert numbers(elements) == [4, 5]
    error = caught.value
    assert error.camera == 3
    notes = "\n".join(error.__notes__)
    assert "map(broken)" in notes
    assert "worker w0" in notes
    assert "'photos'" in notes
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "raise CameraError(int(x))" in str(error.__cause__)
    cluster.add_worker()


@pytest.mark.slow
@EACH_TRANSFER
@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit])
def test_an_error_that_would_be_mistaken_for_control_flow(
    cluster: Cluster, transfer: str, kind: type[BaseException]
) -> None:
    def confused(x: Any) -> Any:
        if x == 1:
            raise kind("oh")
        return x

    dataset = read(dsnb.Dataset.range(3).map(confused), cluster.service, data_transfer_protocol=transfer)
    got = outcomes(iter(dataset))
    assert sorted(numbers(value for value in got if not isinstance(value, Exception))) == [0, 2]
    (error,) = (value for value in got if isinstance(value, Exception))
    assert isinstance(error, UserCodeError)
    assert kind.__name__ in str(error)


@pytest.mark.slow
@EACH_TRANSFER
def test_an_error_that_cannot_be_rebuilt(cluster: Cluster, transfer: str) -> None:
    class OddError(Exception):
        def __init__(self, lock: Any) -> None:
            super().__init__("odd")
            self.lock = lock

    def odd(x: Any) -> Any:
        import threading as here

        raise OddError(here.Lock())

    dataset = read(dsnb.Dataset.range(1).map(odd), cluster.service, data_transfer_protocol=transfer)
    with pytest.raises(UserCodeError, match="OddError: odd") as caught:
        list(dataset)
    assert "in odd" in str(caught.value.__cause__)


# -------------------------------------------------------------------------------------------------------- the element


@pytest.mark.slow
@EACH_TRANSFER
@pytest.mark.parametrize(
    "odd", [lambda x: {"y": x}, lambda x: (x, x), lambda x: np.zeros((2, 2)), lambda x: "text", lambda x: object()],
    ids=["another key", "a tuple", "another rank", "text", "no leaf"],
)  # fmt: skip
def test_an_odd_element(cluster: Cluster, transfer: str, odd: Callable[[Any], Any]) -> None:
    cluster.workers.pop().stop()
    dataset = dsnb.Dataset.range(5).map(lambda x: odd(x) if x == 3 else x)
    got = outcomes(iter(read(dataset, cluster.service, data_transfer_protocol=transfer)))
    error = got.pop(3)
    assert numbers(got) == [0, 1, 2, 4]
    assert isinstance(error, InvalidArgumentError)
    assert error.hint
    cluster.add_worker()


# ---------------------------------------------------------------------------------------------------- the arguments


def test_an_unknown_mode(cluster: Cluster) -> None:
    with refused(InvalidArgumentError, "`processing_mode` is 'epochs'", "parallel_epochs", "ShardingPolicy.DYNAMIC"):
        read(dsnb.Dataset.range(10), cluster.service, "epochs")


def test_an_empty_trainer_id() -> None:
    with refused(InvalidArgumentError, "non-empty trainer ID", 'CrossTrainerCache("lr=0.1")'):
        dsnb.CrossTrainerCache("")


# --------------------------------------------------------------------------------------------- what stops in mid-read


@pytest.mark.slow
@EACH_TRANSFER
@pytest.mark.parametrize("limit", [None, 4], ids=["ahead", "four outstanding"])
def test_a_worker_stopped_in_mid_read(cluster: Cluster, transfer: str, limit: int | None) -> None:
    options: dict[str, Any] = {"data_transfer_protocol": transfer, "max_outstanding_requests": limit}
    count = 2000 if limit else 20_000
    dataset = dsnb.Dataset.range(count).map(lambda x: np.full(8192 if limit else 1024, x))  # more than is read ahead
    with iter(read(dataset, cluster.service, job_name="job", **options)) as elements:
        got = values(elements, 50)
        all_at_work(cluster)
        cluster.workers.pop(0).stop()
        got += values(elements)
    assert sorted(got) == list(range(count))
    assert cluster.job("job").lost_splits == 0


def all_at_work(cluster: Cluster) -> None:
    """Wait until each worker has made something that nobody has consumed: then none can go without a loss."""
    cluster.service.wait_until(lambda status: all(task.head for task in status.job("job").tasks))


def until_told(end: Callable[[], object], elements: Iterator[Any], warned: pytest.WarningsRecorder) -> list[int]:
    """Do something that costs data, and read until that is announced: at the latest with the end."""
    end()
    got: list[int] = []
    while not warned.list and (element := next(elements, None)) is not None:
        got.append(int(element[0]))
    return got


def values(elements: Iterator[Any], count: int | None = None) -> list[int]:
    """What the arrays that come next are full of."""
    return [int(element[0]) for element in islice(elements, count)]


@pytest.mark.slow
@EACH_TRANSFER
def test_a_worker_stopped_in_mid_read_of_whole_passes(cluster: Cluster, transfer: str) -> None:
    dataset = read(dsnb.Dataset.range(1000).map(lambda x: np.full(4000, x)), cluster.service, "parallel_epochs",
                   job_name="job", data_transfer_protocol=transfer)  # fmt: skip
    with iter(dataset) as elements:
        got = values(elements, 10)
        told = r"worker w0 was stopped \(job 'job'\): [\d,]+ elements? of its part did not arrive"
        with pytest.warns(DataLossWarning, match=told) as warned:
            got += until_told(cluster.workers.pop(0).stop, elements, warned)
        [lost] = [trainer.lost for trainer in cluster.job("job").trainers]
        got += values(elements)
    assert lost == 2000 - len(got)
    assert set(got) == set(range(1000)), "the other worker's pass is whole"
    assert len(got) < 2000


@pytest.mark.slow
def test_a_worker_process_killed_in_mid_read(tmp_path: Path) -> None:
    with Cluster(workers=0, dispatcher={"reconnect_ms": 500}) as cluster:
        arguments = ["-m", "dsnb", "worker", "--dispatcher", cluster.address]
        environment = {"DSNB_TOKEN": cluster.dispatcher.token}
        with PythonProcess(arguments, env=environment) as doomed, PythonProcess(arguments, env=environment) as other:
            for worker in (doomed, other):
                worker.wait_for_line("worker ready")
            dataset = read(dsnb.Dataset.range(20_000).map(lambda x: np.full(1024, x)), cluster.service, job_name="job")
            with iter(dataset) as elements:
                got = values(elements, 50)
                all_at_work(cluster)
                doomed.popen.send_signal(signal.SIGKILL)
                got += values(elements)
            assert sorted(got) == list(range(20_000))


@pytest.mark.slow
@EACH_TRANSFER
def test_the_last_worker_stopped_and_another_started(cluster: Cluster, transfer: str) -> None:
    cluster.workers.pop().stop()
    dataset = read(dsnb.Dataset.range(10_000).map(lambda x: np.full(4000, x)), cluster.service, job_name="job",
                   data_transfer_protocol=transfer)  # fmt: skip
    with iter(dataset) as elements:
        got = values(elements, 10)
        threading.Timer(0.2, cluster.add_worker).start()
        cluster.workers.pop().stop()
        got += values(elements)
        assert sorted(got) == list(range(10_000))


# ---------------------------------------------------------------------------------------------------------- Ctrl-C

INTERRUPTED = """
import time
import dsnb

def slow(x):
    time.sleep(60)
    return x

service = dsnb.start(workers=2)
options = {{"data_transfer_protocol": {transfer!r}}}
elements = iter(dsnb.Dataset.range(10).map(slow).apply(dsnb.distribute("parallel_epochs", service, **options)))
try:
    print("READING", flush=True)
    next(elements)
except KeyboardInterrupt:
    print("INTERRUPTED", time.monotonic(), flush=True)
del elements
squares = dsnb.Dataset.range(10).map(lambda x: x * x).apply(dsnb.distribute("distributed_epoch", service, **options))
print("SUM", sum(int(x) for x in squares), flush=True)
began = time.monotonic()
service.stop()
print("STOPPED", flush=True)
"""


@pytest.mark.slow
@EACH_TRANSFER
def test_ctrl_c_in_mid_read(transfer: str, tmp_path: Path) -> None:
    code, environment = INTERRUPTED.format(transfer=transfer), {"DSNB_RUNTIME_DIR": str(tmp_path)}
    with PythonProcess(["-c", code], env=environment) as process:
        process.wait_for_line("READING")
        wait_for(lambda: waits(process.pid), what="the main thread to wait")
        sent = time.monotonic()
        process.interrupt()
        assert float(process.wait_for_line("INTERRUPTED").split()[1]) - sent < AT_ONCE
        assert process.wait_for_line("SUM") == "SUM 285"
        process.wait_for_line("STOPPED", timeout=10.0)
        assert process.wait_for_exit(timeout=10.0) == 0
        assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


def waits(pid: int) -> bool:
    """Whether the main thread of a process is asleep."""
    return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

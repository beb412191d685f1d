"""What happens when a cell does what a kernel's threads cannot follow: fork, or hold the interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import pytest

import dsnb
from tests.support.kernel import Kernel, workers_of
from tests.support.reading import numbers

POOL = """
import multiprocessing

def double(x):
    return 2 * x

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(double, range(100)) == [2 * x for x in range(100)]
    assert next(elements) == 1
"""

LOADER = """
class Loader:
    '''In the manner of PyTorch's: forked workers iterate copies of the dataset, and what they raise is raised here.'''

    def __init__(self, dataset, num_workers):
        self.dataset, self.num_workers = dataset, num_workers

    def work(self, queue):
        try:
            for element in self.dataset:
                queue.put(int(element))
            queue.put(None)
        except Exception as error:
            queue.put(error)

    def __iter__(self):
        if not self.num_workers:
            yield from self.dataset
            return
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        workers = [context.Process(target=self.work, args=(queue,)) for _ in range(self.num_workers)]
        for worker in workers:
            worker.start()
        ended = 0
        try:
            while ended < len(workers):
                element = queue.get(timeout=30)
                if isinstance(element, Exception):
                    raise element
                ended += element is None
        finally:
            for worker in workers:
                worker.join(30)
                assert worker.exitcode == 0

import multiprocessing
ten = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", service))
"""

MODULE_WITH_A_POOL = """
import concurrent.futures, multiprocessing
pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
"""

READ_WITH_THE_POOL = """
import module_with_a_pool
service = dsnb.start(workers=1, isolation="thread")

def process_of_the_pool(_):
    import module_with_a_pool
    return module_with_a_pool.pool.submit(os.getpid).result()

numbers = dsnb.Dataset.range(3).map(process_of_the_pool)
(pid,) = {int(pid) for pid in numbers.apply(dsnb.distribute("parallel_epochs", service))}
service.stop()
assert module_with_a_pool.pool.submit(os.getpid).result() == pid
module_with_a_pool.pool.shutdown()
"""

SPAWNED = """
import dsnb

def read(queue):
    numbers = dsnb.Dataset.range(10).apply(dsnb.distribute("distributed_epoch", dsnb.connect()))
    queue.put(sorted(int(x) for x in numbers))
"""

BEGIN = """
numbers = dsnb.Dataset.range(10**9)
elements = iter(numbers.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol="grpc")))
assert next(elements) == 0
"""

HOLD = """
import ctypes, time
print("HOLDING", flush=True)
time.sleep(1)  # until it is shown
ctypes.PyDLL(None).sleep({seconds})  # unlike CDLL, it keeps the interpreter
"""


@pytest.mark.slow
def test_a_cell_forks_a_pool(kernel: Kernel) -> None:
    kernel.run("service = dsnb.start(workers=1)" + BEGIN + POOL)
    kernel.run("assert len(service.status().workers) == 1 and next(elements) == 2\ndel elements, pool")


@pytest.mark.slow
def test_a_function_on_a_thread_worker_uses_a_pool_of_a_module(kernel: Kernel) -> None:
    """The processes are forked at the first use, in the worker's thread, and yet are not the service's."""
    kernel.run(f"open('module_with_a_pool.py', 'w').write({MODULE_WITH_A_POOL!r})")
    kernel.run(READ_WITH_THE_POOL)


@pytest.mark.slow
def test_a_loader_with_forked_workers_reads(kernel: Kernel) -> None:
    kernel.run("service = dsnb.start(workers=1)" + LOADER)
    told = kernel.run(
        "try:\n    list(Loader(ten, num_workers=2))\n"
        "except dsnb.errors.FailedPreconditionError as error:\n    print(error)"
    )
    assert told.startswith("a service cannot be used in this process")
    assert "num_workers=0" in told
    assert kernel.run("print(sorted(int(x) for x in Loader(ten, num_workers=0)))") == f"{list(range(10))}\n"


@pytest.mark.slow
def test_a_spawned_process_reads(kernel: Kernel) -> None:
    """What the advice says."""
    kernel.run(f"open('spawned_by_a_cell.py', 'w').write({SPAWNED!r})\nservice = dsnb.start(workers=1)")
    got = kernel.run(
        "import multiprocessing, spawned_by_a_cell\n"
        "context = multiprocessing.get_context('spawn'); queue = context.Queue()\n"
        "process = context.Process(target=spawned_by_a_cell.read, args=(queue,)); process.start()\n"
        "print(queue.get(timeout=50)); process.join(50)\n"
        "queue.close(); queue.join_thread(); process.close(); del queue, process\n"
        "from multiprocessing import resource_tracker; resource_tracker._resource_tracker._stop()"
    )
    assert got == f"{list(range(10))}\n"


SLOW = """
import dsnb, time
service = dsnb.start(workers=2, isolation={isolation!r})
slow = dsnb.Dataset.range(1000).map(lambda x: time.sleep(0.004) or x, num_parallel_calls=1)
dsnb.register_dataset(service, slow, dataset_id="slow")
print(service.name)
"""


def hold(kernels: dict[str, Kernel], seconds: int) -> None:
    """While they hold their interpreters, somebody else reads; everybody is there afterwards."""
    services = {
        isolation: dsnb.connect(kernel.run(SLOW.format(isolation=isolation)).strip())
        for isolation, kernel in kernels.items()
    }
    workers = {isolation: sorted(workers_of(kernel)) for isolation, kernel in kernels.items()}
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("error")
        reads = [
            stack.enter_context(iter(dsnb.from_dataset_id("distributed_epoch", service, "slow")))
            for service in services.values()
        ]
        got = [numbers(islice(read, 1)) for read in reads]
        cells = [kernel.begin(HOLD.format(seconds=seconds)).wait_for("HOLDING") for kernel in kernels.values()]
        got = [begun + numbers(read) for begun, read in zip(got, reads, strict=True)]
        assert [cell.wait(timeout=seconds + 60).error for cell in cells] == ["", ""]
    assert [sorted(elements) for elements in got] == [list(range(1000))] * 2, "nothing was lost or came twice"
    for isolation, service in services.items():
        snapshot = service.status()
        assert [event.text for event in snapshot.events if event.level == "warning"] == []
        assert [worker.name for worker in snapshot.workers] == ["w0", "w1"]
        assert sorted(workers_of(kernels[isolation])) == workers[isolation]


@pytest.fixture
def kernels(own_kernel: Kernel, tmp_path: Path) -> Iterator[dict[str, Kernel]]:
    with Kernel(tmp_path) as other:
        yield {"thread": own_kernel, "process": other}


@pytest.mark.slow
def test_a_cell_holds_the_interpreter(kernels: dict[str, Kernel]) -> None:
    """For longer than a worker may be silent."""
    seconds = 12
    assert 1000 * seconds > dsnb.DispatcherConfig().worker_timeout_ms
    hold(kernels, seconds)


@pytest.mark.soak
def test_a_cell_holds_the_interpreter_for_half_a_minute(kernels: dict[str, Kernel]) -> None:
    hold(kernels, 30)

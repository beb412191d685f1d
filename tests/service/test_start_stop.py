"""A service is started, read and stopped many times in one process, and nothing of it stays."""

from __future__ import annotations

import ctypes
import gc
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.support.processes import PythonProcess
from tests.support.transfers import TRANSFERS
from tests.support.waiting import wait_for

WARM_UP = 10
"""Rounds in which pools, caches and imports take the memory that they keep."""

ALLOWED_BYTES = 32 << 20
"""How much the process may grow in all rounds after those; what it needs goes up and down by 10 MB. A round handles
some 20 MB of elements, so a frame or a window that stays from each is far more."""

ALLOWED_OBJECTS = 5000
"""How many objects may be there in addition, of some 60,000; their number goes up and down by 1,500."""


def footprint() -> tuple[int, int]:
    """The memory of this process that is in use, and the number of its objects."""
    gc.collect()
    # Each thread's arena keeps what was freed, some tens of MB that come and go; glibc gives it back when asked.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(gc.get_objects())


def one_round(transfer: str | None) -> None:
    """What a morning's work in a notebook does, in short."""
    options: dict[str, Any] = {"data_transfer_protocol": transfer}
    ballast = np.ones(1 << 18)
    with dsnb.start(workers=2) as service:
        images = dsnb.Dataset.range(16).map(lambda x: np.full((256, 256), x) + ballast[0])
        whole = images.apply(dsnb.distribute("distributed_epoch", service, **options))
        assert sorted(int(image[0, 0]) for image in whole) == list(range(1, 17))

        endless = images.shuffle(16).batch(2).repeat()
        for trainer in ("one", "another"):
            cache = dsnb.CrossTrainerCache(trainer)
            shared = endless.apply(
                dsnb.distribute("parallel_epochs", service, job_name="job", cross_trainer_cache=cache, **options)
            )
            assert len(list(islice(shared, 8))) == 8  # and the iterator is dropped in the middle
        # A dropped iterator is closed by a thread, and tells only then what was read.
        wait_for(lambda: service.status().job("job").trainer("one").elements, what="the trainer's elements to count")


def check_growth(rounds: int) -> None:
    """Do that many rounds, and see by how much the process has grown."""
    for number in range(WARM_UP):
        one_round(TRANSFERS[number % len(TRANSFERS)])
    resident, objects = footprint()
    for number in range(rounds):
        one_round([*TRANSFERS, None][number % (1 + len(TRANSFERS))])
    resident_after, objects_after = footprint()
    assert resident_after - resident < ALLOWED_BYTES
    assert objects_after - objects < ALLOWED_OBJECTS


def growth_in_a_process_of_its_own(rounds: int, timeout: float) -> None:
    """`check_growth` where no test before has left holes in the memory, which cannot be told from a leak."""
    code = f"from tests.service.test_start_stop import check_growth; check_growth({rounds}); print('FLAT')"
    with PythonProcess(["-c", code]) as process:
        process.wait_for_line("FLAT", timeout=timeout)


@pytest.mark.soak
def test_fifty_services_one_after_the_other_leave_no_thread_socket_or_file() -> None:
    for number in range(50):  # what is left would be found by the leak check of every test
        one_round([*TRANSFERS, None][number % (1 + len(TRANSFERS))])


@pytest.mark.slow
def test_fifty_services_one_after_the_other_leave_no_memory() -> None:
    growth_in_a_process_of_its_own(50 - WARM_UP, timeout=100)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_three_hundred_services_one_after_the_other_leave_nothing() -> None:
    growth_in_a_process_of_its_own(300, timeout=500)


def test_a_service_that_is_dropped_in_mid_read_ends_with_its_with_block() -> None:
    with dsnb.start(workers=2) as service:
        elements = iter(dsnb.Dataset.range(1_000_000_000).apply(dsnb.distribute("parallel_epochs", service)))
        assert len(list(islice(elements, 10))) == 10
    elements.close()


def test_stopping_twice_and_starting_again() -> None:
    for _ in range(2):
        service = dsnb.start(workers=1)
        service.stop()
        service.stop()
        with pytest.raises(dsnb.errors.FailedPreconditionError, match="was stopped"):
            service.status()

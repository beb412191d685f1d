"""`svc.explain()` tells time spent on tensors from time spent in the training loop."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import CancelledError
from tests.support.requires import require_peer
from tests.support.waiting import wait_for

torch = require_peer("torch")

WATCH_S = 1.5


@pytest.mark.slow
def test_a_reader_that_spends_its_time_on_tensors_is_not_reported_as_a_busy_loop() -> None:
    """Large numbers in the other byte order: each element is converted number by number, and then copied."""
    data = dsnb.Dataset.from_tensors(np.zeros(3 << 20, ">f8")).repeat()
    stop = threading.Event()
    with dsnb.start(workers=1, name="swapped", isolation="process") as service:
        distributed = data.apply(dsnb.distribute("parallel_epochs", service, job_name="train"))
        elements = distributed.iter_torch(writable=True)

        def read() -> None:
            with suppress(CancelledError, StopIteration):
                while not stop.is_set():
                    began = time.monotonic()
                    next(elements)
                    # The training step, in which the worker produces: as long as the read, on a machine of any speed.
                    time.sleep(time.monotonic() - began)

        thread = threading.Thread(target=read, name="test-reader", daemon=True)
        thread.start()

        def named() -> Any:
            # There is no verdict until the job has been read for some time.
            return next((verdict for verdict in service.explain(WATCH_S) if verdict.cause == "conversion"), None)

        try:
            verdict = wait_for(named, what="the conversion to be named", timeout=60)
        finally:
            stop.set()
            elements.close()
            thread.join(30)
        assert re.search(r"spends \d+ % of its time waiting until elements are tensors", verdict.text)
        assert verdict.remedy.startswith("Send fewer bytes (uint8 instead of float32")
        job = service.status().job("train")
        assert job is not None
        assert job.trainers[0].convert_ns > 0

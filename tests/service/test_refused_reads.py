"""Reads that end before they begin leave nothing open."""

from __future__ import annotations

import pytest

import dsnb
from dsnb.errors import DsnbWarning
from tests.support.waiting import wait_for


def test_a_pass_that_is_refused_by_a_warning_turned_error_gives_its_place_back() -> None:
    with dsnb.start(workers=1) as svc:

        def reader() -> dsnb.Dataset:
            return dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", svc, job_name="once"))

        assert len(list(reader())) == 3
        with pytest.raises(DsnbWarning, match="pass 1 of job 'once' has already been read to its end"):
            iter(reader()).start()  # the tests run with warnings as errors
        wait_for(lambda: svc.status().job("once").clients == 0, what="the refused reader to have left")

"""Kernels for the situations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_core.utils import ensure_event_loop

from tests.support.kernel import Kernel
from tests.support.requires import require_module


def pytest_configure(config: pytest.Config) -> None:
    # As for nbval's kernels, see notebooks/conftest.py: jupyter_core keeps one event loop for good.
    config.add_cleanup(ensure_event_loop().close)


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("notebook")) as kernel:
        # The first use of gRPC makes what lives as long as the process.
        kernel.run("import dsnb, os, sys, threading, time, warnings\nwith dsnb.start(workers=1) as service: pass")
        yield kernel


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Iterator[Kernel]:
    """A kernel that has run cells before, as kernels have; a situation leaves nothing in it."""
    shared_kernel.take_census()
    yield shared_kernel
    shared_kernel.run("if 'service' in globals(): service.stop()")
    assert shared_kernel.leftovers() == {}
    assert shared_kernel.log_text() == ""


@pytest.fixture
def own_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel that a situation may end."""
    require_module("panel")  # a dashboard is among what it ends with
    with Kernel(tmp_path_factory.mktemp("notebook")) as kernel:
        yield kernel

"""What holds for every test: a place of its own for files, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.support.leaks import KINDS, assert_no_leaks
from tests.support.transfers import FORCED_TRANSFER, force_transfer

# On a shared machine an example may take long for no fault of its own; pytest's timeout guards against hanging.
# Each run draws other examples, so fewer in each run find as much in time.
settings.register_profile("dsnb", parent=settings(), deadline=None, max_examples=50)
settings.load_profile("dsnb")

# A shell that runs tests in the background has them ignore Ctrl-C, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FAILED = pytest.StashKey[bool]()


def pytest_collection_finish() -> None:
    # What is there now stays to the end. If each collection searched it, tests of services would take a fifth longer.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary folders and connection files of this run, away from those of services that a person runs."""
    with pytest.MonkeyPatch.context() as patch:
        places = tmp_path_factory.mktemp("run")
        for variable, name in (("TMPDIR", "tmp"), ("DSNB_RUNTIME_DIR", "runtime")):
            (places / name).mkdir(mode=0o700)
            patch.setenv(variable, str(places / name))
        patch.setattr(tempfile, "tempdir", os.environ["TMPDIR"])
        patch.delenv("DSNB_TOKEN", raising=False)
        force_transfer(patch)
        yield


@pytest.fixture
def patient_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status of a dispatcher of this process waits for all reports, however busy the machine is."""
    for limit in ("_CONNECT_TIMEOUT_S", "_REPORT_TIMEOUT_S"):
        monkeypatch.setattr(f"dsnb.dispatcher.service.{limit}", 10.0)


@pytest.fixture(scope="session", autouse=True)
def session_leaves_nothing(own_places: None) -> Iterator[None]:
    with assert_no_leaks("a fixture of this session"):
        yield


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing(session_leaves_nothing: None) -> Iterator[None]:
    with assert_no_leaks("a fixture of this module"):
        yield


@pytest.fixture(autouse=True)
def leaves_nothing(module_leaves_nothing: None, request: pytest.FixtureRequest) -> Iterator[None]:
    # A worker makes its slabs for its first reader, and may be the module's where that reader is a test's.
    later = ["slabs"] if FORCED_TRANSFER == "shared_memory" else []
    spared = _spared(request.node)
    with assert_no_leaks("this test", spared, ignored_if=lambda: request.node.stash.get(FAILED, False), later=later):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        # The traceback keeps the test's objects alive, so what they hold is no leak of the code's.
        item.stash[FAILED] = True
    return report


def _spared(item: pytest.Item) -> list[str]:
    kinds = []
    for marker in item.iter_markers("may_leave"):
        kind, reason = marker.args[0], marker.kwargs["reason"]
        assert kind in KINDS, f"may_leave knows {sorted(KINDS)}, not {kind!r}"
        assert reason
        kinds.append(kind)
    return kinds

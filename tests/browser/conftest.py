"""A real browser on a real service: Debian's Chromium, driven by Playwright.

Where either is missing the tests are skipped with that reason, or fail under `DSNB_REQUIRE_ALL=1`. Screenshots are kept
in the folder that `DSNB_ARTEFACTS` names, else in `build/screenshots` of the checkout.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

import dsnb
from tests.support.processes import ROOT
from tests.support.requires import require, require_module
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

_ARGUMENTS = [
    "--no-sandbox",  # Chromium refuses to run as root with one, and it shows nothing here but our own page
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # another host's name for this machine, as a tunnel gives it
]
_OF_THE_MACHINE = ("http://127.0.0.1:", "http://localhost:", "ws://127.0.0.1:", "data:", "blob:", "http://hub.example:")
OnLag = Literal["skip", "wait", "spill"]
_WIDE: Any = {"width": 1440, "height": 1000}


class Tab:
    """One open page, with what it asked for and complained of since it was opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._asked)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, url: str) -> Tab:
        """Go to a dashboard and wait until its panels are drawn."""
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", timeout=30_000)
        return self

    def values(self, wanted: Mapping[str, tuple[str, str]]) -> dict[str, float]:
        """The exact numbers of fields (where, field), all of one moment; -1 for one that is not there.

        Example:
            >>> tab.values({"read": ('[data-trainer="a"]', "elements")})
        """
        read = self.page.evaluate(
            """wanted => Object.fromEntries(Object.entries(wanted).map(([name, [where, field]]) =>
              [name, Number(document.querySelector(`${where} [data-field='${field}']`)?.dataset.value ?? "-1")]))""",
            {name: list(place) for name, place in wanted.items()},
        )
        return {str(name): float(number) for name, number in read.items()}

    def text(self, selector: str) -> str:
        """What a person reads there; nothing while it is not there."""
        return str(self.page.evaluate("s => document.querySelector(s)?.innerText ?? ''", selector))

    def state(self) -> str:
        """What the badge says: live, stale or waiting."""
        return str(self.page.evaluate("() => document.querySelector('.badge')?.dataset.state ?? ''"))

    def wait(self, script: str, timeout: float = 20.0) -> None:
        """Wait until an expression is true in the page."""
        self.page.wait_for_function(script, timeout=1000 * timeout)

    def strangers(self) -> list[str]:
        """Requests that left the machine."""
        return [url for url in self.requests if not url.startswith(_OF_THE_MACHINE)]

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[BrowserContext]:
    path = require("chromium")
    require_module("panel")
    require_module("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=path, args=_ARGUMENTS, viewport=_WIDE
        )
        yield context
        context.close()


@pytest.fixture
def tab(chromium: BrowserContext) -> Iterator[Tab]:
    """The browser's first tab; whatever a test does with it, nothing may have been asked of another machine."""
    tab = Tab(chromium.pages[0])
    yield tab
    assert tab.strangers() == []


@pytest.fixture
def artefacts() -> Path:
    folder = Path(os.environ.get("DSNB_ARTEFACTS") or ROOT / "build" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Training:
    """Trainers that read one shared job, each at its own pace, until told to stop."""

    def __init__(self, service: dsnb.DataService) -> None:
        self._service = service
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failure: BaseException | None = None

    def begin(
        self,
        trainer_id: str,
        *,
        pause: float,
        job: str = "train",
        mode: str = "parallel_epochs",
        on_lag: OnLag = "skip",
        fails: bool = False,
    ) -> None:
        """Read like a training loop whose step takes `pause` seconds; one that `fails` keeps its error."""
        numbers = dsnb.Dataset.range(10_000).map(_square).batch(10).repeat()
        cache = dsnb.CrossTrainerCache(trainer_id, on_lag=on_lag)
        shared = dsnb.distribute(mode, self._service, job_name=job, cross_trainer_cache=cache)
        read = self._read_until_it_fails if fails else self._read
        thread = threading.Thread(target=read, args=(numbers.apply(shared), pause), name=f"trainer {trainer_id}")
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Stop reading, and wait until all have."""
        self._end.set()
        for thread in self._threads:
            thread.join(20)

    def _read(self, batches: dsnb.Dataset, pause: float) -> None:
        with iter(batches).start() as elements:
            while not self._end.wait(pause):
                with suppress(dsnb.DataLossWarning):  # an error here, and a slow one reads on behind it
                    next(elements)

    def _read_until_it_fails(self, batches: dsnb.Dataset, pause: float) -> None:
        try:
            self._read(batches, pause)
        except dsnb.errors.DsnbError as error:
            self.failure = error


def _square(number: Any) -> Any:
    return number * number


@pytest.fixture
def service() -> Iterator[dsnb.DataService]:
    with dsnb.start(workers=2, name="browser", cross_trainer_cache_size_bytes=20_000) as service:
        yield service


@pytest.fixture
def training(service: dsnb.DataService) -> Iterator[Training]:
    training = Training(service)
    yield training
    training.end()


def read_some(service: dsnb.DataService, trainer_id: str, elements: int, job: str = "train") -> None:
    """Wait until a trainer has consumed that many."""

    def enough() -> bool:
        found = service.status().job(job)
        trainer = found.trainer(trainer_id) if found else None
        return trainer is not None and trainer.elements >= elements

    wait_for(enough, what=f"trainer {trainer_id} to consume {elements} elements", timeout=30)

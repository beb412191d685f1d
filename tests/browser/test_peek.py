"""The button "peek" shows real images as they pass through a service, and "close" takes them away."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.demo import digits
from tests.browser.conftest import Tab
from tests.support.requires import require_module

_IMAGES = "document.querySelectorAll('.peek img')"


def read_digit(path: str) -> dict[str, Any]:
    from PIL import Image

    with Image.open(io.BytesIO(Path(path).read_bytes())) as image:
        pixels = np.asarray(image)
    large = np.kron(pixels, np.ones((8, 8), np.uint8))
    return {
        "digit": pixels,
        "tinted": np.stack([large, large // 2, 255 - large], axis=2),
        "normal": (pixels / 90.0 - 0.8).astype(np.float32),
        "label": int(Path(path).parent.name),
        "path": path[-40:],
    }


@pytest.fixture
def reading(service: dsnb.DataService, tmp_path: Path) -> Iterator[threading.Event]:
    """A job that reads the demo's digits until the event is set."""
    require_module("PIL")
    folder = digits.unpack(tmp_path / "digits")
    images = dsnb.Dataset.list_files(digits.pattern(folder, "train")).map(read_digit).repeat()
    over = threading.Event()

    def train() -> None:
        with iter(images.apply(dsnb.distribute("parallel_epochs", service, job_name="digits"))).start() as elements:
            while not over.wait(0.02):
                next(elements)

    thread = threading.Thread(target=train, name="trainer of digits")
    thread.start()
    yield over
    over.set()
    thread.join(20)


@pytest.mark.slow
def test_images_are_seen_as_they_pass_until_the_peek_is_closed(
    tab: Tab, service: dsnb.DataService, reading: threading.Event, artefacts: Path
) -> None:
    from dsnb.dashboard.server import start_in_thread
    from dsnb.dashboard.source import address_lookup, snapshot_stream

    source = snapshot_stream(service.name)
    server = start_in_thread(source, look_up_address=address_lookup(service.name))
    tab.page.set_viewport_size({"width": 1400, "height": 1000})
    tab.open(server.url)
    tab.wait("document.querySelector('button[data-do=peek]')")
    assert tab.page.query_selector(".peek") is None
    tab.page.click("tr[data-job=digits] button[data-do=peek]")
    tab.wait(f"{_IMAGES}.length === 12 && [...{_IMAGES}].every(one => one.complete && one.naturalWidth > 0)")
    assert tab.text(".peek h2") == "Elements of digits"
    rows = tab.page.eval_on_selector_all(".peek tbody:first-of-type tr", "rows => rows.map(one => one.innerText)")
    assert any("tinted" in row and "(64, 64, 3)" in row and "uint8" in row for row in rows)
    for theme in ("light", "dark"):
        tab.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        tab.page.screenshot(path=artefacts / f"peek-{theme}.png", full_page=True)
        tab.page.locator("#jobs").screenshot(path=artefacts / f"peek-panel-{theme}.png")
    first = tab.text(".peek h3")
    tab.page.click(".peek button[data-do=peek]")
    tab.wait(f"document.querySelector('.peek h3').innerText !== {first!r}")
    tab.page.click("button[data-pick=close-peek]")
    tab.wait("!document.querySelector('.peek')")
    assert tab.page.query_selector(".notice") is None
    assert not reading.is_set()
    server.stop()

    looking = start_in_thread(source, look_up_address=address_lookup(service.name), read_only=True)
    tab.open(looking.url)
    tab.wait("document.querySelector('tr[data-job=digits]')")
    assert tab.page.query_selector("button[data-do]") is None
    looking.stop()
    assert tab.complaints == []

"""Takes the pictures of the dashboard in docs/images: the demo's page, and the cache strip while a trainer falls.

    python tools/pictures.py [demo] [strip]

It needs the extras `notebook` and `test`, and Chromium. What it shows is real: `dsnb demo`, and a service with three
trainers of different pace, of which one falls off the window and one has what it misses kept on disk.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import dsnb  # noqa: E402 - from this checkout, whatever is installed

IMAGES = ROOT / "docs" / "images"
DEMO_S = 18.0
FRAMES, FRAME_INTERVAL_S, FRAME_MS = 56, 0.3, 110
COLOURS = 128
WINDOW_BYTES, ELEMENT_SIZE = 3_000_000, 2000
"""A window of 375 elements: it fills before the eyes."""

TRAINERS: Mapping[str, tuple[float, str]] = {
    "lr=0.1": (0.022, "skip"),
    "lr=0.03": (0.1, "skip"),
    "lr=0.01": (0.14, "spill"),
}
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


@contextmanager
def browser(width: int, height: int, scale: float) -> Iterator[Page]:
    """A page of a browser that has never been used."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        context = playwright.chromium.launch_persistent_context(
            folder,
            executable_path=path,
            args=BROWSER_ARGUMENTS,
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
            color_scheme="light",
        )
        yield context.pages[0]
        context.close()


def open_dashboard(page: Page, url: str) -> None:
    """Go to a dashboard, and wait until its panels are drawn."""
    page.goto(url)
    page.wait_for_selector("html[data-ready]", timeout=60_000)


def capture_demo() -> None:
    """The page of `dsnb demo`, some seconds after its beginning."""
    command = [sys.executable, "-u", "-m", "dsnb", "demo", "--no-open", "--seconds", "120"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        url = process.stdout.readline().rpartition(" ")[2].strip()
        with browser(1440, 1000, 1.0) as page:
            open_dashboard(page, url)
            page.wait_for_timeout(1000 * DEMO_S)
            page.screenshot(path=IMAGES / "dashboard.png", full_page=True)
        process.terminate()


def capture_strip() -> None:
    """The strip as an animation: a slow trainer falls behind, and off."""
    with dsnb.start(workers=1, name="pictures", cross_trainer_cache_size_bytes=WINDOW_BYTES) as service:
        end = threading.Event()
        threads = [
            threading.Thread(target=train, args=(service, name, pace, on_lag, end))
            for name, (pace, on_lag) in TRAINERS.items()
        ]
        with browser(1000, 700, 1.0) as page:
            open_dashboard(page, service.dashboard_url())
            for thread in threads:
                thread.start()
            page.wait_for_selector(f".lane:nth-child({len(TRAINERS)})", timeout=60_000)
            frames = [screenshot(page) for _ in range(FRAMES)]
        end.set()
        for thread in threads:
            thread.join()
    save_gif(frames, IMAGES / "strip.gif")


def train(service: dsnb.DataService, trainer_id: str, step_s: float, on_lag: str, stop: threading.Event) -> None:
    """Read like a training loop whose step takes so long."""
    cache = dsnb.CrossTrainerCache(trainer_id, on_lag=on_lag)  # type: ignore[arg-type]
    shared = dsnb.distribute("parallel_epochs", service, job_name="search", cross_trainer_cache=cache)
    for _ in dsnb.Dataset.range(10_000).map(element).repeat().apply(shared):
        if stop.wait(step_s):
            return


def element(number: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Something that has a weight in the window."""
    return np.full(ELEMENT_SIZE, number, np.float32)


def screenshot(page: Page) -> Image.Image:
    """The strip as it is now, a while after the last time."""
    page.wait_for_timeout(1000 * FRAME_INTERVAL_S)
    return Image.open(io.BytesIO(page.locator("#strip").screenshot())).convert("RGB")


def save_gif(frames: list[Image.Image], path: Path) -> None:
    """All frames in one size and with one palette of all, which keeps what does not move the same in each."""
    width, height = frames[-1].size
    sampled = frames[:: len(frames) // 6]
    together = Image.new("RGB", (width, height * len(sampled)), "white")
    for at, frame in enumerate(sampled):
        together.paste(frame, (0, at * height))
    # By coverage, or the marks, which are small, would take the colours of what is large.
    palette = together.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE)
    framed = [Image.new("RGB", (width, height), "white") for _ in frames]
    for canvas, frame in zip(framed, frames, strict=True):
        canvas.paste(frame, (0, 0))
    first, *rest = (canvas.quantize(palette=palette, dither=Image.Dither.NONE) for canvas in framed)
    durations = [FRAME_MS] * (len(frames) - 1) + [2500]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.2f} MB, {len(frames)} frames")


PICTURES: Mapping[str, Callable[[], None]] = {"demo": capture_demo, "strip": capture_strip}


def main() -> int:
    """Make the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", nargs="*", choices=[[], *PICTURES], default=[])
    for name in parser.parse_args().picture or PICTURES:
        began = time.monotonic()
        PICTURES[name]()
        print(f"{name} made in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A notebook in the page of JupyterLab or Notebook 7, whose outputs have the same marks: cells, card and dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.conftest import Tab
from tests.support.jupyter import BASE
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Frame

TRAIN = """
import os, threading, time
import dsnb
svc = dsnb.start(workers=1, name="lab")
cache = dsnb.CrossTrainerCache("a")
shared = dsnb.distribute("parallel_epochs", svc, job_name="train", cross_trainer_cache=cache)
end = threading.Event()
def train():
    for _ in dsnb.Dataset.range(1000).batch(10).repeat().apply(shared):
        if end.wait(0.02):
            return
trainer = threading.Thread(target=train)
trainer.start()
svc
"""
SHOW_DASHBOARD = "svc.dashboard(height=420)"
BUSY = """
open("busy", "w").close()
until = time.monotonic() + 60
while not os.path.exists("enough") and time.monotonic() < until:
    sum(range(1000))
print("the cell is over")
"""
IDLE = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
STOP = """
end.set(); trainer.join(); svc.stop(); print("all is over")
"""


def check_busy_cell(tab: Tab, folder: Path, pictures: Path, name: str) -> None:
    """Run TRAIN, SHOW_DASHBOARD, BUSY and STOP in a page whose first cell is chosen; look at what moves meanwhile.

    Args:
        tab: The page.
        folder: Where the kernel runs.
        pictures: Where the screenshots are kept.
        name: What they are called.
    """
    run(tab)
    run(tab)
    dashboard = frame(tab)
    dashboard.wait_for_selector("tr[data-trainer='a']", timeout=60_000)
    assert f"{BASE}proxy/" in dashboard.url
    run(tab)
    wait_for((folder / "busy").exists, what="the cell to be busy")
    first, on_card = read(dashboard), card(tab)
    wait_for(lambda: read(dashboard) > first + 20, what="the dashboard to move while the cell runs", timeout=30)
    wait_for(lambda: card(tab) != on_card, what="the card to move while the cell runs", timeout=30)
    assert "the cell is over" not in text(tab), "the cell ended before the looks at it"
    tab.page.screenshot(path=pictures / f"{name}.png")
    tab.page.locator(".jp-OutputArea .widget-vbox").first.scroll_into_view_if_needed()
    tab.page.screenshot(path=pictures / f"{name}-card.png")
    (folder / "enough").touch()
    run(tab)
    wait_for(lambda: "all is over" in text(tab), what="the notebook to end", timeout=30)
    wait_for(lambda: "stopped" in card(tab), what="the card to say so", timeout=30)


def run(tab: Tab) -> None:
    """Run the cell that is chosen, and choose the next."""
    tab.page.keyboard.press("Shift+Enter")


def run_cell(tab: Tab, number: int) -> None:
    """Choose a cell and run it once the kernel is idle.

    A kernel shows an error before it has ended the cell, and drops all cells that it is sent in between. And Jupyter
    may still be choosing another cell, after one that ended.
    """
    tab.page.wait_for_selector(IDLE, timeout=60_000, state="attached")
    chosen = f"document.querySelectorAll('.jp-Cell')[{number}].matches('.jp-mod-active:has(.cm-focused)')"

    def choose() -> bool:
        tab.page.click(f".jp-Cell >> nth={number} >> .cm-content")
        return bool(tab.page.evaluate(chosen))

    wait_for(choose, what=f"cell {number} to be chosen", timeout=60, every=0.5)
    run(tab)


def frame(tab: Tab) -> Frame:
    handle = tab.page.wait_for_selector("iframe[src*='proxy/']", timeout=60_000)
    assert handle is not None
    found = handle.content_frame()
    assert found is not None
    return found


def read(dashboard: Frame) -> float:
    """Elements that the trainer has consumed, as the dashboard shows them."""
    script = "document.querySelector(\"tr[data-trainer='a'] [data-field='elements']\")?.dataset.value ?? '-1'"
    return float(dashboard.evaluate(script))


def card(tab: Tab) -> str:
    """What the card under the first cell shows."""
    return str(tab.page.evaluate("document.querySelector('.jp-OutputArea .widget-vbox')?.innerText ?? ''"))


def text(tab: Tab) -> str:
    """What stands in the notebook's outputs."""
    outputs = "[...document.querySelectorAll('.jp-OutputArea-output')].map(one => one.innerText).join('\\n')"
    return str(tab.page.evaluate(outputs))

"""The page about a run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.monitor.html_report import render_html_report
from dsnb.monitor.snapshot import Snapshot
from tests.support.cluster import Cluster
from tests.support.reading import first
from tests.support.waiting import wait_for


def slow(x: Any) -> Any:
    time.sleep(0.01)
    return x


@pytest.mark.slow
def test_a_page_tells_of_the_whole_run_and_asks_nothing_of_a_network(tmp_path: Path) -> None:
    with Cluster(workers=2) as cluster:
        data = dsnb.Dataset.range(5000).map(slow)
        read = dsnb.distribute("distributed_epoch", cluster.service, job_name="<train>")
        with iter(data.apply(read)) as elements, cluster.service.record(tmp_path / "run.db", every=0.2):
            began = time.monotonic()
            wait_for(lambda: first(5, elements) and time.monotonic() - began > 3.0, what="three seconds of it")
            path = cluster.service.report(tmp_path / "run.html")
    text = Path(path).read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|<link|url\(|@import", text)
    assert "&lt;train&gt;" in text
    assert "<train>" not in text
    assert re.search(r"is input-bound: the client in process \d+ waits \d+ % of its time", text)
    assert text.count("<polyline") == 2
    assert text.count("<rect") >= 2
    assert "worker w0 joined" in text


@pytest.mark.slow
def test_a_page_without_a_recording_tells_of_the_next_seconds(tmp_path: Path) -> None:
    with dsnb.start(workers=1, name="reported") as service:
        assert service.report(tmp_path / "run.html") == str(tmp_path / "run.html")
        assert "reported" in (tmp_path / "run.html").read_text(encoding="utf-8")
        with pytest.raises(FailedPreconditionError, match="cannot be written"):
            service.report(tmp_path / "none" / "run.html")


@pytest.mark.parametrize("write", ["report", "record"])
@pytest.mark.parametrize("path", [3, 0, True, np.int64(1), b"run.html"], ids=repr)
def test_a_descriptor_is_no_place_for_a_report_or_a_recording(write: str, path: Any) -> None:
    """As `open` takes numbers for descriptors, a report was written into whatever this process had there."""
    with dsnb.start(workers=0, name="reported") as service, pytest.raises(InvalidArgumentError, match=r"`path` is "):
        getattr(service, write)(path)


@pytest.mark.slow
def test_words_are_no_part_of_the_pictures_which_are_stretched_to_any_width() -> None:
    with dsnb.start(workers=1, name="wide") as service:
        data = dsnb.Dataset.range(500).map(slow).apply(dsnb.distribute("distributed_epoch", service))
        with iter(data) as elements:
            first(5, elements)
            text = render_html_report([service.status(), *(service.wait_until(grown(at)) for at in (10, 20))], ())
    assert 'class="ends"' in text
    assert "<text" not in text
    pictures = re.findall(r"<svg[^>]*>", text)
    assert len(pictures) >= 2
    assert all('preserveAspectRatio="none"' in picture for picture in pictures)


def grown(at: int) -> Callable[[Snapshot], bool]:
    """Whether so many elements were made."""
    return lambda now: now.jobs[0].produced >= at

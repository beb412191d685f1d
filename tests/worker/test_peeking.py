"""A peek shows the newest elements of a task, in bounded words and pictures, and no reader notices."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.elements.failure import Failure
from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import NotFoundError
from dsnb.monitor.peek import PeekedJob, peek
from dsnb.wire.channel import open_channel
from dsnb.wire.codec import encode
from dsnb.wire.messages import ElementPreview, PeekReply, PeekRequest
from dsnb.wire.methods import PEEK
from dsnb.worker.peeking import MOST_BYTES, MOST_ELEMENTS
from dsnb.worker.peeking import peek as peek_at_task
from dsnb.worker.round_log import RoundLog
from dsnb.worker.shared_log import SharedLog
from tests.support.cluster import Cluster
from tests.support.requires import require_module
from tests.support.waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def look(cluster: Cluster, job: str = "train") -> PeekedJob:
    return peek(cluster.dispatcher.target, cluster.dispatcher.token, job)


class Held:
    """A task that holds these frames, the oldest first."""

    def __init__(self, *frames: Frame) -> None:
        self._log = SharedLog(capacity=1 << 40, read_ahead_bytes=1 << 20, keep=True)
        for frame in frames:
            self._log.append(frame, frame.count, frame.nbytes)

    def newest_frames(self, most: int, _wait_s: float) -> Any:
        return self._log.newest_frames(most)


def shown(*elements: Any) -> tuple[ElementPreview, ...]:
    [frame] = frames_of(list(elements), None)
    assert isinstance(frame, Frame)
    return previews(frame)


def previews(*frames: Frame) -> tuple[ElementPreview, ...]:
    held: Any = Held(*frames)
    return peek_at_task(held).elements


def test_the_newest_elements_are_shown_and_readers_get_all(cluster: Cluster) -> None:
    data = dsnb.Dataset.range(20).map(lambda n: {"image": np.full((16, 24, 3), n, np.uint8), "label": n})
    elements = iter(data.apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="train")))
    labels = [int(next(elements)["label"])]
    wait_for(lambda: cluster.job("train").tasks[0].head == 20, what="all elements to be produced")
    found = look(cluster)
    assert (found.job, found.worker) == ("train", "w0")
    assert [element.index for element in found.elements] == [19, 18, 17, 16]
    image, label = found.elements[0].leaves
    assert (image.path, image.shape, image.dtype, image.values) == ("image", "(16, 24, 3)", "uint8", "19 to 19")
    assert (label.path, label.values) == ("label", "19")
    labels += [int(element["label"]) for element in elements]
    assert labels == list(range(20))


def test_a_thumbnail_has_the_pixels_of_the_element() -> None:
    require_module("PIL")
    from PIL import Image

    image = np.zeros((16, 24, 3), np.uint8)
    image[:, 12:] = (255, 0, 10)
    [leaf] = shown(image)[0].leaves
    assert leaf.path == ""
    drawn = np.asarray(Image.open(BytesIO(leaf.thumbnail)))
    assert (drawn == image).all()


def test_no_counter_of_a_task_changes(cluster: Cluster) -> None:
    cache = dsnb.CrossTrainerCache("a", on_lag="wait")
    shared = dsnb.distribute("parallel_epochs", cluster.service, job_name="train", cross_trainer_cache=cache)
    elements = iter(dsnb.Dataset.range(50).apply(shared))
    first = [int(element) for element in islice(elements, 3)]
    wait_for(lambda: cluster.job("train").tasks[0].state == "ended", what="all elements to be produced")
    wait_for(lambda: cluster.job("train").tasks == cluster.job("train").tasks, what="reports that agree")
    before = cluster.job("train").tasks
    assert before[0].head == 50
    for _ in range(3):
        assert [element.leaves[0].values for element in look(cluster).elements] == ["49", "48", "47", "46"]
    assert cluster.job("train").tasks == before
    assert first + [int(element) for element in elements] == list(range(50))


def test_a_task_whose_elements_are_all_consumed_shows_none(cluster: Cluster) -> None:
    elements = iter(dsnb.Dataset.range(3).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="train")))
    assert [int(next(elements)) for _ in range(3)] == [0, 1, 2]
    wait_for(lambda: not look(cluster).elements, what="the worker to hear that all were consumed")
    del elements


def test_an_error_in_an_elements_place_is_told_in_words() -> None:
    frame = Frame.of_failure(Failure("ValueError", "label 12 is unknown\nand more", "Traceback ..."))
    [element] = previews(frame)
    assert element.error == "an error is in its place: ValueError: label 12 is unknown"
    assert not element.leaves


def test_a_value_that_cannot_be_shown_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("PIL")
    from PIL import Image

    def fails(_pixels: Any) -> Any:
        raise OSError("no encoder")

    monkeypatch.setattr(Image, "fromarray", fails)
    newest, older = shown(np.zeros(9), np.zeros(9)), shown(np.zeros((9, 9)))
    assert newest[0].leaves[0].values == "0.0 to 0.0"
    assert older[0].error == "it cannot be shown: OSError('no encoder')"


def test_values_without_a_range_are_drawn_without_a_warning() -> None:
    pixels = np.full((9, 9), np.inf)
    pixels[0] = -np.inf, *[np.nan] * 8
    require_module("PIL")
    [leaf] = shown(pixels)[0].leaves
    assert leaf.values == "nan to nan"
    assert leaf.thumbnail.startswith(b"\x89PNG")


def test_the_reply_is_bounded_whatever_the_elements_are() -> None:
    require_module("PIL")
    noise = np.random.default_rng(0).integers(0, 256, (40, 96, 96, 3), np.uint8)
    wide = {f"{'ö' * 70}{number}": image for number, image in enumerate(noise)}
    found = shown(*[wide] * 9)
    assert len(found) == MOST_ELEMENTS
    assert len(found[0].leaves) == 32
    assert found[0].more_leaves == 8
    assert all(len(leaf.path) <= 60 for leaf in found[0].leaves)
    assert MOST_BYTES / 2 < len(encode(PeekReply(elements=found))) < MOST_BYTES


def test_names_that_utf_8_cannot_hold_and_values_without_an_order_are_shown() -> None:
    [element] = shown({"a\udc80": 1, "text": "é" * 500, "empty": np.zeros((0, 7)), "nan": np.full(9, np.nan)})
    paths = [leaf.path for leaf in element.leaves]
    assert paths[0].startswith("a")
    assert paths[1:] == ["text", "empty", "nan"]
    encode(element)


def test_an_element_that_is_too_large_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsnb.worker.peeking._MOST_ELEMENT_BYTES", 1 << 20)
    [element] = shown(np.zeros((3 << 20,), np.uint8))
    assert element.error == "it has 3 MiB, which is too large to be shown"


def test_elements_of_a_coordinated_read_are_seen_too() -> None:
    log = RoundLog(consumers=2, read_ahead_bytes=1 << 20)
    for number in range(5):
        [frame] = frames_of([number], None)
        assert isinstance(frame, Frame)
        log.append(frame, 1, 8)
    assert [first for first, _ in log.newest_frames(2)] == [4, 3]


def test_frames_that_were_consumed_or_are_on_disk_are_left_out() -> None:
    log = SharedLog(capacity=1 << 20, read_ahead_bytes=1 << 20, keep=True)
    for number in range(4):
        log.append(f"frame {number}", 1, 8)
    log.frames.entries[3].frame = None
    log.frames.on_disk = 2
    assert [first for first, _ in log.newest_frames(9)] == [2]


def test_what_is_not_there_is_told(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match="there is no job nobody's"):
        look(cluster, "nobody's")
    worker = cluster.workers[0]
    channel = open_channel(worker.address, cluster.dispatcher.token, worker.uid)
    with pytest.raises(NotFoundError, match="no longer has the task t9"):
        channel.call(PEEK, PeekRequest(task_id="t9"))
    channel.close()


def test_a_job_whose_worker_left_is_told_to_have_no_elements(cluster: Cluster) -> None:
    elements = iter(dsnb.Dataset.range(9).apply(dsnb.distribute("parallel_epochs", cluster.service, job_name="train")))
    next(elements)
    cluster.workers[0].stop()
    with pytest.raises(NotFoundError, match="no worker has elements of the job train"):
        look(cluster)
    del elements

from __future__ import annotations

import errno
import os
import random
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.cache.recordings.backends import StoreFailed
from dsnb.cache.recordings.frames import frames_from_run, rows
from dsnb.cache.recordings.segments import (
    SegmentReader,
    SegmentWriter,
    orphan_segments,
    remove_segments,
    segment_names,
)
from dsnb.elements.allocation import ALIGNMENT
from dsnb.errors import DataLossError
from dsnb.storage.failpoints import When, failpoint_hook


def frames(*numbers: int) -> list[Any]:
    return [frame for number in numbers for frame in frames_from_run([np.full(1000, number)])]


def value(reader: SegmentReader, place: Any) -> int:
    return int(rows(reader.read_frame(place), 0, 1)[0][0])


@pytest.mark.parametrize("growing,files", [(True, 1), (False, 2)])
def test_chunks_share_a_file_only_where_a_file_may_grow(tmp_path: Path, growing: bool, files: int) -> None:
    writer = SegmentWriter(str(tmp_path), growing)
    places = [*writer.write(frames(1, 2)), *writer.write(frames(3))]
    writer.close()
    reader = SegmentReader(str(tmp_path))
    assert [value(reader, place) for place in places] == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == files
    reader.close()


def test_a_segment_is_read_while_it_grows(tmp_path: Path) -> None:
    writer, reader = SegmentWriter(str(tmp_path), True), SegmentReader(str(tmp_path))
    for number in range(5):
        (place,) = writer.write(frames(number))
        assert value(reader, place) == number
    writer.close()
    reader.close()


def test_after_a_failed_sync_nothing_more_goes_into_that_file(tmp_path: Path) -> None:
    def fail(name: str, when: When) -> None:
        if (name, when) == ("segment sync", "before"):
            raise OSError(errno.EIO, "Input/output error")

    writer = SegmentWriter(str(tmp_path), True)
    (first,) = writer.write(frames(1))
    with failpoint_hook(fail), pytest.raises(OSError, match="Input/output"):
        writer.write(frames(2))
    (third,) = writer.write(frames(3))
    writer.close()
    assert first.name != third.name
    reader = SegmentReader(str(tmp_path))
    assert [value(reader, place) for place in (first, third)] == [1, 3]
    reader.close()


def test_who_writes_to_an_element_by_force_changes_nothing_on_the_disk(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), True)
    (place,) = writer.write(frames(7))
    writer.close()
    before = (tmp_path / place.name).read_bytes()
    reader = SegmentReader(str(tmp_path))
    element = rows(reader.read_frame(place), 0, 1)[0]
    # What torch.from_numpy does: the memory, whatever its flags say.
    forced = np.lib.stride_tricks.as_strided(element)
    address = element.__array_interface__["data"][0]
    import ctypes

    ctypes.memset(address, 1, 8)
    assert int(forced[0]) != 7
    assert (tmp_path / place.name).read_bytes() == before
    reader.close()


def test_frames_are_read_to_where_the_system_copies_fast(tmp_path: Path) -> None:
    writer, reader = SegmentWriter(str(tmp_path), True), SegmentReader(str(tmp_path))
    kept = [rows(reader.read_frame(place), 0, 1)[0] for place in writer.write(frames(*range(8)))]
    assert {element.ctypes.data % ALIGNMENT for element in kept} == {0}
    writer.close()
    reader.close()


def test_what_another_host_wrote_may_be_seen_late(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), False)
    (place,) = writer.write(frames(5))
    writer.close()
    path = tmp_path / place.name
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    late = threading.Timer(0.5, lambda: os.replace(_written(tmp_path / "aside", whole), path))
    late.start()
    reader = SegmentReader(str(tmp_path), retry_s=60)
    assert value(reader, place) == 5
    late.join()
    reader.close()


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_where_files_are_this_host_s_own_damage_is_damage_at_once(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), True)
    (place,) = writer.write(frames(5))
    writer.close()
    (tmp_path / place.name).write_bytes(bytes(100))
    with pytest.raises(DataLossError, match=place.name):
        SegmentReader(str(tmp_path)).read_frame(place)


def test_a_frame_is_compared_with_its_digest_whenever_it_is_read(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), True)
    places = writer.write(frames(1, 2))
    writer.close()
    reader = SegmentReader(str(tmp_path))
    assert [value(reader, place) for place in places] == [1, 2]
    path = tmp_path / places[0].name
    data = bytearray(path.read_bytes())
    data[places[1].offset + places[1].nbytes - 1] ^= 1
    path.write_bytes(data)
    assert value(reader, places[0]) == 1
    with pytest.raises(DataLossError, match="are not what was written"):
        reader.read_frame(places[1])
    reader.close()


def test_a_process_without_descriptors_calls_no_file_damaged(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), True)
    (place,) = writer.write(frames(5))
    writer.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(StoreFailed, match="Too many open files"):
            SegmentReader(str(tmp_path)).read_frame(place)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_elements_that_somebody_keeps_are_never_overwritten_by_later_frames(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), True)
    places = writer.write(frames(*range(30)))
    writer.close()
    reader = SegmentReader(str(tmp_path))
    draw = random.Random(5)
    kept: dict[int, Any] = {}
    for index in [draw.randrange(30) for _ in range(600)]:
        element = rows(reader.read_frame(places[index]), 0, 1)[0]
        assert element.tolist() == [index] * 1000
        if draw.random() < 0.3:
            kept[index] = draw.choice([element, element[::7], memoryview(element)[3:], element.reshape(10, 100).T])
        if draw.random() < 0.2 and kept:
            del kept[draw.choice(list(kept))]
        assert all(set(np.asarray(view).ravel().tolist()) == {number} for number, view in kept.items())
    reader.close()


def test_segments_of_the_living_are_not_those_of_the_dead(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path), True)
    (place,) = writer.write(frames(5))
    writer.close()
    dead = tmp_path / place.name.replace(f"-{os.getpid()}-", "-1-")
    dead.write_bytes(b"")
    assert orphan_segments(str(tmp_path)) == [dead.name]
    assert segment_names(str(tmp_path)) == sorted([dead.name, place.name])
    assert remove_segments(str(tmp_path), [dead.name, "gone.seg"]) == 1
    assert segment_names(str(tmp_path)) == [place.name]

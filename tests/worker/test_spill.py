from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame, frames_of
from dsnb.worker.spill import Spill, SpilledFrame, SpillLimit

MIB = 1 << 20


def frame(value: int, nbytes: int = MIB) -> Frame:
    (made,) = frames_of([{"x": np.full(nbytes, value, np.uint8), "name": f"of {value}"}], None)
    assert isinstance(made, Frame)
    return made


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Spill]:
    spill = Spill(str(tmp_path), SpillLimit(256 * MIB))
    yield spill
    spill.close()


def put(spill: Spill, frame: Frame) -> SpilledFrame:
    place = spill.put(frame)
    assert isinstance(place, SpilledFrame)
    return place


def same(one: Frame, other: Frame) -> bool:
    (a,), (b,) = one.elements(0, 1), other.elements(0, 1)
    return bool((a["x"] == b["x"]).all()) and a["name"] == b["name"]


def test_frames_come_back_as_they_were_from_any_file(spill: Spill) -> None:
    places = [put(spill, frame(number)) for number in range(100)]
    assert len({id(place.file) for place in places}) == 2
    assert all(same(spill.get(place), frame(number)) for number, place in enumerate(places))


def test_frames_of_any_kind_of_leaf_come_back(spill: Spill) -> None:
    elements = [(np.float32(n), b"bytes" * n, np.arange(n), np.datetime64(n, "D")) for n in range(50)]
    for part in frames_of(elements, None):
        assert isinstance(part, Frame)
        back = spill.get(put(spill, part))
        assert [str(element) for element in back.elements(0, part.count)] == [
            str(element) for element in part.elements(0, part.count)
        ]


def test_what_was_read_is_the_readers_own(spill: Spill) -> None:
    """A write past NumPy's own guard, as from torch, neither crashes nor reaches the next reader."""
    place = put(spill, frame(3))
    array = spill.get(place).elements(0, 1)[0]["x"]
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 9
    assert same(spill.get(place), frame(3))


def test_an_error_in_an_elements_place_needs_no_disk(spill: Spill) -> None:
    failure = Frame.of_failure(failure_of(KeyError("x"), "here"))
    place = spill.put(failure)
    assert place is failure
    assert spill.get(failure) is failure
    spill.drop(failure)
    assert not spill.nbytes


def test_files_have_no_name_and_go_with_their_last_frame(spill: Spill, tmp_path: Path) -> None:
    places = [put(spill, frame(number)) for number in range(130)]
    assert not list(tmp_path.iterdir())
    assert len(open_files(tmp_path)) == 3
    for place in places[:64]:
        spill.drop(place)
    assert len(open_files(tmp_path)) == 2
    assert spill.nbytes == sum(place.nbytes for place in places[64:])
    spill.close()
    assert not open_files(tmp_path)


def open_files(folder: Path) -> list[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in map(target_of, links) if target.startswith(str(folder))]


def target_of(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def test_the_limit_holds_for_all_tasks_together_and_room_that_comes_back_is_used(tmp_path: Path) -> None:
    limit = SpillLimit(128 * MIB)
    one, other = Spill(str(tmp_path), limit), Spill(str(tmp_path), limit)
    places = [put(one, frame(number)) for number in range(70)]
    assert other.put(frame(1)) is None
    assert not other.has_room()
    for place in places[:64]:
        one.drop(place)
    assert other.has_room()
    assert put(other, frame(2)).nbytes >= MIB
    one.close()
    other.close()
    assert limit.used == 0


def test_a_full_disk_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    limit = SpillLimit(1 << 40)
    spill = Spill(str(tmp_path), limit)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert spill.put(frame(1)) is None
    assert not spill.has_room()
    assert limit.used == 0
    assert not open_files(tmp_path)

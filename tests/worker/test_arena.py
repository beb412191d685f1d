"""Each reader of a shared buffer has it as memory of its own; the memory is used again when all are done with it."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from dsnb.elements import frame as frames
from dsnb.elements.frame import Frame, frames_of
from dsnb.transfer.shared_memory import memory as memories
from dsnb.worker import arena as module
from dsnb.worker.arena import Arena, ArenaBuffer
from tests.support.overwriting import overwrite
from tests.support.processes import python_process

PAGE = mmap.PAGESIZE
NBYTES = 3 * PAGE + 100


def data(seed: int, nbytes: int = NBYTES) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(1, 256, nbytes, np.uint8)


def held(arena: Arena, seed: int, nbytes: int = NBYTES) -> ArenaBuffer:
    whole = data(seed, nbytes)
    found = arena.store([whole[:7], whole[7:].tobytes()], nbytes)
    assert found is not None
    return found


def test_what_one_reader_writes_reaches_neither_another_nor_the_buffer() -> None:
    arena = Arena(16 * PAGE)
    buffer = held(arena, 1)
    first, second = buffer.private_view(), buffer.private_view()
    overwrite(first)
    assert not first.any()
    np.testing.assert_array_equal(second, data(1))
    np.testing.assert_array_equal(buffer.base_array, data(1))
    np.testing.assert_array_equal(buffer.private_view(), data(1))
    with pytest.raises(ValueError, match="WRITEABLE"):
        second.flags.writeable = True


def test_what_was_written_is_gone_when_the_piece_is_looked_at_again() -> None:
    arena = Arena(16 * PAGE)
    buffer = held(arena, 1)
    for _ in range(5):
        mine = buffer.private_view()
        np.testing.assert_array_equal(mine, data(1))
        overwrite(mine)
        del mine
    assert arena.debug_state()["mappings"] == 1


def test_what_was_written_is_gone_when_another_buffer_lies_there() -> None:
    arena = Arena(4 * PAGE)  # room for one
    for seed in range(6):
        buffer = held(arena, seed)
        first, second = buffer.private_view(), buffer.private_view()
        np.testing.assert_array_equal(first, data(seed))
        overwrite(first)
        overwrite(second)
        del buffer, first, second
    assert arena.debug_state()["mappings"] == 2


@pytest.mark.parametrize("left", ["frame", "view"])
def test_a_piece_is_used_again_when_neither_frame_nor_view_is_left(left: str) -> None:
    arena = Arena(4 * PAGE)
    buffer: ArenaBuffer | None = held(arena, 1)
    assert buffer is not None
    view: Any = buffer.private_view()[5:]
    kept = buffer if left == "frame" else view
    buffer = view = None
    assert arena.store([data(2)], NBYTES) is None
    np.testing.assert_array_equal(
        kept.private_view() if isinstance(kept, ArenaBuffer) else kept, data(1)[5 * (left == "view") :]
    )
    kept = None
    np.testing.assert_array_equal(held(arena, 2).private_view(), data(2))


def test_views_of_neighbours_keep_what_was_written_to_them() -> None:
    arena = Arena(64 * PAGE)
    buffers = [held(arena, seed, NBYTES + 13 * seed) for seed in range(6)]
    views = [buffer.private_view() for buffer in buffers]
    for view in views[::2]:
        overwrite(view)
    del views[1], views[2]
    gc.collect()
    assert [len(view) - NBYTES for view in views] == [0, 26, 52, 65]
    assert [bool(view.any()) for view in views] == [False, False, False, True]
    np.testing.assert_array_equal(views[3], data(5, NBYTES + 65))


def test_views_outlive_the_arena() -> None:
    view = held(Arena(16 * PAGE), 3).private_view()
    gc.collect()
    np.testing.assert_array_equal(view, data(3))
    overwrite(view)


def test_nothing_is_left_of_an_arena_that_nobody_needs() -> None:
    def open_files() -> list[str]:
        found = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{number}"))
        return [path for path in found if "dsnb-slabs" in path or "pagemap" in path]

    before = open_files()
    arena = Arena(16 * PAGE)
    buffer = held(arena, 1)
    views = [buffer.private_view() for _ in range(3)]
    assert len(open_files()) > len(before)
    del arena, buffer, views
    gc.collect()
    assert open_files() == before


def refuse_mappings(patch: pytest.MonkeyPatch) -> None:
    """Be a process that has as many mappings as it may."""

    def refused(_descriptor: int, _size: int) -> None:
        raise OSError("Cannot allocate memory")

    patch.setattr(module, "PrivateMapping", refused)


def allow_one_mapping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "_MOST_MAPPINGS", 1)


def hide_the_page_table(patch: pytest.MonkeyPatch) -> None:
    """Be a system that does not say which pages were written to."""
    patch.setattr(memories, "_open_pagemap", lambda: -1)


@pytest.mark.parametrize("poor", [refuse_mappings, allow_one_mapping, hide_the_page_table])
def test_where_the_system_has_less_readers_are_apart_all_the_same(
    poor: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    poor(monkeypatch)
    arena = Arena(16 * PAGE)
    buffer = held(arena, 1)
    for _ in range(3):
        views = [buffer.private_view() for _ in range(4)]
        for view in views:
            np.testing.assert_array_equal(view, data(1))
            assert not view.flags.writeable
            overwrite(view)
    np.testing.assert_array_equal(buffer.base_array, data(1))


def test_where_there_is_no_such_memory_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "supported", lambda: False)
    assert Arena(16 * PAGE).store([data(1)], NBYTES) is None
    monkeypatch.undo()

    def refused(_size: int) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(module, "SharedMemory", refused)
    assert Arena(16 * PAGE).store([data(1)], NBYTES) is None


def test_a_buffer_that_is_too_large_is_not_held() -> None:
    arena = Arena(2 * PAGE)
    assert arena.store([data(1)], NBYTES) is None
    assert held(arena, 2, PAGE).private_view().nbytes == PAGE


def test_readers_on_threads_see_what_was_written_for_them_whatever_others_write() -> None:
    arena, rounds, wrong = Arena(64 * PAGE), 300, []
    shared: list[tuple[int, ArenaBuffer]] = [(0, held(arena, 0))]

    def read() -> None:
        for _ in range(rounds):
            seed, buffer = shared[0]
            view = buffer.private_view()
            if not np.array_equal(view, data(seed)):
                wrong.append(seed)
            overwrite(view)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for seed in range(1, 400):
        found = arena.store([data(seed)], NBYTES)
        if found is not None:
            shared[0] = (seed, found)
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_forked_child_keeps_its_elements_when_the_memory_is_used_again() -> None:
    code = f"""
import os, numpy as np
from dsnb.worker.arena import Arena
arena = Arena({4 * PAGE})
buffer = arena.store([np.full({NBYTES}, 7, np.uint8)], {NBYTES})
view, copied = buffer.private_view(), buffer.private_view()
there, told = os.pipe(), os.pipe()
if not os.fork():
    os.read(there[0], 1)
    os.write(told[1], b"1" if (view == 7).all() and (copied == 7).all() else b"0")
    os._exit(0)
del buffer, view, copied
again = arena.store([np.full({NBYTES}, 9, np.uint8)], {NBYTES})
assert (again.private_view() == 9).all()
os.write(there[1], b"x")
print("CHILD", os.read(told[0], 1).decode(), flush=True)
os.wait()
print("READY", flush=True)
input()
"""  # fmt: skip
    with python_process(code) as other:
        assert other.wait_for_line("CHILD").split()[1:] == ["1"]


def frame_of(*elements: Any) -> Frame:
    (frame,) = frames_of(list(elements), None)
    assert isinstance(frame, Frame)
    return frame


@pytest.mark.parametrize("nested", [False, True])
def test_a_frame_with_large_arrays_is_mapped_and_one_without_is_copied(
    nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "LARGE_BYTES", 1 << 17)
    large, small = data(1, 1 << 17), data(2, 100)
    arena = Arena(1 << 20)
    frame = frame_of({"image": large, "label": 5, "boxes": small} if nested else large.reshape(2, -1))
    frame.make_shared(pack=True, buffer_store=arena)
    elements = [frame.elements(0, 1)[0] for _ in range(2)]
    for _ in range(2):
        for element in elements:
            images = element["image"] if nested else element.reshape(-1)
            np.testing.assert_array_equal(images, large)
            assert images.base is not None
            if nested:
                np.testing.assert_array_equal(element["boxes"], small)
                assert element["boxes"].base is None, "a small one must not keep the piece"
                assert element["label"] == 5
        overwrite(elements.pop())
    assert arena.debug_state()["buffers"] == 1
    few = frame_of(small, small)
    few.make_shared(pack=True, buffer_store=arena)
    assert arena.debug_state()["buffers"] == 1
    mine = few.elements(0, 2)
    overwrite(mine[0])
    np.testing.assert_array_equal(mine[1], small)
    np.testing.assert_array_equal(few.elements(0, 1)[0], small)


def test_a_frame_that_moves_on_leaves_its_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LARGE_BYTES", PAGE)
    arena, large = Arena(4 * PAGE), data(1, 2 * PAGE)
    frame = frame_of(large)
    frame.make_shared(buffer_store=arena)
    layouts = [column.layout(0, 1, 0) for column in frame.columns]
    frame.move_into(layouts, large.copy())
    gc.collect()
    assert arena.store([data(2)], NBYTES) is not None
    element = frame.elements(0, 1)[0]
    overwrite(element)
    np.testing.assert_array_equal(frame.elements(0, 1)[0], large)

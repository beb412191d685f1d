"""The memory is there before it is used, and what a reader writes is the reader's alone."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dsnb.transfer.shared_memory import memory as module
from dsnb.transfer.shared_memory.memory import PrivateMapping, SharedMemory
from tests.support.processes import PythonProcess, python_process
from tests.support.transfers import overwrite_memory

PAGE = mmap.PAGESIZE
SIZE = 16 * PAGE


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Have the system refuse files beyond so many bytes, of which a memfd is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def room_for(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a host that has so many bytes of memory left, and says so when more are to be reserved."""
    reserve = os.posix_fallocate

    def fallocate(file: int, at: int, length: int) -> None:
        if at + length > nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, at, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fallocate)
        yield


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory(SIZE)
    yield made
    made.close()


def filled(memory: SharedMemory, at: int, nbytes: int, seed: int = 0) -> np.ndarray:
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    memory.reserve(at + nbytes)
    memory.write(at, [data[: nbytes // 3], data[nbytes // 3 :].tobytes()], nbytes)
    return data


def test_a_reader_sees_what_was_written_and_cannot_be_talked_into_writing(memory: SharedMemory) -> None:
    data = filled(memory, PAGE, 3 * PAGE + 5)
    root = PrivateMapping(memory.descriptor, SIZE).base_array(PAGE, 3 * PAGE + 5)
    assert np.array_equal(root, data)
    with pytest.raises(ValueError, match="read-only"):
        root[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        root.flags.writeable = True


def test_what_is_written_all_the_same_reaches_nobody_else_and_is_dropped_before_the_next_frame(
    memory: SharedMemory,
) -> None:
    data = filled(memory, 0, 4 * PAGE)
    mine, other = PrivateMapping(memory.descriptor, SIZE), PrivateMapping(memory.descriptor, SIZE)
    root = mine.base_array(0, 4 * PAGE)
    overwrite_memory(root[PAGE : PAGE + 10])
    assert list(root[PAGE : PAGE + 10]) == [0xEE] * 10
    assert np.array_equal(other.base_array(0, 4 * PAGE), data)
    later = filled(memory, 0, 4 * PAGE, seed=1)
    assert not np.array_equal(root, later), "this is the danger: pages that were written to show old data"
    mine.discard_private_pages(0, 4 * PAGE)
    assert np.array_equal(root, later)


def test_pages_beside_a_piece_keep_what_was_written_to_them(memory: SharedMemory) -> None:
    filled(memory, 0, 3 * PAGE)
    mapping = PrivateMapping(memory.descriptor, SIZE)
    overwrite_memory(mapping.base_array(0, 3 * PAGE))
    mapping.discard_private_pages(PAGE, 10)
    after = mapping.base_array(0, 3 * PAGE)
    assert [int(after[page * PAGE]) == 0xEE for page in range(3)] == [True, False, True]


def test_a_forked_child_keeps_what_its_parent_looked_at_when_the_memory_is_written_to_again() -> None:
    code = f"""
import os, numpy as np
from dsnb.transfer.shared_memory.memory import PrivateMapping, SharedMemory
memory = SharedMemory({SIZE})
memory.reserve({SIZE})
memory.write({PAGE}, [np.full({3 * PAGE + 5}, 7, np.uint8)], {3 * PAGE + 5})
mapping = PrivateMapping(memory.descriptor, {SIZE})
view = mapping.tracked_array({PAGE}, {3 * PAGE + 5}, mapping.discard_private_pages)
there, told = os.pipe(), os.pipe()
if not os.fork():
    os.read(there[0], 1)
    os.write(told[1], b"1" if (view == 7).all() else b"0")
    os._exit(0)
del view
memory.write({PAGE}, [np.full({3 * PAGE + 5}, 9, np.uint8)], {3 * PAGE + 5})
assert (mapping.base_array({PAGE}, {3 * PAGE + 5}) == 9).all()
os.write(there[1], b"x")
print("CHILD", os.read(told[0], 1).decode(), flush=True)
os.wait()
print("READY", flush=True)
input()
"""  # fmt: skip
    with python_process(code) as other:
        assert other.wait_for_line("CHILD").split()[1:] == ["1"]


def test_only_pages_that_were_written_to_are_dropped(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(memory, 0, 4 * PAGE)
    mapping = PrivateMapping(memory.descriptor, SIZE)
    root = mapping.base_array(0, 4 * PAGE)
    assert root.sum() > 0
    assert not mapping.has_private_pages(0, 4 * PAGE)
    overwrite_memory(root[3 * PAGE : 3 * PAGE + 1])
    assert [mapping.has_private_pages(page * PAGE, PAGE) for page in range(4)] == [False, False, False, True]
    monkeypatch.setattr(module, "_open_pagemap", lambda: -1)  # a system that hides it
    assert PrivateMapping(memory.descriptor, SIZE).has_private_pages(0, PAGE)


def test_a_host_that_is_short_refuses_instead_of_killing_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(SIZE)
    try:
        with room_for(4 * PAGE, monkeypatch):
            memory.reserve(4 * PAGE)
            with pytest.raises(OSError, match="No space left"):
                memory.reserve(5 * PAGE)
        assert memory.reserved == 4 * PAGE
    finally:
        memory.close()


def test_a_memory_that_cannot_be_made_leaves_nothing() -> None:
    with file_size_limit(PAGE), pytest.raises(OSError, match="File too large"):
        SharedMemory(SIZE)


def test_a_reader_can_neither_shorten_it_nor_write_to_it(memory: SharedMemory) -> None:
    with pytest.raises(OSError, match=r"Invalid argument|Permission"):
        os.ftruncate(memory.descriptor, 0)
    with pytest.raises(OSError, match="Permission denied"):
        mmap.mmap(memory.descriptor, SIZE)
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(f"/proc/self/fd/{memory.descriptor}", PAGE)


def test_pages_that_are_given_back_take_no_memory(memory: SharedMemory) -> None:
    filled(memory, 0, 8 * PAGE)
    assert os.fstat(memory.descriptor).st_blocks * 512 >= 8 * PAGE
    memory.release_pages()
    assert os.fstat(memory.descriptor).st_blocks == 0
    data = filled(memory, 0, 2 * PAGE)
    assert np.array_equal(PrivateMapping(memory.descriptor, SIZE).base_array(0, 2 * PAGE), data)


def test_views_outlive_the_memory_and_its_maker() -> None:
    memory = SharedMemory(SIZE)
    data = filled(memory, 0, 2 * PAGE)
    root = PrivateMapping(memory.descriptor, SIZE).base_array(0, 2 * PAGE)
    memory.close()
    assert np.array_equal(root, data)


def test_a_view_that_outlives_its_modules_at_the_end_of_python_ends_in_silence() -> None:
    code = f"""
import builtins
from dsnb.transfer.shared_memory import memory as module

class Last:
    def __init__(self):
        self.memory = module.SharedMemory({SIZE})
        self.mapping = module.PrivateMapping(self.memory.descriptor, {SIZE})
        self.view = self.mapping.tracked_array(0, {PAGE}, print)

    def __del__(self):  # Python clears `builtins` last
        vars(module).update(dict.fromkeys(vars(module)))  # what it does with modules before
        self.view = None
        print("DROPPED", flush=True)

builtins.last = Last()
"""
    with PythonProcess(["-c", code]) as process:
        assert process.wait_for_exit() == 0
        assert process.stdout == "DROPPED\n"
        assert process.stderr == ""

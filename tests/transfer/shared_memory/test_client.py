"""A reader's views of shared memory stay what they are, and no longer than they are needed."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading

import numpy as np
import pytest

from dsnb.errors import UnavailableError
from dsnb.transfer.protocol import TransferRefused
from dsnb.transfer.shared_memory.server_connection import MIN_SLAB_BYTES
from tests.support.processes import python_process
from tests.support.transfers import overwrite_memory
from tests.support.waiting import wait_for
from tests.transfer.shared_memory.reading import BIG, MIB, ListeningReader, SharedReader, data, door, lines, reading
from tests.transfer.test_grpc import piece_of


def test_a_large_element_is_a_read_only_view_of_shared_memory() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(piece_of([data(1)]))
        element = reader.take()
        assert np.array_equal(element, data(1))
        assert not element.flags.owndata
        assert element.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            element += 1
        there.used(BIG)


def test_a_small_element_is_of_its_own_and_takes_no_slab() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(piece_of([data(1, MIN_SLAB_BYTES - 1)]))
        assert np.array_equal(reader.take(), data(1, MIN_SLAB_BYTES - 1))
        assert there.pool.used_bytes == 0


@pytest.mark.slow
def test_a_slab_is_free_when_the_last_view_is_gone_and_not_before() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(piece_of([data(1)]))
        element = reader.take()
        view = element.reshape(2, -1)[1, 100:200].view(np.uint16)
        del element
        gc.collect()
        reader.reading.credit(1, 1, 1)
        wait_for(lambda: there.worker.said, what="the credit, and a release if there were one in front of it")
        assert there.pool.used_bytes == BIG
        assert np.array_equal(view, data(1)[BIG // 2 + 100 : BIG // 2 + 200].view(np.uint16))
        del view
        reader.reading.credit(2, 2, 2)
        there.used(0)


def test_views_outlive_the_reading_and_hold_no_more_than_their_slab() -> None:
    with door() as there:
        before = lines()
        with reading(there) as reader:
            for seed in range(3):
                there.worker.sink().deliver(piece_of([data(seed)]))
            elements = [reader.take() for _ in range(3)]
        del elements[0], elements[0]
        there.used(BIG, "by the one that is kept")
        assert lines() == before + 1
        assert np.array_equal(elements[0], data(2))
        elements.clear()
        there.used(0)
        assert lines() == before
        wait_for(lambda: there.pool.memory.reserved == 0, what="the memory to be given back")


def test_views_outlive_the_worker() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(piece_of([data(1)]))
        element = reader.take()
        there.service.stop()
        reader.error()
        assert np.array_equal(element, data(1))
    del element
    wait_for(lambda: lines() == 0, what="the line to be closed")


def test_slabs_that_lie_idle_are_given_back_without_another_word() -> None:
    with door(size=256 * MIB) as there, reading(there) as reader:
        for seed in range(2):
            there.worker.sink().deliver(piece_of([data(seed, 13 * MIB)]))
        kept = [reader.take(), reader.take()]
        there.used(26 * MIB)
        del kept[0]
        del kept[0]
        there.used(0, "when two of them would only wait for the next credit")


@pytest.mark.slow
def test_slabs_are_used_again_and_again() -> None:
    """Forty times the memory, by a reader that keeps two elements at a time."""
    with door(size=4 * MIB) as there, reading(there) as reader:
        sink, kept = there.worker.sink(), None
        for seed in range(160):
            sink.deliver(piece_of([data(seed)]))
            element = reader.take()
            assert np.array_equal(element, data(seed)), f"element {seed}"
            assert kept is None or np.array_equal(kept, data(seed - 1)), f"the one before element {seed}"
            kept = element
            reader.reading.credit(seed + 1, seed, 1)
        assert there.pool.memory.reserved <= 4 * MIB


def test_what_is_written_into_an_element_reaches_neither_another_reader_nor_a_later_frame() -> None:
    with door(size=2 * MIB) as there, reading(there) as one, reading(there, client_id="d") as other:
        wait_for(lambda: len(there.worker.sinks) == 2, what="both readers")
        for seed in range(8):  # more than there are slabs, so that each is used again
            piece = piece_of([data(seed)])
            for sink in there.worker.sinks:
                sink.deliver(piece)
            mine, its = one.take(), other.take()
            assert np.array_equal(mine, data(seed)), f"element {seed} shows what was written into an earlier one"
            overwrite_memory(mine)
            assert int(mine[5]) == 0xEE
            assert np.array_equal(its, data(seed)), "another reader sees it"
            del mine, its, piece
            for reader in (one, other):
                reader.reading.credit(seed, seed, 1)
            there.used(0)


@pytest.mark.slow
def test_elements_may_die_in_any_thread() -> None:
    with door() as there, reading(there) as reader:
        sink = there.worker.sink()
        for seed in range(20):
            sink.deliver(piece_of([data(seed)]))
            box = [reader.take()]
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()
            reader.reading.credit(seed, seed, 1)
            there.used(0)


@pytest.mark.slow
def test_a_cycle_that_is_collected_gives_its_slab_back() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(piece_of([data(1)]))
        cycle: list[object] = [reader.take()]
        cycle.append(cycle)
        del cycle
        gc.collect()
        reader.reading.credit(1, 1, 1)
        there.used(0)


def test_where_nobody_listens_shared_memory_is_refused() -> None:
    with pytest.raises(TransferRefused, match="another host"):
        SharedReader("nobody")


@pytest.mark.slow
def test_nothing_of_it_is_left_in_a_forked_child() -> None:
    code = """
import os, sys, time
from dsnb.wire.channel import open_channel
from tests.transfer.shared_memory.reading import *
from tests.transfer.test_grpc import piece_of
open_channel("127.0.0.1:9", "t")  # as every user of dsnb has one
there = Door()
reader = SharedReader(there.uid)
there.worker.sink().deliver(piece_of([data(1)]))
element = reader.take()
if not os.fork():
    paths = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
    sockets = [path for path in paths if os.path.lexists(path) and os.readlink(path).startswith("socket:")]
    print("CHILD", len(sockets), bool((element == data(1)).all()), flush=True)
    os._exit(0)
os.wait()
print("READY", flush=True)
input()
"""  # fmt: skip
    with python_process(code) as other:
        assert other.wait_for_line("CHILD").split()[1:] == ["0", "True"]


@pytest.mark.slow
def test_a_reader_that_is_killed_gives_back_what_it_held() -> None:
    with door() as there:
        code = f"""
import sys
from tests.transfer.shared_memory.reading import *
reader = SharedReader({there.uid!r})
kept = [reader.take() for _ in range(3)]
print("READY", flush=True)
input()
"""
        deliver = threading.Thread(
            target=lambda: [there.worker.sink().deliver(piece_of([data(seed)])) for seed in range(3)]
        )
        wait_for_reader = threading.Thread(target=lambda: (wait_for(lambda: there.worker.sinks, what="the reader",
                                                                    timeout=60), deliver.start()))  # fmt: skip
        wait_for_reader.start()
        with python_process(code) as other:
            there.used(3 * BIG)
            os.kill(other.pid, signal.SIGKILL)
            there.used(0)
        wait_for_reader.join()
        deliver.join()
        assert ("leave", 0) not in there.worker.said, "one that dies has not left"


def test_more_than_the_socket_takes_waits_for_the_reader_and_arrives_in_order() -> None:
    """Bodies that have no slab go over the socket, many times its size, while the other end is busy."""
    with door(size=MIB) as there, reading(there) as reader:
        sink = there.worker.sink()
        whole = [data(seed, 3_000_001) for seed in range(4)]
        for element in whole:
            sink.deliver(piece_of([element, element[::-1][:7]]))
        sink.end()
        wait_for(lambda: reader.notices == ["end"], what="the end")
        came = [element for piece in reader.pieces for element in piece.elements()]
        assert all(np.array_equal(mine, its) for mine, its in zip(came[::2], whole, strict=True))
        assert all(element.flags.owndata or element.base is not None for element in came)
        assert there.worker.links[0].fallbacks == 4


def test_a_reader_that_listens_itself_has_no_thread_and_misses_nothing() -> None:
    with door(size=4 * MIB) as there:
        reader = ListeningReader(there.uid)
        sink = there.worker.sink()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("dsnb-read")]
        for seed in range(12):
            sink.deliver(piece_of([data(seed)]))
            sink.deliver(piece_of([data(seed, 3_000_001 if seed == 5 else 100)]))  # one that waits for the socket
            assert np.array_equal(reader.take(), data(seed))
            assert len(reader.take()) == (3_000_001 if seed == 5 else 100)
            reader.reading.credit(seed + 1, seed, 1)
        sink.end()
        wait_for(lambda: reader.look() or reader.notices == ["end"], what="the end")
        reader.close()
        there.used(0)
    assert there.worker.said[-1] == ("leave", 0)
    assert reader.errors == []


def test_a_reader_that_listens_itself_learns_that_its_worker_is_gone() -> None:
    with door() as there:
        reader = ListeningReader(there.uid)
        there.worker.sink().deliver(piece_of([data(1)]))
        element = reader.take()
        there.service.stop()
        wait_for(lambda: reader.look() or reader.errors, what="the end to be heard")
        assert isinstance(reader.errors[0], UnavailableError)
        assert not reader.poller
        assert np.array_equal(element, data(1))
        reader.close()
    del element
    assert lines() == 0


def test_an_interrupt_while_a_message_is_taken_breaks_the_reading_so_that_it_is_asked_for_again() -> None:
    with door() as there:
        reader = ListeningReader(there.uid)

        def interrupted(_piece: object) -> None:
            raise KeyboardInterrupt

        reader.deliver = interrupted  # type: ignore[method-assign]
        there.worker.sink().deliver(piece_of([data(1)]))
        with pytest.raises(KeyboardInterrupt):
            wait_for(reader.look, what="the interrupt")
        assert isinstance(reader.errors[0], UnavailableError)
        there.used(0)
        reader.close()
        assert lines() == 0


def test_a_reader_that_may_open_no_more_files_is_refused_shared_memory() -> None:
    with door() as there:
        reader = ListeningReader(there.uid)
        there.worker.sink()  # so the memory is on its way
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, usual[1]))
        try:
            wait_for(lambda: reader.look() or reader.errors, what="the end to be heard")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        assert isinstance(reader.errors[0], TransferRefused)
        assert "cannot open the worker's memory" in str(reader.errors[0])
        reader.close()
    assert lines() == 0

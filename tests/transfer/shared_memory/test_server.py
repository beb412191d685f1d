"""What a worker delivers arrives, what a reader says arrives, and every end is told to both."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import (
    DataLossError,
    DsnbError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.transfer.protocol import FrameSlice, TransferRefused
from dsnb.transfer.shared_memory import client_connection, server_connection
from dsnb.transfer.shared_memory.memory import ConsumedPage
from dsnb.transfer.shared_memory.messages import (
    HEADER,
    PROOF_METHOD,
    MessageKind,
    close_socket,
    connect,
    pack_message,
    socket_name,
    unpack_header,
)
from dsnb.transfer.shared_memory.server_connection import ServerConnection
from dsnb.wire.codec import encode
from dsnb.wire.messages import ReadRequest
from dsnb.wire.security import Caller, encode_proof, request_digest
from tests.support.waiting import wait_for
from tests.transfer.shared_memory.reading import BIG, MIB, Door, SharedReader, data, door, reading
from tests.transfer.shared_memory.test_memory import file_size_limit, room_for
from tests.transfer.test_grpc import piece_of
from tests.wire.serving import TOKEN


def test_what_a_reader_says_when_it_opens_arrives() -> None:
    told = {"task_id": "a", "client_id": "b", "trainer_id": "lr=0.1", "max_bytes": 9, "granted": 5, "received": 4,
            "consumed": 3}  # fmt: skip
    with door() as there, reading(there, **told):
        there.worker.sink()
        assert there.worker.openings == [ReadRequest(**told)]
        assert there.worker.links[0].transfer == "shared_memory"


def test_pieces_and_notices_arrive_in_order() -> None:
    with door() as there, reading(there) as reader:
        sink = there.worker.sink()
        sink.deliver(piece_of([1, 2], 10))
        sink.recalled(2)
        sink.deliver(piece_of([np.arange(400_000)], 12))
        sink.deliver(piece_of([3], 13))
        sink.end()
        wait_for(lambda: reader.notices == [("recalled", 2), "end"], what="both notices")
        assert [(piece.index, piece.count) for piece in reader.pieces] == [(10, 2), (12, 1), (13, 1)]
        elements = reader.elements(3)
        assert elements[:2] == [1, 2]
        assert np.array_equal(elements[2], np.arange(400_000))
    assert reader.errors == [], "leaving is no failure"


def test_parts_of_a_frame_are_parts_of_its_slab() -> None:
    rows = np.arange(MIB, dtype=np.int64).reshape(8, -1)
    (frame,) = frames_of(rows, None)
    assert isinstance(frame, Frame)
    with door(size=32 * MIB) as there, reading(there) as reader:
        for start, count in ((0, 3), (3, 1), (4, 4)):
            there.worker.sink().deliver(FrameSlice(frame, 50 + start, start, count, 2))
        elements = reader.elements(3)
        assert np.array_equal(np.stack(elements), rows)
        assert [(p.index, p.count, p.incarnation) for p in reader.pieces] == [(50, 3, 2), (53, 1, 2), (54, 4, 2)]
        there.used(rows.nbytes)
        del elements


def test_an_error_in_an_elements_place_arrives_as_a_piece() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(FrameSlice(Frame.of_failure(failure_of(ValueError("bad row"))), 0, 0, 1, 1))
        there.worker.sink().deliver(piece_of([7], 1))
        wait_for(lambda: len(reader.pieces) == 2, what="both pieces")
        with pytest.raises(ValueError, match="bad"):
            reader.pieces[0].elements()
        assert list(reader.pieces[1].elements()) == [7], "reading goes on"


def test_credit_and_recalls_arrive_in_order_even_before_the_reader_was_let_in() -> None:
    with door() as there, reading(there) as reader:
        reader.reading.credit(5, 1, 100)
        reader.reading.recall()
        reader.reading.credit(9, 4, 200)
        wait_for(lambda: len(there.worker.said) == 3, what="all three")
        assert there.worker.said == [("credit", 5, 1, 100), ("recall",), ("credit", 9, 4, 200)]


def test_what_a_consumer_received_and_what_a_worker_says_of_rounds_arrive() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().progress(7, 3)
        reader.reading.credit(5, 1, 100, 4)
        wait_for(lambda: there.worker.said, what="the credit")
        wait_for(lambda: reader.notices, what="the progress")
        assert reader.notices == [("progress", 7, 3)]


def test_leaving_is_told_with_what_was_consumed_and_is_prompt() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink()
        began = time.monotonic()
        reader.reading.leave(17)
        reader.reading.wait_until_left(2.0)
        assert time.monotonic() - began < 2.0  # the least that one without an answer takes
        assert there.worker.said == [("leave", 17)], "it is known when the wait is over"
        reader.reading.leave(99)
    assert there.worker.said == [("leave", 17)]
    assert reader.errors == []


class RefusesLateCredit(list[Any]):
    """What readers said; fails when one that is gone is credited with what it consumed."""

    def append(self, said: Any) -> None:
        super().append(said)
        if said[:2] == ("credit", 0):
            raise RuntimeError("unknown reader")


def test_an_error_at_the_end_of_one_reader_leaves_the_others_served(caplog: pytest.LogCaptureFixture) -> None:
    with door() as there, reading(there) as other:
        there.worker.sink()
        there.worker.said = RefusesLateCredit()
        before = set(client_connection.connections)
        with reading(there) as gone:
            wait_for(lambda: len(there.worker.sinks) == 2, what="the second reader")
            gone.reading.consumed_cell[0] = 3
            (connection,) = set(client_connection.connections) - before
            connection.stop_receiving()  # it closes its socket without a farewell
            wait_for(lambda: "could not be handled" in caplog.text, what="the error in the log")
        there.worker.sinks[0].deliver(piece_of([1]))
        assert int(other.take()) == 1


def test_a_reader_that_goes_while_it_is_let_in_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    class LatePage(ConsumedPage):
        def __init__(self, descriptor: int) -> None:
            super().__init__(descriptor)
            assert closed.wait(30.0), "the worker hears that the reader has gone"

    def close(reader: ServerConnection) -> None:
        original_close(reader)
        closed.set()

    original_close = ServerConnection.close
    with door(limit=1) as there:
        with monkeypatch.context() as patch:
            patch.setattr(server_connection, "ConsumedPage", LatePage)
            patch.setattr(ServerConnection, "close", close)
            before = set(client_connection.connections)
            with reading(there):
                (connection,) = set(client_connection.connections) - before
                connection.stop_receiving()
                (sink,) = wait_for(lambda: there.worker.sinks, what="the reader to be let in")
        wait_for(lambda: sink.consumed is None, what="its page to be closed")
        with reading(there) as another:
            wait_for(lambda: another.errors or len(there.worker.sinks) == 2, what="an answer")
            assert another.errors == [], "there is room for one reader again"


def test_readers_beyond_the_limit_are_refused_and_a_place_that_is_left_is_free() -> None:
    with door(limit=2) as there, reading(there) as first, reading(there):
        wait_for(lambda: len(there.worker.sinks) == 2, what="two readers")
        with reading(there) as third:
            error = third.error()
        assert isinstance(error, ResourceExhaustedError)
        assert "serves 2 readers" in error.what
        first.reading.leave(0)
        first.reading.wait_until_left(2.0)
        with reading(there) as fourth:
            wait_for(lambda: fourth.errors or len(there.worker.sinks) == 3, what="an answer")
            assert fourth.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", [NotFoundError, ResourceExhaustedError, DataLossError, DsnbError])
@pytest.mark.parametrize("when", ["at the opening", "later"])
def test_an_error_of_the_worker_ends_the_reading_as_itself(cls: type[DsnbError], when: str) -> None:
    error = cls("no task t", did="nothing", hint="ask again")
    with door() as there:
        if when == "at the opening":
            there.worker.refusal = error
        with reading(there) as reader:
            if when == "later":
                there.worker.sink().deliver(piece_of([1]))
                there.worker.sink().fail(error)
            came = reader.error()
    assert type(came) is cls
    assert str(came) == str(error)
    assert len(reader.pieces) == 0, "what came before it was delivered, and cleared by the reader"


def test_an_unexpected_exception_of_the_worker_is_no_reason_to_try_again() -> None:
    with door() as there:
        there.worker.refusal = ZeroDivisionError("by zero")
        with reading(there) as reader:
            came = reader.error()
    assert isinstance(came, DsnbError)
    assert not isinstance(came, UnavailableError)
    assert "by zero" in str(came)


def test_a_worker_that_stops_is_unavailable_to_its_readers() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink()
        there.service.stop()
        assert isinstance(reader.error(), UnavailableError)
        assert len(reader.errors) == 1


def test_a_worker_without_shared_memory_refuses_and_says_why() -> None:
    with door(size=0) as there, reading(there) as reader:
        refusal = reader.error()
        assert isinstance(refusal, TransferRefused)
        assert refusal.what == "the worker is set up without shared memory"
    with door() as there, file_size_limit(MIB), reading(there) as reader:
        assert reader.error().what == "the worker's system refuses shared memory (File too large)"  # type: ignore[attr-defined]


def test_a_host_that_runs_short_has_frames_go_over_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with door() as there, room_for(2 * BIG, monkeypatch), reading(there) as reader:
        for seed in range(4):
            there.worker.sink().deliver(piece_of([data(seed)]))
        elements = reader.elements(4)
        assert all(np.array_equal(element, data(seed)) for seed, element in enumerate(elements))
        link = there.worker.links[0]
        assert (link.fallbacks, link.held_bytes) == (2, 2 * BIG)
        assert link.fallback_reason == "the host is short of memory: No space left on device"
        del elements


def test_a_reader_that_keeps_its_views_gets_its_share_and_leaves_the_rest_to_others() -> None:
    with door(size=8 * MIB) as there, reading(there) as miser:
        there.worker.sink()
        check_sharing_with_a_miser(there, miser)


def check_sharing_with_a_miser(there: Door, miser: SharedReader) -> None:
    with reading(there, client_id="d") as other:
        wait_for(lambda: len(there.worker.sinks) == 2, what="the other one")
        sinks = there.worker.sinks
        links = there.worker.links
        for seed in range(8):
            sinks[0].deliver(piece_of([data(seed)]))
        kept = [miser.take() for _ in range(8)]
        share = 8 // 3
        assert links[0].fallbacks == 8 - share
        assert "which is its share" in links[0].fallback_reason
        for seed in range(6):
            sinks[1].deliver(piece_of([data(seed)]))
            assert np.array_equal(other.take(), data(seed))
            other.reading.credit(seed, seed, 1)
            there.used(share * BIG)
        assert links[1].fallbacks == 0
        assert all(np.array_equal(element, data(seed)) for seed, element in enumerate(kept))
        kept.clear()
        miser.reading.credit(8, 8, 1)
        there.used(0)
        sinks[0].deliver(piece_of([data(9)]))
        assert np.array_equal(miser.take(), data(9))
        assert links[0].fallbacks == 8 - share, "it let go, so slabs are for it again"


def test_many_readers_at_once_come_and_go() -> None:
    with door(limit=100) as there:
        readers = [SharedReader(there.uid, client_id=str(n)) for n in range(40)]
        wait_for(lambda: len(there.worker.sinks) == 40, what="all of them")
        piece = piece_of([data(1)])
        for sink in there.worker.sinks:
            sink.deliver(piece)
        assert all(np.array_equal(reader.take(), data(1)) for reader in readers)
        assert there.pool.used_bytes == BIG, "written once"
        del piece
        for reader in readers:
            reader.reading.leave(1)
            reader.reading.wait_until_left(2.0)
        there.used(0)
        assert sorted(there.worker.said) == [("leave", 1)] * 40


def test_who_has_not_the_token_is_refused_and_shown_no_memory() -> None:
    with door() as there, reading(there, token="wrong") as reader:
        assert isinstance(reader.error(), TransferRefused)
        assert "the token is wrong" in str(reader.error())
        assert there.worker.openings == []
        assert there.service.pool is None


class Stranger:
    """A process of this user that has taken a worker's name on this host."""

    def __init__(self, uid: str, *replies: bytes, descriptor: int = -1) -> None:
        self.heard = bytearray()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(socket_name(uid))
        self._listener.listen(1)
        self._replies, self._descriptor = replies, descriptor
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.heard += connection.recv(1 << 16)
            for reply in self._replies:
                descriptors = [self._descriptor] if self._descriptor >= 0 else []
                socket.send_fds(connection, [reply], descriptors)
            connection.settimeout(10)
            with suppress(OSError):
                while data := connection.recv(1 << 16):
                    self.heard += data


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        pack_message(MessageKind.WELCOME, 1 << 20),
        pack_message(MessageKind.PROOF, text=bytes(52)),
        pack_message(MessageKind.FAIL, text=b"[]"),
        pack_message(MessageKind.END),
        pack_message(MessageKind.BODY, b=10, text=b"x") + bytes(10),
        pack_message(MessageKind.REFUSED, text=b"\xff"),
    ],
    ids=["welcome", "a wrong proof", "an error", "an end", "elements", "a refusal"],
)
def test_who_has_a_workers_name_without_its_proof_is_told_nothing_and_believed_nothing(reply: bytes) -> None:
    uid = f"stolen-{os.getpid()}"
    with memfd(1 << 20) as descriptor, Stranger(uid, reply, descriptor=descriptor) as stranger:
        reader = SharedReader(uid)
        reader.reading.credit(7_777_777, 3, 1 << 20)
        error = reader.error()
        assert isinstance(error, TransferRefused)
        assert reader.pieces == []
        assert reader.notices == []
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)
        head = unpack_header(stranger.heard)
        assert (head.kind, len(stranger.heard)) == (MessageKind.OPEN, HEADER.size + head.length), (
            "nothing but the opening"
        )
        assert TOKEN.encode() not in stranger.heard


@contextmanager
def memfd(size: int) -> Iterator[int]:
    descriptor = os.memfd_create("dsnb-test")
    os.ftruncate(descriptor, size)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_an_opening_that_was_recorded_is_refused_when_it_is_sent_again() -> None:
    with door() as there:
        uid = there.uid.replace("test", "rest")  # as long
        with Stranger(uid) as stranger:
            reader = SharedReader(uid)
            wait_for(lambda: len(stranger.heard) > HEADER.size, what="the opening")
            opening = bytes(stranger.heard)
            reader.reading.leave(0)
            reader.reading.wait_until_left(2.0)
        with connect(there.uid) as line:
            line.sendall(opening.replace(uid.encode(), there.uid.encode()))
            line.settimeout(10)
            assert unpack_header(line.recv(1 << 16)).kind == MessageKind.REFUSED
            close_socket(line)
        caller, request = (
            Caller(),
            encode(ReadRequest(task_id="t", client_id="c", max_bytes=1)),
        )
        shown = encode_proof(caller.proof(TOKEN, PROOF_METHOD, there.uid, request_digest(request)))
        made = pack_message(MessageKind.OPEN, len(shown), text=shown + request)
        kinds = []
        for _ in range(2):
            with connect(there.uid) as line:
                line.sendall(made)
                line.settimeout(10)
                data = line.recv(1 << 16)
                first = unpack_header(data)
                rest = data[HEADER.size + first.length :] or line.recv(1 << 16)
                kinds.append((first.kind, unpack_header(rest).kind))
                close_socket(line)
        assert kinds == [(MessageKind.PROOF, MessageKind.WELCOME), (MessageKind.PROOF, MessageKind.FAIL)]
        assert len(there.worker.openings) == 1


def test_a_stranger_that_sends_without_end_is_hung_up_on() -> None:
    with door() as there, connect(there.uid) as line:
        line.settimeout(10)
        with pytest.raises(OSError):
            line.sendall(pack_message(MessageKind.OPEN)[:5] + b"\xff" * (64 << 20))
        close_socket(line)

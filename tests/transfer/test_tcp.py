"""Reads over TCP: what a worker delivers arrives without another copy, and strangers get and cost nothing."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from dsnb.code.failures import failure_of
from dsnb.elements.allocation import ALIGNMENT
from dsnb.elements.frame import Frame
from dsnb.errors import (
    DataLossError,
    DsnbError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.transfer.admission import Admission
from dsnb.transfer.frame_codec import FrameSliceEncoder
from dsnb.transfer.protocol import FrameSlice, TransferRefused
from dsnb.transfer.tcp import client, server
from dsnb.transfer.tcp.client import TcpEndpoint
from dsnb.transfer.tcp.connection import PlainConnection
from dsnb.transfer.tcp.messages import (
    MAX_PROOF_BYTES,
    PROOF_METHOD,
    ArrayRecycler,
    MessageKind,
    MessageReader,
    pack_header,
    pack_message,
    pack_read_messages,
)
from dsnb.transfer.tcp.server import TcpServer
from dsnb.wire import discovery
from dsnb.wire.certificates import new_certificate
from dsnb.wire.codec import encode
from dsnb.wire.grpc_errors import decode_error
from dsnb.wire.messages import ReadRequest
from dsnb.wire.security import PROOF_HEADER, Caller, Guard, Proof, decode_proof, encode_proof
from tests.support.ports import unused_port
from tests.support.proxy import Proxy
from tests.support.waiting import wait_for
from tests.transfer.test_grpc import Reader, Worker, piece_of
from tests.wire.serving import TOKEN, port_of_nobody

MIB = 1 << 20
_uids = itertools.count()
REQUEST = ReadRequest(task_id="t", client_id="c", max_bytes=MIB)


class Door:
    """A worker that can be read over TCP."""

    def __init__(self, certificate: str = "", limit: int = 10, ports: int | str = 0) -> None:
        self.worker = Worker()
        self.uid = f"test-{os.getpid()}-{next(_uids)}"
        self.service = TcpServer(self.worker, Guard(TOKEN, self.uid), Admission(limit))
        self.service.start("127.0.0.1", ports, certificate)

    @property
    def port(self) -> int:
        return self.service.port


@contextmanager
def door(**settings: Any) -> Iterator[Door]:
    made = Door(**settings)
    try:
        yield made
    finally:
        made.service.stop()


class TcpReader(Reader):
    """A sink that keeps what it gets, with the reading that fills it."""

    def __init__(self, port: int, uid: str, token: str = TOKEN, **opening: Any) -> None:
        self.pieces = []
        self.notices = []
        self.errors = []
        self.heard = threading.Event()
        fields = {"task_id": "t", "client_id": "c", "trainer_id": "", "max_bytes": MIB, **opening}
        self.reading: Any = TcpEndpoint("127.0.0.1", port, token, uid).open(ReadRequest(**fields), self)

    def accepted(self) -> None:
        self.heard.set()


@contextmanager
def reading(there: Door, **settings: Any) -> Iterator[TcpReader]:
    settings = {"port": there.port, "uid": there.uid, **settings}
    reader = TcpReader(**settings)
    try:
        yield reader
    finally:
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)


@contextmanager
def stranger(there: Door) -> Iterator[socket.socket]:
    """A connection of somebody who may know nothing."""
    with socket.create_connection(("127.0.0.1", there.port), 20) as sock:
        yield sock


def proof_for(there: Door, token: str = TOKEN) -> Proof:
    return Caller().proof(token, PROOF_METHOD, there.uid)


def opening_of(proof: Proof, request: ReadRequest = REQUEST) -> bytes:
    """What a reader sends first."""
    signed = proof.signer(to_server=True).sign(encode(request))
    return pack_message(MessageKind.PROOF, encode_proof(proof)) + pack_message(MessageKind.REQUEST, signed)


def answers(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """All messages until the connection ends."""
    messages = MessageReader(PlainConnection(sock), 1 << 30)
    with suppress(EOFError, ConnectionError):
        while True:
            kind, content = messages.next()
            yield kind, bytes(content)


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# ---- what arrives


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
    assert there.worker.openings == [ReadRequest(task_id="t", client_id="c", max_bytes=MIB)]
    assert reader.errors == [], "leaving is no failure"


@pytest.mark.parametrize("nbytes", [1, 65_535, 65_536, 262_144, 300_000, 5 * MIB, 40 * MIB])
def test_elements_of_all_sizes_arrive_whole(nbytes: int) -> None:
    with door() as there, reading(there) as reader:
        for seed in range(3):
            there.worker.sink().deliver(piece_of([noise(nbytes, seed)], seed))
        for seed, element in enumerate(reader.elements(3)):
            assert np.array_equal(element, noise(nbytes, seed))


def test_a_large_element_is_a_read_only_view_of_what_was_received() -> None:
    row = {"image": noise(5 * MIB), "label": np.arange(100_000)}
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(piece_of([row]))
        (element,) = reader.elements(1)
    image, label = element["image"], element["label"]
    assert np.array_equal(image, row["image"])
    assert np.array_equal(label, row["label"])
    assert root_of(image) is root_of(label), "both lie in the one buffer that was received"
    assert [array.ctypes.data % 16 for array in (image, label)] == [0, 0]
    for array in (image, label):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def root_of(array: Any) -> Any:
    """The object that owns an array's memory."""
    while True:
        below = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
        if below is None:
            return array
        array = below


def test_the_worker_sends_the_elements_own_memory() -> None:
    element = noise(5 * MIB)
    [message] = FrameSliceEncoder("t", whole=True).messages(piece_of([element]))
    _, body = pack_read_messages([message])
    assert np.shares_memory(np.frombuffer(body, np.uint8), element)


def test_memory_that_nobody_looks_at_is_received_into_again_and_other_memory_is_not() -> None:
    recycler = ArrayRecycler()
    first = recycler.array(100_000)
    address = first.ctypes.data
    view = np.frombuffer(first.data.toreadonly(), np.uint8)[10:20]
    del first
    assert recycler.array(100_000).ctypes.data != address, "there is a view of it"
    del view
    assert recycler.array(100_000).ctypes.data == address
    assert len(recycler.array(99_999)) == 99_999


def test_messages_are_received_to_where_the_system_copies_fast() -> None:
    recycler = ArrayRecycler()
    kept = [recycler.array(nbytes) for nbytes in range(100_000, 100_016)]
    assert {array.ctypes.data % ALIGNMENT for array in kept} == {0}


def test_elements_that_are_kept_stay_what_they_are() -> None:
    with door() as there, reading(there) as reader:
        kept = {}
        for seed in range(30):
            there.worker.sink().deliver(piece_of([noise(MIB, seed)], seed))
            wait_for(lambda: reader.pieces, what="a piece")
            (element,) = reader.pieces.pop(0).elements()
            if seed % 3 == 0:
                kept[seed] = element
            del element
        assert all(np.array_equal(element, noise(MIB, seed)) for seed, element in kept.items())


def test_an_error_in_an_elements_place_arrives_as_a_piece() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink().deliver(FrameSlice(Frame.of_failure(failure_of(ValueError("bad row"))), 0, 0, 1, 1))
        there.worker.sink().deliver(piece_of([7], 1))
        wait_for(lambda: len(reader.pieces) == 2, what="both pieces")
        with pytest.raises(ValueError, match="bad"):
            reader.pieces[0].elements()
        assert list(reader.pieces[1].elements()) == [7], "reading goes on"


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD"])
def test_a_reader_gets_what_it_asked_for_compressed_and_with_checksums(codec: str) -> None:
    rows = [np.full(300_000, number) for number in range(3)]
    with door() as there, reading(there, compression=codec, codecs=(codec,), checksum=True) as reader:
        there.worker.sink().recalled(5)
        for row in rows:
            there.worker.sink().deliver(piece_of([row]))
        assert all(np.array_equal(mine, its) for mine, its in zip(reader.elements(3), rows, strict=True))
        assert reader.notices == [("recalled", 5)]


def test_an_element_that_is_damaged_on_its_way_is_an_error_and_no_wrong_array() -> None:
    damage = threading.Event()

    def change(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if damage.is_set() and len(data) > 1000 else data

    with door() as there, through_proxy(there, damage=change) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        with reading(there, port=port, checksum=True) as reader:
            there.worker.sink()
            wait_for(reader.heard.is_set, what="the worker's proof")
            damage.set()
            there.worker.sink().deliver(piece_of([noise(MIB)]))
            assert isinstance(reader.error(), DataLossError)
        assert not reader.pieces


def test_a_frame_of_a_shared_window_is_encoded_once_for_all_its_readers() -> None:
    piece = piece_of([1, 2, 3])
    with door() as there, reading(there, trainer_id="a") as one, reading(there, trainer_id="b") as two:
        wait_for(lambda: len(there.worker.sinks) == 2, what="both readers")
        there.worker.sinks[0].deliver(piece)
        there.worker.sinks[1].deliver(piece)
        assert one.elements(1) == two.elements(1) == [1, 2, 3]
        assert list(piece.frame.encoded or {}) == [("", False)]


# ---- what a reader says, and the ends


def test_credit_recalls_and_leaving_arrive_in_order_and_promptly() -> None:
    with door() as there, reading(there) as reader:
        reader.reading.credit(5, 1, 100)
        reader.reading.recall()
        reader.reading.credit(9, 4, 200)
        wait_for(lambda: len(there.worker.said) == 3, what="all three")
        began = time.monotonic()
        reader.reading.leave(17)
        reader.reading.wait_until_left(2.0)
        assert time.monotonic() - began < 2.0  # the least that one without an answer takes
        reader.reading.leave(99)
    assert there.worker.said == [("credit", 5, 1, 100), ("recall",), ("credit", 9, 4, 200), ("leave", 17)]
    assert reader.errors == []


def test_nothing_of_a_read_is_left_after_it() -> None:
    """Sockets and threads, before the worker stops."""
    with door() as there:
        with reading(there) as reader:
            there.worker.sink().deliver(piece_of([noise(MIB)]))
            reader.elements(1)
            assert there.service.debug_state()["connections"] == 1
        wait_for(lambda: there.service.debug_state()["connections"] == 0, what="the connection's end")
        assert not [thread for thread in threading.enumerate() if thread.name == "dsnb-read-t"]


def test_readers_beyond_the_limit_are_refused_and_a_place_that_is_left_is_free() -> None:
    with door(limit=1) as there, reading(there) as first:
        there.worker.sink()
        with reading(there) as second:
            assert isinstance(second.error(), ResourceExhaustedError)
        first.reading.leave(0)
        first.reading.wait_until_left(2.0)

        def served_again() -> bool:
            with reading(there) as third:
                wait_for(lambda: third.errors or len(there.worker.sinks) == 2, what="an answer")
                return not third.errors

        wait_for(served_again, what="the place that was left")


@pytest.mark.parametrize("cls", [NotFoundError, ResourceExhaustedError, DataLossError, UnavailableError, DsnbError])
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
    assert len(reader.pieces) == (when == "later"), "what came before it is delivered"


def test_a_worker_that_stops_is_unavailable_to_its_readers() -> None:
    with door() as there, reading(there) as reader:
        there.worker.sink()
        there.service.stop()
        assert type(reader.error()) is UnavailableError
        assert len(reader.errors) == 1


def test_a_worker_that_stops_does_not_wait_for_a_reader_that_takes_nothing() -> None:
    with door() as there, stranger(there) as sock:
        sock.sendall(opening_of(proof_for(there)))
        for _ in range(20):
            there.worker.sink().deliver(piece_of([noise(8 * MIB)]))
        began = time.monotonic()
        there.service.stop()
        assert time.monotonic() - began < 2.0


def test_a_reader_whose_connection_breaks_has_not_left() -> None:
    with door() as there, through_proxy(there) as proxy:
        with reading(there, port=int(proxy.address.rpartition(":")[2])) as reader:
            there.worker.sink()
            wait_for(reader.heard.is_set, what="the worker's proof")
            proxy.cut()
            assert type(reader.error()) is UnavailableError, "no refusal: the same transfer is tried again"
            wait_for(lambda: there.service.debug_state()["connections"] == 0, what="the connection's end")
        assert there.worker.said == []


@contextmanager
def through_proxy(there: Door, damage: Callable[[bytes], bytes] | None = None) -> Iterator[Proxy]:
    proxy = Proxy(damage=damage)
    proxy.upstream = ("127.0.0.1", there.port)
    try:
        yield proxy
    finally:
        proxy.close()


# ---- strangers


@pytest.mark.parametrize("says", ["nothing", "noise", "a proof without the token", "a request", "too much"])
def test_a_peer_without_a_proof_is_closed_and_gets_nothing(says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PROOF_S", 0.3)
    monkeypatch.setattr(server, "_FAREWELL_S", 0.3)  # the stranger does not close its end
    with door() as there, stranger(there) as sock:
        said = {
            "nothing": b"",
            "noise": b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
            "a proof without the token": opening_of(proof_for(there, "another-token-of-nobody")),
            "a request": pack_message(MessageKind.REQUEST, encode(REQUEST)),
            "too much": pack_header(MessageKind.PROOF, MAX_PROOF_BYTES + 1),
        }
        sock.sendall(said[says])
        got = list(answers(sock))
        assert [kind for kind, _ in got if kind != MessageKind.ERROR] == [], "no proof, and no element"
        assert there.worker.openings == []
        wait_for(lambda: there.service.debug_state()["unproven"] == 0, what="its place to be free")


def test_strangers_take_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_UNPROVEN", 2)
    with door() as there, stranger(there), stranger(there):
        wait_for(lambda: there.service.debug_state()["unproven"] == 2, what="two strangers")
        with stranger(there) as third:
            assert list(answers(third)) == [], "closed at once"


def test_a_replayed_opening_is_refused() -> None:
    with door() as there:
        recorded = opening_of(proof_for(there))
        with stranger(there) as first:
            first.sendall(recorded)
            there.worker.sink()
        with stranger(there) as second:
            second.sendall(recorded)
            kinds = dict(answers(second))
        assert isinstance(decode_error(kinds[MessageKind.ERROR]), PermissionDeniedError)
        assert "this call was made before" in decode_error(kinds[MessageKind.ERROR]).what
        assert len(there.worker.openings) == 1


def test_a_proof_for_grpc_or_for_another_worker_opens_nothing() -> None:
    with door() as there:
        for method, uid in (("/dsnb.v1.Worker/Read", there.uid), (PROOF_METHOD, "another")):
            with stranger(there) as sock:
                sock.sendall(opening_of(Caller().proof(TOKEN, method, uid)))
                assert [kind for kind, _ in answers(sock)] == [MessageKind.ERROR]
        assert there.worker.openings == []


def test_a_request_that_was_changed_on_its_way_is_refused() -> None:
    with door() as there, stranger(there) as sock:
        data = bytearray(opening_of(proof_for(there)))
        data[-20] ^= 1
        sock.sendall(data)
        kinds = dict(answers(sock))
        assert isinstance(decode_error(kinds[MessageKind.ERROR]), DataLossError)
        assert there.worker.openings == []


@contextmanager
def impostor(answer: Callable[[bytes, socket.socket], None]) -> Iterator[int]:
    """A server that is not the worker: it answers the first bytes of one connection; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    answer(sock.recv(1 << 16), sock)
                    while sock.recv(1 << 16):  # until the reader goes
                        pass

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("answer", ["another proof", "elements", "noise", "nothing", "a huge length"])
def test_a_reader_believes_nobody_who_cannot_prove_to_be_the_worker(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ANSWER_S", 0.5)
    proof = Caller().proof("another-token", PROOF_METHOD, "the-worker")
    said = {
        "another proof": pack_message(MessageKind.PROOF, proof.server_mac + bytes(4)),
        "elements": pack_message(MessageKind.READ, b"\x20\x01"),
        "noise": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "nothing": b"",
        "a huge length": pack_header(MessageKind.PROOF, 1 << 50),
    }
    received: list[bytes] = []

    def speak(data: bytes, sock: socket.socket) -> None:
        received.append(data)
        sock.sendall(said[answer])

    with impostor(speak) as port:
        reader = TcpReader(port, "the-worker")
        reader.reading.credit(5, 5, 5)
        error = reader.error()
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)
    assert isinstance(error, TransferRefused)
    assert not reader.heard.is_set()
    assert TOKEN.encode() not in received[0]
    assert reader.pieces == reader.notices == []


@pytest.mark.parametrize("damage", ["a length", "a huge length", "a kind", "a message"])
def test_a_damaged_message_ends_the_reading_with_data_loss(damage: str) -> None:
    """As a memory that cannot be had would end it with another error, and a wrong length would have it wait."""
    damaged = bytearray(pack_header(MessageKind.READ, 100))
    damaged[-3] ^= 1
    said = {
        "a length": bytes(damaged),
        "a huge length": pack_header(MessageKind.READ, 1 << 60),
        "a kind": pack_message(MessageKind.REQUEST, b"\x20\x01"),
        "a message": pack_message(MessageKind.READ, b"\xff\xff"),
    }

    def speak(data: bytes, sock: socket.socket) -> None:
        shown = data[16 : data.index(b"test-damaged") + len(b"test-damaged")]
        guard = Guard(TOKEN, "test-damaged")
        _, answer = guard.admit(PROOF_METHOD, decode_proof(shown))
        sock.sendall(pack_message(MessageKind.PROOF, dict(answer)[PROOF_HEADER]) + said[damage])

    with impostor(speak) as port:
        reader = TcpReader(port, "test-damaged")
        error = reader.error()
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)
    assert isinstance(error, DataLossError)


# ---- where there is no way


def test_where_nobody_listens_the_transfer_is_refused_with_the_reason() -> None:
    with port_of_nobody() as port, reading_at(port) as reader:
        error = reader.error()
    assert isinstance(error, TransferRefused)
    assert f"127.0.0.1:{port} cannot be reached (Connection refused)" in error.what


@contextmanager
def reading_at(port: int) -> Iterator[TcpReader]:
    reader = TcpReader(port, "nobody")
    try:
        yield reader
    finally:
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)


def test_a_port_that_does_not_answer_is_given_up_soon_and_avoided_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "connect", times_out)
    port = unused_port()
    assert client.known_refusal("127.0.0.1", port) == ""
    with reading_at(port) as reader:
        assert "accepts no connection within 3 seconds" in reader.error().what  # type: ignore[attr-defined]
    assert "accepts no connection" in client.known_refusal("127.0.0.1", port)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 1000)
    assert client.known_refusal("127.0.0.1", port) == ""


def times_out(_host: str, _port: int) -> socket.socket:
    """As a connection to a host whose firewall drops it."""
    raise TimeoutError("timed out")


def test_a_data_port_is_in_the_second_half_of_a_range_and_a_short_range_has_none() -> None:
    first = unused_port()
    with door(ports=f"{first}-{first + 9}") as there:
        assert first + 5 <= there.port <= first + 9
    with door(ports=f"{first}-{first + 1}") as there:
        assert there.port == 0


def test_with_tls_all_ports_of_a_range_are_left_for_workers() -> None:
    first = unused_port()
    with door(certificate=new_certificate(), ports=f"{first}-{first + 9}") as there:
        assert there.port == 0


# ---- TLS


@contextmanager
def known(certificate: str) -> Iterator[None]:
    """That this process knows the certificate of the service with the token."""
    discovery.remember_token("127.0.0.1:9", TOKEN, certificate)
    try:
        yield
    finally:
        discovery.forget_token("127.0.0.1:9", TOKEN)


@pytest.fixture(scope="module")
def certificate() -> str:
    return new_certificate()


def test_with_the_services_certificate_all_is_encrypted_and_arrives(certificate: str) -> None:
    seen: list[bytes] = []
    rows = [noise(nbytes, nbytes) for nbytes in (10, 100_000, 9 * MIB)]
    with (
        known(certificate),
        door(certificate=certificate) as there,
        through_proxy(there, damage=lambda data: seen.append(data) or data) as proxy,
    ):
        with reading(there, port=int(proxy.address.rpartition(":")[2])) as reader:
            for row in rows:
                there.worker.sink().deliver(piece_of([row]))
            assert all(np.array_equal(mine, its) for mine, its in zip(reader.elements(3), rows, strict=True))
            reader.reading.credit(5, 1, 100)
            wait_for(lambda: there.worker.said, what="the credit")
        assert rows[1].tobytes()[:100] not in b"".join(seen)
        assert there.worker.said[-1] == ("leave", 0)


@pytest.mark.slow
def test_both_ends_may_send_much_at_once_over_tls(certificate: str) -> None:
    with known(certificate), door(certificate=certificate) as there, reading(there) as reader:
        sink = there.worker.sink()
        for number in range(200):
            sink.deliver(piece_of([np.full(200_000, number % 251, np.uint8)], number))
            reader.reading.credit(number, 0, MIB)
        assert [int(element[-1]) for element in reader.elements(200)] == [number % 251 for number in range(200)]
        wait_for(lambda: len(there.worker.said) == 200, what="all credit")
        assert [said[1] for said in there.worker.said] == list(range(200))


def test_a_worker_with_another_certificate_is_refused(certificate: str) -> None:
    with known(new_certificate()), door(certificate=certificate) as there, reading(there) as reader:
        error = reader.error()
        assert isinstance(error, TransferRefused)
        assert "TLS with" in error.what
        assert there.worker.openings == []


@pytest.mark.parametrize("worker_has_one", [False, True])
def test_a_plain_and_an_encrypted_end_do_not_meet(certificate: str, worker_has_one: bool) -> None:
    mine, its = ("", certificate) if worker_has_one else (certificate, "")
    with known(mine), door(certificate=its) as there, reading(there) as reader:
        assert isinstance(reader.error(), TransferRefused)
        assert there.worker.openings == []

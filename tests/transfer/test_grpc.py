"""Reads over gRPC: what a worker delivers arrives, what a reader says arrives, and every end is told to both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame, frames_of
from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from dsnb.transfer.admission import Admission
from dsnb.transfer.compression_policy import CompressionPolicy
from dsnb.transfer.frame_codec import FrameSliceDecoder, FrameSliceEncoder, join_messages, split_messages
from dsnb.transfer.grpc import GrpcEndpoint, ReadService
from dsnb.transfer.protocol import FrameSlice, LinkStats, ReadHandle, Sink
from dsnb.transfer.stream import StreamSink
from dsnb.wire.channel import Channel, Stream, open_channel
from dsnb.wire.messages import ReadRequest
from dsnb.wire.methods import READ
from dsnb.wire.proto import frame_pb2
from dsnb.wire.server import GrpcServer
from tests.support.proxy import poor_link
from tests.support.waiting import wait_for
from tests.wire.serving import TOKEN, address, serving

UID = "the-worker"


class Worker:
    """An endpoint that keeps what its readers say, and lets the test deliver."""

    def __init__(self) -> None:
        self.openings: list[ReadRequest] = []
        self.links: list[LinkStats | None] = []
        self.sinks: list[Sink] = []
        self.said: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None

    def open(self, request: ReadRequest, sink: Sink, link_stats: LinkStats | None = None) -> ReadHandle:
        if self.refusal is not None:
            raise self.refusal
        self.openings.append(request)
        self.links.append(link_stats)
        self.sinks.append(sink)
        return _Told(self.said)

    def sink(self) -> Sink:
        """Of the newest reader."""
        return wait_for(lambda: self.sinks, what="a reader")[-1]


class _Told(ReadHandle):
    def __init__(self, said: list[tuple[Any, ...]]) -> None:
        self._said = said

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, dequeued: int = 0) -> None:
        self._said.append(("credit", granted, consumed, max_bytes))

    def recall(self) -> None:
        self._said.append(("recall",))

    def leave(self, consumed: int) -> None:
        self._said.append(("leave", consumed))


class Reader(Sink):
    """A sink that keeps what it gets, with the reading that fills it."""

    def __init__(self, target: str, token: str = TOKEN, uid: str = UID, **opening: Any) -> None:
        self.pieces: list[FrameSlice] = []
        self.notices: list[Any] = []
        self.errors: list[Exception] = []
        fields = {"task_id": "t", "client_id": "c", "trainer_id": "", "max_bytes": 1 << 20, **opening}
        self.reading: Any = GrpcEndpoint(target, token, uid).open(ReadRequest(**fields), self)

    def deliver(self, piece: FrameSlice) -> None:
        self.pieces.append(piece)

    def end(self) -> None:
        self.notices.append("end")

    def recalled(self, granted: int) -> None:
        self.notices.append(("recalled", granted))

    def progress(self, whole: int, base: int) -> None:
        raise AssertionError("only consumers of coordinated reads are told of whole turns")

    def fail(self, error: Exception) -> None:
        self.errors.append(error)

    def error(self) -> Exception:
        """What the reading ended with."""
        return wait_for(lambda: self.errors, what="the reading to fail")[0]

    def elements(self, count: int) -> list[Any]:
        """So many pieces' elements."""
        pieces = wait_for(lambda: len(self.pieces) >= count and self.pieces, what=f"{count} pieces")
        return [element for piece in pieces for element in piece.elements()]


@contextmanager
def reading(target: str, **settings: Any) -> Iterator[Reader]:
    reader = Reader(target, **settings)
    try:
        yield reader
    finally:
        reader.reading.leave(0)
        reader.reading.wait_until_left(2.0)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def server(worker: Worker) -> Iterator[GrpcServer]:
    with served(worker) as server:
        yield server


@contextmanager
def served(worker: Worker, max_streams: int = 100, port: int = 0) -> Iterator[GrpcServer]:
    service = ReadService(worker, Admission(max_streams))
    with serving({READ: service.read}, port=port, instance=UID) as server:
        yield server
    service.stop()


def piece_of(run: Any, index: int = 0) -> FrameSlice:
    (frame,) = frames_of(run, None)
    assert isinstance(frame, Frame)
    return FrameSlice(frame, index, 0, frame.count, 1)


def test_what_a_reader_says_when_it_opens_arrives(server: GrpcServer, worker: Worker) -> None:
    told = {"task_id": "a", "client_id": "b", "trainer_id": "lr=0.1", "max_bytes": 9, "granted": 5, "received": 4,
            "consumed": 3}  # fmt: skip
    with reading(address(server), **told):
        worker.sink()
    assert worker.openings == [ReadRequest(**told)]


def test_pieces_and_notices_arrive_in_order(server: GrpcServer, worker: Worker) -> None:
    with reading(address(server)) as reader:
        sink = worker.sink()
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


def test_an_error_in_an_elements_place_arrives_as_a_piece(server: GrpcServer, worker: Worker) -> None:
    with reading(address(server)) as reader:
        failure = failure_of(ValueError("bad \udcff row"))
        worker.sink().deliver(FrameSlice(Frame.of_failure(failure), 0, 0, 1, 1))
        worker.sink().deliver(piece_of([7], 1))
        wait_for(lambda: len(reader.pieces) == 2, what="both pieces")
        with pytest.raises(ValueError, match="bad"):
            reader.pieces[0].elements()
        assert list(reader.pieces[1].elements()) == [7], "reading goes on"


def test_credit_and_recalls_arrive_in_order(server: GrpcServer, worker: Worker) -> None:
    with reading(address(server)) as reader:
        reader.reading.credit(5, 1, 100)
        reader.reading.recall()
        reader.reading.credit(9, 4, 200)
        wait_for(lambda: len(worker.said) == 3, what="all three")
        assert worker.said == [("credit", 5, 1, 100), ("recall",), ("credit", 9, 4, 200)]


def test_leaving_is_told_with_what_was_consumed_and_is_prompt(server: GrpcServer, worker: Worker) -> None:
    with reading(address(server)) as reader:
        worker.sink()
        began = time.monotonic()
        reader.reading.leave(17)
        reader.reading.wait_until_left(2.0)
        assert time.monotonic() - began < 2.0  # the least that one without an answer takes
        reader.reading.leave(99)
        wait_for(lambda: worker.said, what="the leaving")
    assert worker.said == [("leave", 17)]
    assert reader.errors == []


def test_readers_beyond_the_limit_are_refused_and_a_place_that_is_left_is_free(worker: Worker) -> None:
    with served(worker, max_streams=2) as server, reading(address(server)) as first, reading(address(server)):
        wait_for(lambda: len(worker.sinks) == 2, what="two readers")
        with reading(address(server)) as third:
            error = third.error()
        assert isinstance(error, ResourceExhaustedError)
        assert "serves 2 readers" in error.what
        assert "max_readers" in error.hint
        first.reading.leave(0)
        first.reading.wait_until_left(2.0)

        def served_again() -> bool:
            with reading(address(server)) as fourth:
                wait_for(lambda: fourth.errors or len(worker.sinks) == 3, what="an answer")
                return not fourth.errors

        wait_for(served_again, what="the place that was left")


@pytest.mark.parametrize("cls", [NotFoundError, ResourceExhaustedError, DataLossError, DsnbError])
@pytest.mark.parametrize("when", ["at the opening", "later"])
def test_an_error_of_the_worker_ends_the_reading_as_itself(
    server: GrpcServer, worker: Worker, cls: type[DsnbError], when: str
) -> None:
    error = cls("no task t", did="nothing", hint="ask again")
    if when == "at the opening":
        worker.refusal = error
    with reading(address(server)) as reader:
        if when == "later":
            worker.sink().deliver(piece_of([1]))
            worker.sink().fail(error)
        came = reader.error()
    assert type(came) is cls
    assert str(came) == str(error)
    assert len(reader.pieces) == (when == "later"), "what came before it is delivered"


def test_an_unexpected_exception_of_the_worker_is_no_reason_to_try_again(server: GrpcServer, worker: Worker) -> None:
    worker.refusal = ZeroDivisionError("by zero")
    with reading(address(server)) as reader:
        came = reader.error()
    assert isinstance(came, DsnbError)
    assert not isinstance(came, UnavailableError)
    assert "by zero" in str(came)


def test_a_worker_that_stops_is_unavailable_to_its_readers(worker: Worker) -> None:
    with served(worker) as server:
        reader = Reader(address(server))
        worker.sink()
        server.stop(0)
        came = reader.error()
    assert isinstance(came, UnavailableError)
    assert len(reader.errors) == 1
    reader.reading.leave(0)
    reader.reading.wait_until_left(2.0)


def test_where_nobody_listens_a_reading_fails_as_unavailable(worker: Worker) -> None:
    with served(worker) as server:
        pass
    with reading(address(server)) as reader:
        assert isinstance(reader.error(), UnavailableError)


def test_a_refusal_without_a_proof_is_no_word_of_the_worker(server: GrpcServer, worker: Worker) -> None:
    with reading(address(server), token="wrong") as reader:
        error = reader.error()
        assert isinstance(error, UnavailableError)
        assert "could not prove that it is the expected server; it says: the token is wrong" in error.what
    assert worker.openings == []


def test_a_reader_whose_connection_breaks_has_not_left(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent to it is kept until the dispatcher says that it is gone."""
    streams, stream = list[Stream[Any]](), Channel.stream

    def stream_and_note(channel: Channel, *args: Any, **options: Any) -> Stream[Any]:
        streams.append(stream(channel, *args, **options))
        return streams[-1]

    monkeypatch.setattr(Channel, "stream", stream_and_note)
    with served(worker) as server:
        reader = Reader(address(server))
        worker.sink()
        streams[0].cancel()
        reader.error()
        wait_for(lambda: not _readers(), what="the worker's threads to let go")
    assert worker.said == []
    reader.reading.leave(0)
    reader.reading.wait_until_left(2.0)


def _readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dsnb-read-")]


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff\xff"],
        [b""],
        [b"\x0a\x05abc"],
        [frame_pb2.ReadReply(total=2**60, header={"count": 1, "structure": "0"}).SerializeToString()],
        [b"\x0a" + b"\xff" * 50],
    ],
    ids=["noise", "nothing", "cut", "a huge total", "no length"],
)
def test_a_damaged_message_ends_the_reading_with_data_loss(messages: list[bytes]) -> None:
    """And its reader is told: a thread that died of it would leave the reader waiting."""

    def read(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from messages

    with serving({READ: read}, instance=UID) as server, reading(address(server)) as reader:
        assert isinstance(reader.error(), DataLossError)


def test_a_worker_that_ends_the_stream_by_itself_is_told_as_unavailable() -> None:
    def read(requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield frame_pb2.ReadReply(end=True).SerializeToString()

    with serving({READ: read}, instance=UID) as server, reading(address(server)) as reader:
        assert isinstance(reader.error(), UnavailableError)
    assert reader.notices == ["end"]


def test_a_frame_of_a_shared_window_is_encoded_once_for_all_its_readers(server: GrpcServer, worker: Worker) -> None:
    piece = piece_of([1, 2, 3])
    with reading(address(server), trainer_id="a") as one:
        worker.sink().deliver(piece)
        assert one.elements(1) == [1, 2, 3]
        kept = piece.frame.encoded
        assert kept is not None
        with reading(address(server), trainer_id="b") as two:
            wait_for(lambda: len(worker.sinks) == 2, what="the second reader")
            worker.sink().deliver(piece)
            assert two.elements(1) == [1, 2, 3]
    assert piece.frame.encoded is kept


def test_a_frame_for_one_reader_is_not_kept_twice(server: GrpcServer, worker: Worker) -> None:
    piece = piece_of([1, 2, 3])
    with reading(address(server)) as reader:
        worker.sink().deliver(piece)
        assert reader.elements(1) == [1, 2, 3]
    assert piece.frame.encoded is None


# ---- compression and checksums


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD"])
def test_a_reader_gets_what_it_asked_for_compressed(server: GrpcServer, worker: Worker, codec: str) -> None:
    rows = [np.full(300_000, number) for number in range(3)]
    with reading(address(server), trainer_id="a", compression=codec, codecs=(codec,), checksum=True) as reader:
        worker.sink().recalled(5)
        for row in rows:
            worker.sink().deliver(piece_of([row]))
        worker.sink().end()
        assert all(np.array_equal(mine, its) for mine, its in zip(reader.elements(3), rows, strict=True))
        wait_for(lambda: reader.notices == [("recalled", 5), "end"], what="the notices")


def test_auto_compresses_what_gets_much_smaller_and_leaves_noise_alone(server: GrpcServer, worker: Worker) -> None:
    """Whatever is decided, all arrives; that noise is not compressed is certain on any link."""
    noise = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8)
    frames = [piece_of([noise]) for _ in range(4)]
    with reading(address(server), trainer_id="a", compression="AUTO", codecs=("LZ4", "ZSTD")) as reader:
        for piece in frames:
            worker.sink().deliver(piece)
        assert all(np.array_equal(element, noise) for element in reader.elements(4))
    assert {form for piece in frames for form in piece.frame.encoded or {}} <= {("", False)}


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True], ids=["smooth", "noisy"])
def test_auto_over_a_slow_link_compresses_what_gets_much_smaller_and_nothing_else(
    server: GrpcServer, worker: Worker, noisy: bool
) -> None:
    """At 8 MB/s both are certain on any machine; the first frames go as they are, for the link is not known."""
    chance, rows, frames = np.random.default_rng(0), list[Any](), list[FrameSlice]()

    def used() -> list[str]:
        return [codec for piece in frames for codec, _ in piece.frame.encoded or {}]

    def enough_arrived() -> bool:
        """Deliver another one, unless some are under way."""
        if len(frames) < len(reader.pieces) + 4:
            rows.append(chance.integers(0, 256, 1 << 20, np.uint8) if noisy else np.full(1 << 17, len(rows)))
            frames.append(piece_of([rows[-1]]))
            worker.sink().deliver(frames[-1])
        return len(reader.pieces) >= 10 and (noisy or any(used()))

    with poor_link(bytes_s=8e6) as link:
        link.upstream = ("127.0.0.1", server.port)
        with reading(link.address, trainer_id="a", compression="AUTO", codecs=("LZ4", "ZSTD")) as reader:
            wait_for(enough_arrived, what="ten frames, and of smooth ones some that were compressed", timeout=60)
            assert all(np.array_equal(*pair) for pair in zip(reader.elements(10), rows, strict=False))
    assert not any(used()[:2])
    assert any(used()) is not noisy


def test_a_codec_that_is_missing_at_the_worker_says_so(
    server: GrpcServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsnb.transfer.stream.installed_codecs", lambda: ())
    with reading(address(server), compression="LZ4", codecs=("LZ4",)) as reader:
        error = reader.error()
    assert isinstance(error, FailedPreconditionError)
    assert "LZ4 is not installed at the worker" in str(error)
    assert "dsnb[compression]" in str(error)
    with reading(address(server), compression="AUTO", codecs=("LZ4",)) as reader:
        worker.sink().deliver(piece_of([1, 2]))
        assert reader.elements(1) == [1, 2]


def test_a_frame_that_is_damaged_on_its_way_is_an_error_and_no_wrong_array() -> None:
    (message,) = FrameSliceEncoder("t", checksum=True).encode(piece_of([np.arange(100)]))
    damaged = bytearray(message)
    damaged[-9] ^= 1

    def read(requests: Any, _: Any) -> Iterator[bytes]:
        next(requests)
        yield bytes(damaged)

    with serving({READ: read}, instance=UID) as server, reading(address(server), checksum=True) as reader:
        error = reader.error()
    assert isinstance(error, DataLossError)
    assert "checksum" in str(error)
    assert not reader.pieces


# ---- a reader that is late


def sent(rows: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages of so many elements of 1 MB and an error, who all wait for a reader that takes so long for each."""
    now = 0

    def clock() -> int:
        return now

    monkeypatch.setattr("dsnb.transfer.stream.perf_counter_ns", clock)
    sink = StreamSink(CompressionPolicy("NONE", [], same_host=True), LinkStats(transfer="grpc"))
    for row in range(rows):
        sink.deliver(piece_of([np.full(1 << 17, row)], row))
    sink.end()
    sink.fail(NotFoundError("gone"))
    messages: list[bytes] = []
    with pytest.raises(NotFoundError):  # noqa: PT012 - behind all that waited before it
        for batch in sink.send(FrameSliceEncoder("t")):
            messages.append(join_messages(batch))
            now += int(seconds * 1e9)
    return messages


def came(messages: list[bytes]) -> list[Any]:
    """What a reader gets of them: the first number of each element, and what else is told."""
    decoder = FrameSliceDecoder()
    items = [decoder.feed(one) for message in messages for one in split_messages(message)]
    return [item.elements()[0][0] if isinstance(item, FrameSlice) else item and item.end for item in items]


def test_what_waits_for_a_reader_that_shares_its_interpreter_with_a_busy_loop_goes_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = sent(20, 0.02, monkeypatch)
    assert len(messages) < 10
    assert max(map(len, messages)) < 6 << 20
    assert came(messages) == [*range(20), True]


def test_a_reader_in_time_gets_each_element_in_a_message_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = sent(20, 0.001, monkeypatch)
    assert len(messages) == 21
    assert came(messages) == [*range(20), True]


@contextmanager
def taking(server: GrpcServer) -> Iterator[tuple[Callable[[int], None], Iterator[bytes]]]:
    """A reader that takes each message when it is asked to; with how it says that so many elements are consumed."""
    said: SimpleQueue[ReadRequest | None] = SimpleQueue()
    said.put(ReadRequest(task_id="t", client_id="c", max_bytes=1 << 20))
    channel = open_channel(address(server), TOKEN, UID)
    call = channel.stream(READ, iter(said.get, None))
    try:
        yield lambda count: said.put(ReadRequest(granted=1000, received=count, consumed=count, max_bytes=1 << 20)), call
    finally:
        said.put(None)
        call.cancel()
        channel.close()


def test_small_elements_for_a_late_reader_wait_together_for_its_word(
    server: GrpcServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that stands still but for the second in which the reader took one of four."""
    now = 0
    monkeypatch.setattr("dsnb.transfer.stream.perf_counter_ns", lambda: now)
    with taking(server) as (consumed, messages):
        sink: Any = worker.sink()

        def deliver(number: int) -> None:
            sink.deliver(piece_of([np.full(4, number)], number))

        for number in range(4):
            deliver(number)
            assert came([next(messages)]) == [number]
        consumed(1)
        wait_for(lambda: len(worker.said) == 1, what="its first word, at once")
        now += 10**9
        consumed(1)
        consumed(1)  # when this one is heard, the other has been taken in
        wait_for(lambda: len(worker.said) == 3, what="its words, much later")
        for number in range(4, 40):
            deliver(number)
        wait_for(sink.items.empty, what="the sender to take them")
        consumed(4)
        assert came([next(messages)]) == [*range(4, 40)]
        deliver(40)
        assert came([next(messages)]) == [40], "in time again"

"""Only who knows the token calls a server, only who knows it answers, and no call is made twice by somebody else.

The attacks on whole services, with processes and sockets, are in `tests/security`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dsnb.errors import (
    DataLossError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from dsnb.wire.codec import encode
from dsnb.wire.messages import BlobPiece, BlobRequest, Empty, ForgetRequest, WorkerOrder, WorkerReport
from dsnb.wire.methods import FORGET, GET_BLOB, HELLO, PUT_BLOB, SESSION, Method
from dsnb.wire.security import (
    FRESH,
    HELLO_PATH,
    MAX_CALLERS,
    OLD,
    PROOF_HEADER,
    PROTOCOL_VERSION,
    SEEN,
    TAG_BYTES,
    VERSION_HEADER,
    WINDOW_BITS,
    Caller,
    Guard,
    Nonces,
    Proof,
    Refusal,
    Signer,
    call_metadata,
    check_token,
    load_or_create_token,
    new_token,
    pack_nonce,
    read_token_file,
    request_digest,
    token_from_environment,
)
from dsnb.wire.server import GrpcServer
from tests.support.reading import run_in_threads
from tests.wire.serving import TOKEN, BareCaller, address, channel_to, refusal_of, serving

MESSAGES: dict[Method[Any, Any], Any] = {
    FORGET: ForgetRequest(job_name="j"),
    PUT_BLOB: BlobPiece(digest="d"),
    GET_BLOB: BlobRequest(digest="d"),
    SESSION: WorkerReport(uid="u"),
}
EACH_KIND = pytest.mark.parametrize("method", MESSAGES, ids=lambda method: method.kind)


@pytest.fixture
def reached() -> list[str]:
    """The names of the methods whose handler ran to its end."""
    return []


@pytest.fixture
def server(reached: list[str]) -> Iterator[GrpcServer]:
    def streamed(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        is_blob = isinstance(request, BlobRequest)
        if not is_blob:
            list(request)
        reached.append("stream")
        yield BlobPiece() if is_blob else WorkerOrder()

    def plain(request: Any, context: grpc.ServicerContext) -> Empty:
        if not isinstance(request, ForgetRequest):
            list(request)
        reached.append("plain")
        return Empty()

    with serving({FORGET: plain, PUT_BLOB: plain, GET_BLOB: streamed, SESSION: streamed}) as server:
        yield server


@pytest.fixture
def caller(server: GrpcServer) -> Iterator[BareCaller]:
    with BareCaller(address(server)) as caller:
        yield caller


def prepared(caller: BareCaller, method: Method[Any, Any]) -> tuple[Proof, bytes | list[bytes]]:
    """A call as dsnb makes it: its proof, and its message or messages."""
    data = encode(MESSAGES[method])
    if not method.kind.startswith("stream"):
        return caller.proof(method, data), data
    proof = caller.proof(method)
    return proof, [proof.signer(to_server=True).sign(data)]


# ---- who calls


@EACH_KIND
def test_every_kind_of_call_is_answered_to_who_proves_to_know_the_token(
    caller: BareCaller, method: Any, reached: list[str]
) -> None:
    proof, data = prepared(caller, method)
    caller.send(method, data, call_metadata(proof))
    assert len(reached) == 1


def nothing(proof: Proof) -> Any:
    return ()


def no_proof(proof: Proof) -> Any:
    return ((VERSION_HEADER, PROTOCOL_VERSION),)


def with_token(token: str) -> Callable[[Proof], Any]:
    return lambda proof: call_metadata(Proof(token, proof.path, proof.instance, proof.nonce, proof.digest))


def the_token_itself(proof: Proof) -> Any:
    return (("dsnb-token", TOKEN), (VERSION_HEADER, PROTOCOL_VERSION))


def of_version(version: str) -> Callable[[Proof], Any]:
    return lambda proof: ((VERSION_HEADER, version), *call_metadata(proof)[1:])


def without_a_version(proof: Proof) -> Any:
    return call_metadata(proof)[1:]


def cut(proof: Proof) -> Any:
    (version, (name, header)) = call_metadata(proof)
    return (version, (name, header[:50]))


def for_another_instance(proof: Proof) -> Any:
    return call_metadata(Proof(TOKEN, proof.path, "0" * 16, proof.nonce, proof.digest))


def for_another_method(proof: Proof) -> Any:
    return call_metadata(Proof(TOKEN, "/dsnb.v1.Dispatcher/Status", proof.instance, proof.nonce, proof.digest))


def reflected(proof: Proof) -> Any:
    """A server's proof where a caller's is due."""
    (version, (name, header)) = call_metadata(proof)
    return (version, (name, header[:56] + proof.server_mac + header[88:]))


@pytest.mark.slow
@EACH_KIND
@pytest.mark.parametrize(
    "show, error, text",
    [
        (nothing, PermissionDeniedError, "none was given"),
        (no_proof, PermissionDeniedError, "none was given"),
        (with_token("wrong"), PermissionDeniedError, "the token is wrong"),
        (with_token(TOKEN[:-1]), PermissionDeniedError, "the token is wrong"),
        (with_token(TOKEN + "x"), PermissionDeniedError, "the token is wrong"),
        (with_token(""), PermissionDeniedError, "the token is wrong"),
        (the_token_itself, PermissionDeniedError, "none was given"),
        (cut, PermissionDeniedError, "none was given"),
        (of_version("1"), FailedPreconditionError, f"version 1 of the protocol, this server {PROTOCOL_VERSION}"),
        (of_version("99"), FailedPreconditionError, f"version 99 of the protocol, this server {PROTOCOL_VERSION}"),
        (without_a_version, FailedPreconditionError, f"version None of the protocol, this server {PROTOCOL_VERSION}"),
        (for_another_instance, UnavailableError, "another instance"),
        (for_another_method, PermissionDeniedError, "the token is wrong"),
        (reflected, PermissionDeniedError, "the token is wrong"),
    ],
    ids=[
        "nothing",
        "no proof",
        "a wrong token",
        "a shorter token",
        "a longer token",
        "an empty token",
        "the token itself",
        "a cut proof",
        "version 1",
        "version 99",
        "no version",
        "for another instance",
        "for another method",
        "reflected",
    ],
)
def test_other_callers_are_refused_before_any_handler(
    caller: BareCaller, method: Any, show: Any, error: type[DsnbError], text: str, reached: list[str]
) -> None:
    proof, data = prepared(caller, method)
    refused = refusal_of(caller, method, data, show(proof))
    assert isinstance(refused, error), refused
    assert text in refused.what
    assert reached == []
    assert TOKEN not in str(refused)


def test_the_version_of_an_older_dsnb_is_told_in_words_that_it_shows(caller: BareCaller) -> None:
    """Version 1 sent its token with the first call; it gets a page, and knows how to show one."""
    shown = (("dsnb-token", TOKEN), ("dsnb-version", "1"))
    refused = refusal_of(caller, FORGET, b"", shown)
    assert isinstance(refused, FailedPreconditionError)
    assert str(refused).splitlines() == [
        f"the caller speaks version 1 of the protocol, this server {PROTOCOL_VERSION}",
        "  dsnb: nothing was changed",
        "  try:  install the same version of dsnb on both sides",
    ]


def test_a_wrong_token_is_told_at_once_and_says_what_to_try(server: GrpcServer) -> None:
    with channel_to(address(server), "wrong") as channel, pytest.raises(PermissionDeniedError) as caught:
        channel.call(FORGET, ForgetRequest(), timeout=60)
    for way in ("connect(token=...)", "DSNB_TOKEN", "--token-file", "svc.token"):
        assert way in caught.value.hint


def test_a_token_may_have_any_characters(tmp_path: Path) -> None:
    """It is a key, and is not sent."""
    token = "schlüssel \u2713"
    server = GrpcServer("test", {FORGET: lambda request, context: Empty()}, token)
    server.start("127.0.0.1", 0)
    try:
        with channel_to(address(server), token) as channel:
            assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()
    finally:
        server.stop(0)


def test_a_call_to_an_unknown_instance_may_only_be_a_hello(caller: BareCaller, reached: list[str]) -> None:
    data = encode(MESSAGES[FORGET])
    proof = caller.caller.proof(TOKEN, FORGET.path, "", request_digest(data))
    assert "another instance" in refusal_of(caller, FORGET, data, call_metadata(proof)).what
    assert reached == []
    assert caller.hello()


def test_a_server_that_callers_know_by_a_name_says_no_hello() -> None:
    """A worker's uid comes from its dispatcher; so a worker cannot be passed off as one."""
    handlers = {FORGET: lambda request, context: Empty()}
    with serving(handlers, instance="the-worker") as server:
        with BareCaller(address(server)) as caller:
            proof = caller.caller.proof(TOKEN, HELLO.path, "", request_digest(b""))
            refused = refusal_of(caller, HELLO, b"", call_metadata(proof))
        assert "does not know this call" in refused.what
        with channel_to(address(server)) as channel, pytest.raises(FailedPreconditionError, match="a worker where"):
            channel.call(FORGET, ForgetRequest(), timeout=60)


# ---- what is called


def test_a_request_that_was_changed_on_its_way_is_not_carried_out(caller: BareCaller, reached: list[str]) -> None:
    data = encode(MESSAGES[FORGET])
    proof = caller.proof(FORGET, data)
    refused = refusal_of(caller, FORGET, encode(ForgetRequest(job_name="k")), call_metadata(proof))
    assert "changed on its way" in refused.what
    assert reached == []


@pytest.mark.parametrize("change", ["changed", "left out", "repeated", "swapped", "cut", "without a tag"])
def test_messages_of_a_stream_that_were_changed_on_their_way_end_it(
    caller: BareCaller, change: str, reached: list[str]
) -> None:
    proof = caller.proof(PUT_BLOB)
    signer = proof.signer(to_server=True)
    one, two, three = (signer.sign(encode(BlobPiece(data=bytes([number])))) for number in range(3))
    sent = {
        "changed": [one, two[:2] + bytes([two[2] ^ 1]) + two[3:], three],
        "left out": [one, three],
        "repeated": [one, two, two],
        "swapped": [one, three, two],
        "cut": [one, two[:-1], three],
        "without a tag": [one, two[:-TAG_BYTES], three],
    }[change]
    assert "changed on its way" in refusal_of(caller, PUT_BLOB, sent, call_metadata(proof)).what
    assert reached == []


@EACH_KIND
def test_a_call_that_is_made_again_by_whoever_recorded_it_is_refused(
    caller: BareCaller, server: GrpcServer, method: Any, reached: list[str]
) -> None:
    proof, data = prepared(caller, method)
    caller.send(method, data, call_metadata(proof))
    with BareCaller(address(server)) as recorder:
        refused = refusal_of(recorder, method, data, call_metadata(proof))
    assert isinstance(refused, PermissionDeniedError)
    assert "made before" in refused.what
    assert len(reached) == 1


def test_a_recorded_call_is_of_no_use_to_the_same_service_started_again(reached: list[str]) -> None:
    def forget(request: Any, context: grpc.ServicerContext) -> Empty:
        reached.append("plain")
        return Empty()

    with serving({FORGET: forget}) as first, BareCaller(address(first)) as caller:
        proof, data = prepared(caller, FORGET)
        caller.send(FORGET, data, call_metadata(proof))
    with serving({FORGET: forget}, port=first.port) as second, BareCaller(address(second)) as recorder:
        refused = refusal_of(recorder, FORGET, data, call_metadata(proof))
        assert "another instance" in refused.what
        # Naming the new instance does not help, for the proof is of the old one.
        (version, (name, header)) = call_metadata(proof)
        renamed = (version, (name, header[: -len(proof.instance)] + recorder.hello().encode()))
        assert isinstance(refusal_of(recorder, FORGET, data, renamed), PermissionDeniedError)
    assert reached == ["plain"]


# ---- the guard


def admitted(guard: Guard, proof: Proof) -> bool:
    try:
        guard.admit(proof.path, dict(call_metadata(proof)))
    except Refusal:
        return False
    return True


def test_a_caller_believes_only_the_instance_that_it_called() -> None:
    guard, other, caller = Guard(TOKEN), Guard(TOKEN), Caller()
    proof = caller.proof(TOKEN, FORGET.path, guard.instance)
    _, answer = guard.admit(FORGET.path, dict(call_metadata(proof)))
    assert caller.accepts(proof, answer)
    for token, instance in [("wrong", guard.instance), (TOKEN, other.instance)]:
        fake = Proof(token, FORGET.path, instance, proof.nonce).server_mac
        changed = ((PROOF_HEADER, fake + answer[0][1][32:]),)
        assert not caller.accepts(proof, changed)
    # A caller's own proof, an answer to another call, and what is no answer at all.
    later = caller.proof(TOKEN, FORGET.path, guard.instance)
    assert not caller.accepts(later, answer)
    assert not caller.accepts(proof, ((PROOF_HEADER, proof.client_mac + answer[0][1][32:]),))
    for nonsense in (None, (), ((PROOF_HEADER, b""),), ((PROOF_HEADER, bytes(36)),), ((PROOF_HEADER, bytes(500)),)):
        assert not caller.accepts(proof, nonsense)


def test_the_answer_to_a_hello_tells_an_instance_only_with_its_proof() -> None:
    guard, caller = Guard(TOKEN), Caller()
    proof = caller.proof(TOKEN, HELLO_PATH, "")
    _, answer = guard.admit(HELLO_PATH, dict(call_metadata(proof)))
    renamed = ((PROOF_HEADER, answer[0][1][:36] + b"0" * 16),)
    assert not caller.accepts(proof, renamed)
    assert proof.instance == ""
    assert caller.accepts(proof, answer)
    assert proof.instance == guard.instance


def test_a_server_that_has_no_token_yet_lets_nobody_in() -> None:
    known = [""]
    guard = Guard(lambda: known[0], "the-worker")
    with pytest.raises(Refusal, match="not joined"):
        guard.admit(FORGET.path, dict(call_metadata(Caller().proof("", FORGET.path, "the-worker"))))
    known[0] = TOKEN
    assert admitted(guard, Caller().proof(TOKEN, FORGET.path, "the-worker"))


def test_calls_of_many_threads_are_each_let_in_once_in_whatever_order_they_come() -> None:
    guard, caller = Guard(TOKEN, "w"), Caller()
    proofs = [caller.proof(TOKEN, FORGET.path, "w") for _ in range(400)]
    mixed = [proofs[number * 37 % 400] for number in range(400)]
    taken = run_in_threads([lambda: [admitted(guard, proof) for proof in mixed] for _ in range(4)])
    assert [sum(each) for each in zip(*taken, strict=True)] == [1] * 400


def admit_new_caller(guard: Guard) -> int:
    """Make a new caller known to a guard; returns the guard's generation."""
    caller = Caller()
    while True:
        proof = caller.proof(TOKEN, FORGET.path, guard.instance)
        try:
            _, answer = guard.admit(FORGET.path, dict(call_metadata(proof)))
        except Refusal as refusal:
            caller.accepts(proof, refusal.initial_metadata)  # learns the generation
        else:
            return int.from_bytes(answer[0][1][32:36])


def test_a_caller_that_was_forgotten_is_refused_once_and_calls_again() -> None:
    guard, early = Guard(TOKEN, "w"), Caller()
    first = early.proof(TOKEN, FORGET.path, "w")
    assert admitted(guard, first)
    while admit_new_caller(guard) < 3:
        pass
    late = early.proof(TOKEN, FORGET.path, "w")
    with pytest.raises(Refusal, match="too old") as caught:
        guard.admit(FORGET.path, dict(call_metadata(late)))
    assert isinstance(caught.value.error, UnavailableError)  # which is tried again
    assert early.accepts(late, caught.value.initial_metadata)
    assert admitted(guard, early.proof(TOKEN, FORGET.path, "w"))
    for recorded in (first, late):
        assert not admitted(guard, recorded)


def test_a_channel_goes_on_when_its_server_has_forgotten_it() -> None:
    guard = Guard(TOKEN, max_callers=2)
    server = GrpcServer("test", {FORGET: lambda request, context: Empty()}, guard)
    server.start("127.0.0.1", 0)
    try:
        with channel_to(address(server)) as channel:
            channel.call(FORGET, ForgetRequest(), timeout=10)
            while admit_new_caller(guard) < 4:
                pass
            assert channel.call(FORGET, ForgetRequest(), timeout=10) == Empty()
    finally:
        server.stop(0)


# ---- nonces


def nonce(generation: int, caller: int, number: int) -> bytes:
    return pack_nonce(generation, caller.to_bytes(12), number)


def test_a_count_is_fresh_once_and_old_below_the_window() -> None:
    nonces = Nonces()
    assert nonces.record(nonce(1, 1, 5000)) == FRESH
    assert nonces.record(nonce(1, 1, 5000)) == SEEN
    assert nonces.record(nonce(1, 1, 4999)) == FRESH
    assert nonces.record(nonce(1, 1, 5000 - 1023)) == FRESH
    assert nonces.record(nonce(1, 1, 5000 - 1024)) == OLD
    assert nonces.record(nonce(1, 1, 10_000)) == FRESH
    assert nonces.record(nonce(1, 1, 5000)) == OLD
    assert nonces.record(nonce(1, 1, 9999)) == FRESH
    assert nonces.record(nonce(1, 1, 9999)) == SEEN


def test_nothing_is_fresh_in_a_generation_that_is_past_or_to_come() -> None:
    nonces = Nonces()
    nonces.generation = 7
    for generation in (0, 1, 5, 8, 9, 2**32 - 1):
        assert nonces.record(nonce(generation, 1, 1)) == OLD


def test_what_is_remembered_of_nonces_is_bounded() -> None:
    nonces = Nonces()
    for caller in range(20_000):
        while nonces.record(nonce(nonces.generation, caller, 2**60 + caller)) != FRESH:
            pass
        nonces.record(nonce(nonces.generation, caller, 1))
        if caller % 97 == 0:
            kept = nonces.debug_state()
            assert len(kept["current"]) <= MAX_CALLERS
            assert len(kept["previous"]) <= MAX_CALLERS
    assert nonces.generation >= 19
    assert 0 < max(nonces.debug_state()["current"]) <= WINDOW_BITS


def test_what_was_let_in_is_never_let_in_again_whatever_is_forgotten() -> None:
    nonces, seen = Nonces(max_callers=3), []
    for step in range(600):
        for caller in (step % 7, 100 + step % 2):
            taken = nonce(nonces.generation - step % 2, caller, 1 + step)
            if nonces.record(taken) == FRESH:
                seen.append(taken)
        assert all(nonces.record(each) != FRESH for each in seen[-60:])
    assert len(seen) > 100
    assert all(nonces.record(each) != FRESH for each in seen)


# ---- tags


def test_the_tags_of_one_direction_or_call_are_of_no_use_in_another() -> None:
    caller = Caller()
    proof, other = (caller.proof(TOKEN, SESSION.path, "w") for _ in range(2))
    signed = proof.signer(to_server=True).sign(b"message")
    assert proof.signer(to_server=True).check(signed) == b"message"
    for signer in (proof.signer(to_server=False), other.signer(to_server=True), Signer(b"another key")):
        with pytest.raises(DataLossError, match="changed on its way"):
            signer.check(signed)


# ---- tokens


@pytest.mark.parametrize("token", ["", " ", "\n", "\t \n"])
def test_an_empty_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="the argument is empty, and an empty token would let everybody in"):
        check_token(token, "the argument")


def test_an_empty_variable_is_refused_and_one_that_is_not_set_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSNB_TOKEN", raising=False)
    assert token_from_environment() is None
    monkeypatch.setenv("DSNB_TOKEN", "abc\n")
    assert token_from_environment() == "abc"
    monkeypatch.setenv("DSNB_TOKEN", " ")
    with pytest.raises(InvalidArgumentError, match="DSNB_TOKEN is empty"):
        token_from_environment()


def test_tokens_cannot_be_guessed() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32


def test_a_token_file_may_end_in_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("abc\n")
    assert read_token_file(path) == "abc"


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing-here"):
        read_token_file(tmp_path / "nothing-here")
    with pytest.raises(NotFoundError, match="directory"):
        read_token_file(tmp_path)


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (bytes(32), "is damaged: it holds null bytes"),
        (b"\xff\xfe\x00a", "is damaged"),
        (b"one\ntwo", "holds no token"),
        (b"\xc3\x28 not text", "holds no token"),
        (b"x" * 5000, "holds no token"),
    ],
    ids=["empty", "blank", "zeros", "not text", "two lines", "bad text", "long"],
)
@pytest.mark.parametrize("read", [read_token_file, load_or_create_token])
def test_a_damaged_token_file_is_explained_and_never_replaced(
    tmp_path: Path, read: Callable[[Path], str], content: bytes, what: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(FailedPreconditionError, match=what) as caught:
        read(path)
    assert str(path) in caught.value.what
    assert "nothing was started" in caught.value.did
    assert path.read_bytes() == content


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_no_token_file(device: str) -> None:
    with pytest.raises(FailedPreconditionError, match=device) as caught:
        load_or_create_token(device)
    assert "name a file" in caught.value.hint


def test_a_token_is_kept_whole_for_its_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_or_create_token(path)
    assert read_token_file(path) == load_or_create_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["token"]


def test_of_many_that_begin_at_once_all_have_one_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    barrier = threading.Barrier(8)

    def begin() -> str:
        barrier.wait(10)
        return load_or_create_token(path)

    assert len(set(run_in_threads([begin] * 8))) == 1
    assert os.listdir(tmp_path) == ["token"]


def test_a_file_system_without_links_holds_a_token_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert load_or_create_token(tmp_path / "token") == read_token_file(tmp_path / "token")
    assert os.listdir(tmp_path) == ["token"]

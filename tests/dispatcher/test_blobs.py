from __future__ import annotations

import threading

import pytest

from dsnb.dispatcher.blobs import PIECE, BlobStore
from dsnb.errors import DataLossError, NotFoundError
from dsnb.wire.messages import BlobPiece


def test_a_definition_is_kept_by_what_it_contains() -> None:
    store = BlobStore()
    assert store.put_definition(b"one") == store.put_definition(b"one")
    assert store.put_definition(b"one") != store.put_definition(b"two")
    assert bytes(store.get(store.put_definition(b"two"))) == b"two"


def test_what_is_not_here_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NotFoundError, match="does not hold the blob nowhere") as caught:
        BlobStore().get("nowhere")
    assert "register the dataset again" in caught.value.hint


def test_only_what_is_missing_is_asked_for_in_the_order_given() -> None:
    store = BlobStore()
    store.put("b", b"")
    assert store.missing(("c", "b", "a")) == ("c", "a")


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_blob_travels_in_pieces_and_arrives_whole(size: int) -> None:
    sender, receiver = BlobStore(), BlobStore()
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sender.put("d", data)
    pieces = list(sender.send("d"))
    assert all(len(piece.data) <= PIECE for piece in pieces)
    assert {piece.nbytes for piece in pieces} == {size}
    receiver.receive(iter(pieces))
    assert bytes(receiver.get("d")) == data


def test_a_blob_that_came_in_part_is_not_kept() -> None:
    store = BlobStore()
    pieces = [BlobPiece(digest="d", nbytes=6, data=b"abc"), BlobPiece(digest="d", nbytes=6, data=b"de")]
    with pytest.raises(DataLossError, match="a blob of 6 bytes arrived with 5"):
        store.receive(iter(pieces))
    assert store.missing(("d",)) == ("d",)


def test_a_blob_of_which_nothing_came_is_an_error() -> None:
    with pytest.raises(DataLossError, match="without a piece"):
        BlobStore().receive(iter(()))


def test_what_no_dataset_has_is_let_go() -> None:
    store = BlobStore()
    for digest in "abc":
        store.put(digest, digest.encode())
    store.keep_only({"b", "elsewhere"})
    assert store.missing(("a", "b", "c")) == ("a", "c")


def test_two_clients_that_send_one_blob_at_once_leave_it_whole() -> None:
    store = BlobStore()
    data = b"x" * (2 * PIECE)
    source = BlobStore()
    source.put("d", data)
    threads = [threading.Thread(target=lambda: store.receive(source.send("d"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(store.get("d")) == data

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dsnb.dispatcher.blobs import PIECE, BlobStore
from dsnb.errors import DataLossError, InvalidArgumentError, NotFoundError
from dsnb.wire.messages import BlobPiece


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs" if request.param == "file" else None)


def test_a_definition_is_kept_by_what_it_contains(store: BlobStore) -> None:
    assert store.put_definition(b"one") == store.put_definition(b"one")
    assert store.put_definition(b"one") != store.put_definition(b"two")
    assert bytes(store.get(store.put_definition(b"two"))) == b"two"


def test_what_is_not_here_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NotFoundError, match="does not hold the blob nowhere") as caught:
        BlobStore().get("nowhere")
    assert "register the dataset again" in caught.value.hint


def test_only_what_is_missing_is_asked_for_in_the_order_given(store: BlobStore) -> None:
    store.put("b", b"")
    assert store.missing(("c", "b", "a")) == ("c", "a")


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_blob_travels_in_pieces_and_arrives_whole(size: int, store: BlobStore) -> None:
    sender, receiver = BlobStore(), store
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sender.put("d", data)
    pieces = list(sender.send("d"))
    assert all(len(piece.data) <= PIECE for piece in pieces)
    assert {piece.nbytes for piece in pieces} == {size}
    receiver.receive(iter(pieces))
    assert bytes(receiver.get("d")) == data
    assert b"".join(piece.data for piece in receiver.send("d")) == data


def test_a_blob_that_came_in_part_is_not_kept(store: BlobStore) -> None:
    pieces = [BlobPiece(digest="d", nbytes=6, data=b"abc"), BlobPiece(digest="d", nbytes=6, data=b"de")]
    with pytest.raises(DataLossError, match="a blob of 6 bytes arrived with 5"):
        store.receive(iter(pieces))
    assert store.missing(("d",)) == ("d",)


def test_a_blob_of_which_nothing_came_is_an_error() -> None:
    with pytest.raises(DataLossError, match="without a piece"):
        BlobStore().receive(iter(()))


def test_what_no_dataset_has_is_let_go(store: BlobStore) -> None:
    for digest in "abc":
        store.put(digest, digest.encode())
    store.keep_only({"b", "elsewhere"})
    assert store.missing(("a", "b", "c")) == ("a", "c")


def test_two_clients_that_send_one_blob_at_once_leave_it_whole(store: BlobStore) -> None:
    data = b"x" * (2 * PIECE)
    source = BlobStore()
    source.put("d", data)
    threads = [threading.Thread(target=lambda: store.receive(source.send("d"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(store.get("d")) == data


def test_what_lies_in_a_folder_is_there_again_and_what_was_half_written_is_let_go(tmp_path: Path) -> None:
    BlobStore(tmp_path / "blobs").put("d", b"some bytes")
    (tmp_path / "blobs" / ".half").write_bytes(b"so")
    store = BlobStore(tmp_path / "blobs")
    assert bytes(store.get("d")) == b"some bytes"
    store.keep_only({"d"})
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["d"]


def test_what_is_let_go_stays_with_whoever_has_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put("d", b"some bytes")
    held = store.get("d")
    store.keep_only(set())
    assert bytes(held) == b"some bytes"
    assert store.missing(("d",)) == ("d",)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_removed_is_not_found(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put("d", b"some bytes")
    (tmp_path / "d").unlink()
    with pytest.raises(NotFoundError, match="does not hold the blob d"):
        store.get("d")


@pytest.mark.parametrize("digest", ["../outside", "", "a/b", "."])
def test_a_digest_names_no_other_file(digest: str, store: BlobStore) -> None:
    with pytest.raises(InvalidArgumentError, match="is no digest"):
        store.put(digest, b"")
